"""Clients move between real brokers, under load and while processes are killed: nothing is lost, nothing
doubled, and the events of each publisher that stays come in order."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lane_server import LaneServer
from machines import RING, machine_of, pids, send, started, until
from ramify.content.events.events import Event
from ramify.errors import LiveError
from ramify.overlay.control import moves
from ramify.overlay.control.names import token
from ramify.overlay.control.records import ClientPlace, ClientRecord, Lane, Move, decode
from ramify.overlay.live.client.blocking import BlockingClient
from ramify.overlay.live.client.client import Client, Offer, RefusedError, SuspendedError
from ramify.overlay.live.host.directory import COORDINATOR
from ramify.overlay.live.host.machine import Machine
from ramify.overlay.live.host.move_requests import follow, request_move
from ramify.overlay.live.wire.store import Store
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end

LIMIT_S = 240.0
READERS = {"kept": "v0", "loop": "v2", "still": "v1", "blocking": "v4"}
WRITERS = {"w1": "v1", "w2": "v2", "w4": "v4"}
OTHERS = {"no": "v1", "away": "v3", "alone": "v0"}


class Scene:
    """An overlay, a publisher that never pauses, and an operator that asks for moves."""

    def __init__(self, path: Path, machine: Machine, store: Store) -> None:
        self.path, self.machine, self.store = path, machine, store
        self.clients: dict[str, Client] = {}
        self.published: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._writing = True

    async def client(self, name: str, **options: object) -> Client:
        """By its file, which says where it was at first."""
        self.clients[name] = await Client.at(self.path, name, **options)  # type: ignore[arg-type]
        return self.clients[name]

    def write(self, name: str, client: Client) -> None:
        self.tasks.append(asyncio.create_task(self._write(name, client)))

    async def _write(self, name: str, client: Client) -> None:
        number = 0
        while self._writing:
            some = [Event(f"{name}-{number + k}", attributes={"x": 1, "source": "s"}) for k in range(3)]
            await client.publish(some, give_up_s=90)
            self.published += [event.id for event in some]
            number += 3
            await asyncio.sleep(0.03)

    async def stop_writing(self) -> None:
        self._writing = False
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*self.tasks)

    async def ask(self, client: str, to: str, **options: object) -> Move:
        control = self.machine.directory.operator(self.machine.control_url)
        home = self.machine.directory.clients()[client]
        return await request_move(control, client, to, home=home, **options)  # type: ignore[arg-type]

    async def move(
        self, client: str, to: str, on: Callable[[str], Awaitable[None]] | None = None, **options: object
    ) -> list[str]:
        """The phases that a move was seen in; `on` is told of each."""
        seen = []
        async with asyncio.timeout(LIMIT_S):
            # what it left where it goes to must be known to be read
            await self.until(client, lambda r: r is None or all(lane.broker != to for lane in r.lanes[:-1]))
            wish = await self.ask(client, to, **options)
            async for move in follow(self.store, wish):
                seen.append(move.phase)
                if on is not None:
                    await on(move.phase)
        return seen

    async def record(self, client: str) -> ClientRecord | None:
        found = await self.store.get(f"clients.{token(client)}")
        return None if found is None else decode(found[0], ClientRecord)

    async def until(self, client: str, what: Callable[[ClientRecord | None], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not what(await self.record(client)):
                await asyncio.sleep(0.1)

    async def kill(self, name: str) -> None:
        await until(lambda: name in pids(self.machine))
        send(pids(self.machine)[name], signal.SIGKILL)

    async def end(self) -> None:
        await end_tasks(self.tasks)
        for client in self.clients.values():
            with contextlib.suppress(LiveError):
                await client.close()


@asynccontextmanager
async def scene(path: Path, *, movable: bool = True) -> AsyncIterator[Scene]:
    machine = machine_of(path, RING, READERS | WRITERS | OTHERS)
    if movable:
        machine.directory.make_movable()
    async with started(machine):
        # as a coordinator it sees every phase; others may miss those that are soon over
        store = await Store.connect(machine.directory.control_endpoint(COORDINATOR, machine.control_url))
        made = Scene(path, machine, store)
        try:
            yield made
        finally:
            await made.end()
            await store.close()


def play(path: Path, scenario: Callable[[Scene], Awaitable[None]], *, movable: bool = True) -> None:
    async def run() -> None:
        async with scene(path, movable=movable) as made:
            await scenario(made)

    # the thread that starts servers must outlive them
    with asyncio.Runner() as runner:
        runner.run(run())


async def ramify(*arguments: str) -> tuple[int | None, str]:
    """The exit code of a command, and the phase that it said last."""
    command = [sys.executable, "-m", "ramify.cli", *arguments]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(LIMIT_S):
        said, _ = await child.communicate()
    lines = said.splitlines()
    return child.returncode, decode(lines[-1], Move).phase if lines else ""


class Kept:
    """A reader that stores the number of each delivery with its effects, and comes back with it."""

    def __init__(self, scene: Scene, name: str) -> None:
        self._scene, self._name = scene, name
        self.number: int | None = None
        self.numbers: list[int] = []
        self.events: list[str] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async with contextlib.aclosing(self._scene.clients[self._name].deliveries(self.number)) as lane:
            async for delivered in lane:
                self.number = delivered.number
                self.numbers.append(delivered.number)
                self.events += delivered.events.column("id").to_pylist()

    async def restart(self) -> None:
        """A new process: it knows the number, and where the client was at first."""
        await self.stop()
        await self._scene.clients[self._name].close()
        await self._scene.client(self._name)
        self.start()

    async def until(self, count: int) -> None:
        await _until_has(self.events, count, self._task)

    async def stop(self) -> None:
        if self._task is not None:
            await end_tasks([self._task])


async def _until_has(events: list[str], count: int, task: "asyncio.Task[None] | None") -> None:
    try:
        async with asyncio.timeout(LIMIT_S):
            while len(events) < count:
                if task is not None and task.done():
                    task.result()
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{len(events)} of {count} events came") from None
    await asyncio.sleep(0.5)


def check(got: list[str], published: list[str]) -> None:
    """All of it, each once, in the order of each publisher."""
    assert sorted(got) == sorted(published)
    for name in {event.rpartition("-")[0] for event in published}:
        mine = [int(event.rpartition("-")[2]) for event in got if event.startswith(f"{name}-")]
        assert mine == sorted(mine), f"{name} is out of order"


def test_clients_move_there_and_back_under_load_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    """One restarts with its number in the middle, one iterates, one only publishes, all at once."""

    async def scenario(at: Scene) -> None:
        for name in ("kept", "loop", "still", *WRITERS, "alone"):
            await at.client(name)
        for name in ("kept", "loop", "still"):
            assert not (await at.clients[name].subscribe("x = 1", id="all", wait_s=60)).missing
        kept, looped, stayed = Kept(at, "kept"), list[str](), Kept(at, "still")
        kept.start()
        stayed.start()

        async def iterate() -> None:
            async for event in at.clients["loop"].subscribe("x = 1", id="all"):
                looped.append(event.id)

        at.tasks.append(looping := asyncio.create_task(iterate()))
        writing = [*WRITERS, "alone"]
        tasks, at.tasks = at.tasks, []
        for name in writing:
            at.write(name, at.clients[name])
        try:

            async def restart(phase: str) -> None:
                if phase in (moves.SWITCHING, moves.DONE):
                    await kept.restart()

            for away in (True, False):
                went = await asyncio.gather(
                    at.move("kept", "v3" if away else "v0", restart),
                    at.move("loop", "v4" if away else "v2"),
                    at.move("alone", "v3" if away else "v0"),
                )
                assert {phases[-1] for phases in went} == {moves.DONE}, went
                await kept.restart()
            await at.stop_writing()
            for read in (kept, stayed):
                await read.until(len(at.published))
            await _until_has(looped, len(at.published), looping)
            assert len(at.published) > 100
            # switches of others overtake each other, so order is for the test with one client that moves
            for got in (kept.events, looped, stayed.events):
                assert sorted(got) == sorted(at.published)
            assert kept.numbers == sorted(set(kept.numbers))
            for name, home in {"kept": "v0", "loop": "v2", "alone": "v0"}.items():
                await at.until(name, lambda r, h=home: r is not None and r.broker == h)  # type: ignore[misc]
        finally:
            await kept.stop()
            await stayed.stop()
            await end_tasks(tasks)

    play(tmp_path, scenario)


# --------------------------------------------------------------------------------------- lanes by hand


@asynccontextmanager
async def two_lanes(path: Path) -> AsyncIterator[tuple[LaneServer, LaneServer]]:
    """Two servers that know the same clients; their routers are the test."""
    home, foreign = LaneServer(path, name="home"), LaneServer(path, name="foreign")
    try:
        await home.start()
        await foreign.start()
        for each in (home, foreign):
            each.place = ClientPlace(
                each.name, each.name, urls={x.name: x.server.url for x in (home, foreign)}
            )
        yield home, foreign
    finally:
        for each in (home, foreign):
            with contextlib.suppress(AttributeError):
                await each.stop()


async def end_lane(at: LaneServer, to: LaneServer, *, reason: str = "", end: int = 0) -> None:
    said = {"M": moves.LaneEnd("m", to.name, 0, end).encode(), "N": "0"}
    await at.write("alice", b"", said | ({"X": reason} if reason else {}))


async def take(client: Client, after: int | None, count: int) -> list[tuple[int, list[str]]]:
    async with asyncio.timeout(240), contextlib.aclosing(client.deliveries(after)) as lane:
        found = [await anext(lane) for _ in range(count)]
    return [(each.number, each.events.column("id").to_pylist()) for each in found]


def test_numbers_go_on_from_lane_to_lane_and_each_finds_its_place_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_lanes(tmp_path) as (home, foreign):
            await home.deliver(["alice/s"], "a")
            await home.deliver(["alice/s"], "b")
            # what comes at the new broker before the old lane has ended
            await foreign.deliver(["alice/s"], "c")
            await end_lane(home, foreign)
            await foreign.deliver(["alice/s"], "d")
            all_of_it = [(1, ["a"]), (2, ["b"]), (3, []), (5, ["c"]), (6, ["d"])]
            # before the record says so: the lane itself says where to go on
            async with home.client() as client:
                assert await take(client, 0, 5) == all_of_it
            lanes = [Lane("home", end=3, move="m"), Lane("foreign", 4)]
            for each in (home, foreign):
                urls = each.place.urls
                each.place = ClientPlace(each.name, "foreign", lanes, urls)
            # "d" alone was not acknowledged: a client that comes back without a number goes on there
            for connect in (home.client, foreign.client):
                async with connect() as client:
                    assert await take(client, None, 1) == all_of_it[-1:]
                async with connect() as client:
                    assert await take(client, 5, 1) == all_of_it[-1:]
                async with connect() as client:
                    with pytest.raises(LiveError, match="were acknowledged before: go on after 3"):
                        await take(client, 1, 1)

    run_to_end(scenario())


def test_unread_deliveries_that_a_broker_gave_up_after_the_move_are_told_and_reading_goes_on(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with two_lanes(tmp_path) as (home, foreign):
            await home.deliver(["alice/s"], "a")
            await end_lane(home, foreign)
            await end_lane(home, foreign, reason="lease", end=2)
            await home.log.purge("out.deliver.alice", home.log.last)
            await foreign.deliver(["alice/s"], "b")
            async with home.client() as client:
                with pytest.raises(SuspendedError) as told:
                    await take(client, None, 1)
                assert (told.value.reason, told.value.number) == ("lease", 3)
                home.place = ClientPlace(
                    "home", "foreign", [Lane("home", end=2, move="m"), Lane("foreign", 3)], home.place.urls
                )
                assert await take(client, told.value.number, 1) == [(4, ["b"])]
            # it is acknowledged, so that the broker can forget the lane
            async with home.client() as client:
                reading = asyncio.create_task(take(client, 4, 1))
                await home.until(lambda state: state["num_pending"] == state["num_ack_pending"] == 0)
                await end_tasks([reading])

    run_to_end(scenario())


# ------------------------------------------------------------------------------------- whole overlays

# (who is killed, in which phase): kept moves from v0 (routers-1) to v3 (routers-2), back, and so on
KILLS = [
    ("coordinator", moves.ACCEPTED),
    ("routers-2", moves.SWITCHED),
    ("routers-2", moves.ACCEPTED),
    ("v0", moves.SWITCHING),
    ("coordinator", moves.SWITCHING),
]


def test_whatever_is_killed_during_a_move_it_goes_on_to_its_end(tmp_path: Path) -> None:
    async def scenario(at: Scene) -> None:
        for name in ("kept", *WRITERS):
            await at.client(name)
        await at.clients["kept"].subscribe("x = 1", id="all", wait_s=60)
        kept = Kept(at, "kept")
        kept.start()
        for name in WRITERS:
            at.write(name, at.clients[name])
        try:
            for n, (who, when) in enumerate(KILLS):
                to = "v3" if n % 2 == 0 else "v0"

                async def on(phase: str, who: str = who, when: str = when) -> None:
                    if phase == when:
                        await at.kill(who)

                phases = await at.move("kept", to, on, answer_s=60)
                assert phases[-1] == moves.DONE, (who, when, phases)
                assert when in phases
            await at.stop_writing()
            await kept.until(len(at.published))
            check(kept.events, at.published)
        finally:
            await kept.stop()

    play(tmp_path, scenario)


def test_offers_are_declined_lapse_or_are_refused_with_the_reason(tmp_path: Path) -> None:
    async def scenario(at: Scene) -> None:
        offers: list[Offer] = []

        async def policy(offer: Offer) -> bool:
            offers.append(offer)
            return False

        client = await at.client("no", on_move=policy)
        await client.subscribe("x = 1", id="all", wait_s=60)
        phases = await at.move("no", "v4", reason="cheaper there")
        assert phases[-1] == moves.DECLINED
        assert [(o.home, o.foreign, o.reason) for o in offers] == [("v1", "v4", "cheaper there")]
        assert offers[0].url == at.machine.urls["v4"]
        # nobody is there to answer
        wish = await at.ask("away", "v1", answer_s=1.0)
        ends = [move async for move in follow(at.store, wish)]
        assert (ends[-1].phase, "did not answer" in ends[-1].why) == (moves.LAPSED, True)
        for name, to, code in (("no", "v1", "exists"), ("no", "v9", "bad_request")):
            with pytest.raises(RefusedError) as refused:
                await at.ask(name, to)
            assert refused.value.code == code
        assert await ramify("move", "no", "v4", "--dir", str(at.path), "--json") == (1, moves.DECLINED)
        assert (await ramify("move", "no", "v9", "--dir", str(at.path)))[0] == 2
        # the client stays, and is served
        await client.publish(Event("mine", attributes={"x": 1, "source": "s"}))
        async with asyncio.timeout(LIMIT_S):
            assert (await anext(client.subscribe("x = 1", id="all"))).id == "mine"
        found = await at.record("no")
        assert found is not None
        assert (found.broker, found.lanes) == ("v1", [])

    play(tmp_path, scenario)


def test_a_broker_that_does_not_know_the_key_is_declined(tmp_path: Path) -> None:
    async def scenario(at: Scene) -> None:
        client = await at.client("no", timeout_s=5.0)
        await client.subscribe("x = 1", id="all", wait_s=60)
        wish = await at.ask("no", "v4")
        async with asyncio.timeout(LIMIT_S):
            ends = [move async for move in follow(at.store, wish)]
        assert ends[-1].phase == moves.DECLINED
        assert "cannot connect" in ends[-1].why

    play(tmp_path, scenario, movable=False)


def test_what_was_unread_is_read_by_a_blocking_client_that_knows_only_where_it_was(tmp_path: Path) -> None:
    """The move is made while nobody reads. Requests and publishes at the old address reach the new one."""

    async def scenario(at: Scene) -> None:
        first = await at.client("blocking")
        await first.subscribe("x = 1", id="all", wait_s=60)
        writer = await at.client("w1")

        async def publish(*ids: str) -> None:
            await writer.publish([Event(id_, attributes={"x": 1, "source": "s"}) for id_ in ids])

        await publish("a", "b")
        assert (await at.move("blocking", "v1"))[-1] == moves.DONE
        await first.close()
        del at.clients["blocking"]
        await publish("c")
        got = await asyncio.to_thread(lambda: list(_blocking(at.path, publish_too=True)))
        assert got == ["a", "b", "c", "own"]
        await at.until("blocking", lambda r: r is not None and len(r.lanes) == 1)

    def _blocking(path: Path, *, publish_too: bool) -> Iterator[str]:
        with BlockingClient.at(path, "blocking") as client:
            if publish_too:
                client.publish(Event("own", attributes={"x": 1, "source": "s"}))
            assert set(client.subscriptions()) == {"all"}
            reading = client.subscribe("x = 1", id="all")
            for _ in range(4):
                event = reading.get(timeout_s=LIMIT_S)
                assert event is not None
                yield event.id
            assert reading.get(timeout_s=0.5) is None

    play(tmp_path, scenario)
