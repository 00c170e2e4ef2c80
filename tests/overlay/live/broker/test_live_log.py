"""The fenced log: one writer, whole writes, steps that survive a crash in their middle, purging."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from unittest import mock

import pytest
from nats.aio.client import Client as Nats

from ramify.errors import LiveError
from ramify.network.graphs.overlay import Link, Overlay
from ramify.overlay.control.names import OUT
from ramify.overlay.control.output import Output, value_pieces
from ramify.overlay.live.broker import log as log_module
from ramify.overlay.live.broker.log import FencedError, LogFullError, OutLog, SupersededError
from ramify.overlay.live.host.site import BrokerSite
from ramify.overlay.live.wire.security import RouterRole
from ramify.overlay.live.wire.streams import Sizes, api, connect, ensure_streams
from ramify.overlay.live.wire.tasks import run_to_end

SMALL = Sizes(published=1 << 20, out=1 << 20, rejected=1 << 20, samples=1 << 20)


@asynccontextmanager
async def server(directory: Path) -> AsyncIterator[Nats]:
    overlay = Overlay.build("pair", ["a", "b"], [Link("a", "b", 1.0, 1.0, 1.0)])
    site = BrokerSite(overlay, directory, {}, SMALL)
    running = site.server("a")
    await running.start()
    connection = await connect(site.endpoint(RouterRole("a"), running.url))
    try:
        await ensure_streams(connection, SMALL)
        yield connection
    finally:
        await connection.close()
        await running.stop()


def with_server(directory: Path, what: Callable[[Nats], Awaitable[None]]) -> None:
    async def run() -> None:
        async with server(directory) as connection:
            await what(connection)

    run_to_end(run())


def outputs(*lanes: str) -> list[Output]:
    return [Output(f"out.link.{lane}", f"{lane}{i}".encode()) for i, lane in enumerate(lanes)]


def test_positions_and_numbers_come_back(tmp_path: Path) -> None:
    async def what(connection: Nats) -> None:
        log = OutLog(connection)
        assert (await log.load()).positions == {}
        await log.commit(outputs("x"), {"IN": 1})
        await log.commit(outputs("x", "y", "x"), {"IN": 4, "b": 2})
        await log.commit([], {"IN": 5, "b": 2})
        again = OutLog(connection)
        recovered = await again.load()
        assert dict(recovered.positions) == {"IN": 5, "b": 2}
        assert recovered.begun is None
        assert [await again.number(f"out.link.{lane}") for lane in "xyz"] == [3, 1, 0]

    with_server(tmp_path, what)


def test_a_second_writer_is_fenced_and_a_superseded_one_is_told(tmp_path: Path) -> None:
    async def what(connection: Nats) -> None:
        old, new = OutLog(connection), OutLog(connection)
        await old.load()
        await old.claim()
        await old.commit(outputs("x"), {"IN": 1})
        await new.load()
        await new.claim()
        for several in (outputs("x"), outputs("x", "y")):
            with pytest.raises(LiveError):
                await old.commit(several, {"IN": 2})
        with pytest.raises(SupersededError):
            await old.load()
        before = await new.number("out.link.x")
        await new.commit(outputs("x", "y"), {"IN": 2})
        assert (await new.last_headers("out.link.x"))["J"] == str(before)
        await new.commit(outputs("x"), {"IN": 3})
        headers = await new.last_headers("out.link.x")
        assert "J" not in headers, "numbers jump once"
        assert int(headers["L"]) == await new.number("out.link.x") > before + 2

    with_server(tmp_path, what)


def test_one_output_of_a_fenced_writer_is_refused_as_such(tmp_path: Path) -> None:
    async def what(connection: Nats) -> None:
        first, second = OutLog(connection), OutLog(connection)
        await first.load()
        await second.load()
        await first.commit(outputs("x"), {"IN": 1})
        with pytest.raises(FencedError):
            await second.commit(outputs("x"), {"IN": 1})

    with_server(tmp_path, what)


@pytest.mark.parametrize("written", [1, 2])
def test_a_step_cut_between_its_writes_is_finished_without_doubles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    monkeypatch.setattr(log_module, "MOST_MESSAGES", 2)
    wanted = outputs("a", "b", "c", "d", "e", "a")

    async def what(connection: Nats) -> None:
        log = OutLog(connection)
        await log.load()
        await log.commit(outputs("a"), {"IN": 1})
        write, calls = log._write, 0

        async def dying(*args: object, **more: object) -> None:
            nonlocal calls
            calls += 1
            if calls > written:
                raise LiveError("died")
            await write(*args, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(log, "_write", dying)
        with pytest.raises(LiveError, match="died"):
            await log.commit(wanted, {"IN": 9}, epoch=4)
        after = OutLog(connection)
        recovered = await after.load()
        assert dict(recovered.positions) == {"IN": 1}
        assert recovered.begun is not None
        assert (dict(recovered.begun), recovered.epoch) == ({"IN": 9}, 4)
        await after.claim()  # a claim does not hide that a step was begun
        again = await after.load()
        assert (dict(again.begun or {}), again.epoch) == ({"IN": 9}, 4)
        with pytest.raises(LiveError, match="finished first"):
            await after.commit(wanted, {"IN": 8})
        await after.commit(wanted, {"IN": 9, "late": 0}, epoch=4)
        last = OutLog(connection)
        done = await last.load()
        assert (dict(done.positions), done.begun) == ({"IN": 9, "late": 0}, None)
        told = await api(connection, f"STREAM.INFO.{OUT}", {"subjects_filter": "out.link.*"})
        counts = {"a": 3, "b": 1, "c": 1, "d": 1, "e": 1}
        assert told["state"]["subjects"] == {f"out.link.{lane}": n for lane, n in counts.items()}

    with_server(tmp_path, what)


def test_purging_keeps_the_last_of_a_lane_wherever_its_readers_floor_is(tmp_path: Path) -> None:
    async def what(connection: Nats) -> None:
        log = OutLog(connection)
        await log.load()
        for _ in range(5):
            await log.commit(outputs("quiet"), {"IN": 1})
        for _ in range(5):
            await log.commit(outputs("busy"), {"IN": 2})
        await log.purge("out.link.quiet", log.last)
        await log.purge("out.link.busy", log.last - 2)
        again = OutLog(connection)
        await again.load()
        assert [await again.number(f"out.link.{lane}") for lane in ("quiet", "busy")] == [5, 5]
        told = await api(connection, "STREAM.INFO.OUT", {})
        assert told["state"]["messages"] == 4  # type: ignore[index]

    with_server(tmp_path, what)


def test_a_full_log_says_so_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    async def what(connection: Nats) -> None:
        log = OutLog(connection)
        await log.load()
        big = [Output("out.link.x", bytes(300_000))]
        for k in (1, 2, 3):
            await log.commit(big, {"IN": k})
        with pytest.raises(LogFullError):
            await log.commit(big, {"IN": 4})
        recovered = await log.load()
        assert recovered.positions["IN"] == 3
        await log.purge("out.link.x", log.last)
        await log.commit(big, {"IN": 4})
        assert await log.number("out.link.x") == 4

    with_server(tmp_path, what)


@pytest.mark.parametrize("size", [0, 1, 7, 20, 21])
def test_the_last_value_of_a_lane_is_read_whole_and_the_others_are_forgotten(
    tmp_path: Path, size: int
) -> None:
    async def what(connection: Nats) -> None:
        log = OutLog(connection)
        await log.load()
        assert await log.value("out.match") is None
        await log.purge_value("out.match")
        first, last = b"0123456789" * 3, bytes(range(size))
        await log.commit([*outputs("x"), *value_pieces("out.match", first, 7), *outputs("x")], {"IN": 1})
        assert await log.value("out.match") == first
        await log.commit([*value_pieces("out.match", last, 7), *outputs("x", "y")], {"IN": 2})
        await log.commit(outputs("x"), {"IN": 3})
        for _ in range(2):
            await log.purge_value("out.match")
            assert await log.value("out.match") == last
        left = await api(connection, "STREAM.INFO.OUT", {"subjects_filter": "out.match"})
        assert left["state"]["subjects"]["out.match"] == max(1, -(-size // 7))
        again = OutLog(connection)
        assert dict((await again.load()).positions) == {"IN": 3}
        assert await again.value("out.match") == last

    with_server(tmp_path, what)


def test_what_another_router_purged_between_two_requests_is_no_loss() -> None:
    """It wrote 27 and purged 26 after 26 was said to be the last."""
    log = OutLog(mock.Mock(stats={"reconnects": 0}))
    log._claimed, log._last = True, 25
    states = iter([26, 27, 27])
    log._api = mock.AsyncMock(side_effect=lambda *_: {"state": {"last_seq": next(states), "first_seq": 26}})  # type: ignore[method-assign]
    found = {27: {"S": "", "W": "another", "B": str(1 << 60)}}
    log._headers = mock.AsyncMock(side_effect=lambda asked: found.get(asked["seq"], {}))  # type: ignore[method-assign]
    with pytest.raises(SupersededError):
        run_to_end(log.load())


def test_a_router_whose_connection_was_made_anew_sees_that_it_was_replaced(tmp_path: Path) -> None:
    """Its next numbers are above all that there is; that must not make it the newer one."""

    async def check(connection: Nats) -> None:
        old, new = OutLog(connection), OutLog(connection)
        await old.load()
        await old.claim()
        await new.load()
        await new.claim()
        old._raise_base()
        with pytest.raises(SupersededError):
            await old.check_claim()
        with pytest.raises(SupersededError):
            await old.load()
        assert (await new.load()).lost == ""

    with_server(tmp_path, check)
