"""Moves of clients, without any wire: whatever happens in whatever order, a move ends in one way, and what
the client reads is what was published."""

import itertools
import json
import random
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.content.events.events import Event, events_to_batch
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, LiveError, PlanError
from ramify.network.graphs.generators import line
from ramify.overlay.control import moves
from ramify.overlay.control.epochs import BrokerReport, EpochError, Epochs
from ramify.overlay.control.moves import ClientView, Duty, LaneEnd, duty_of, looked
from ramify.overlay.control.records import (
    STATE,
    Answer,
    ClientRecord,
    ClientSubscription,
    ControlState,
    FilterText,
    ForwardedRequest,
    Lane,
    LiveEpoch,
    Move,
    Request,
    decode,
    encode,
)
from ramify.overlay.control.registry import Book, Write, applied, client_key
from ramify.overlay.control.requests import RequestLimits, ask
from ramify.overlay.control.revisions import PlanChanges
from ramify.overlay.live.broker.moves import Porter
from ramify.overlay.live.coordinator.collector import PUBLISHERS
from ramify.overlay.live.coordinator.suggestions import suggest
from ramify.overlay.live.wire.store import Store
from ramify.overlay.live.wire.tasks import run_to_end
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.files import decode_plan
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.catalog import make_plan

OVERLAY = line(3)
BROKERS = OVERLAY.brokers
ENDS = {moves.DONE, moves.DECLINED, moves.LAPSED, moves.WITHDRAWN}


def first_plan(scheme: str, at: str = BROKERS[1]) -> Plan:
    rows = [Subscription("c/s", "c", at, "x >= 0"), Subscription("d/s", "d", BROKERS[2], "x = 1")]
    problem = Problem.of(OVERLAY, Classes.collapse(rows, OVERLAY, {}), Demand.of([]), {"c": at})
    return make_plan(scheme, problem)


def place_in(plan: Plan) -> str:
    """The broker that a plan delivers to client c at."""
    return OVERLAY.brokers[int(plan.classes.broker[plan.classes.class_of["c/s"]])]


# --------------------------------------------------------------------------------------- a whole overlay


@dataclass
class Side:
    """A broker: what it holds and has done, and the lane of client c, which outlives it."""

    name: str
    session: str = "1"
    number: int = 0
    plans: dict[int, tuple[int, str]] = field(default_factory=dict)
    flipped: int = 0
    turn: int = 0
    round: int = 0
    # events of the lane, or the end of it; numbers begin with 1
    lane: list[int | LaneEnd] = field(default_factory=list)
    position: int = 0


class World:
    """A publisher at the first broker, a client that is asked to move, a leader that may die.

    Events to another broker are under way until they arrive, in order.
    """

    def __init__(self, scheme: str) -> None:
        names = (f"n{i}" for i in itertools.count())
        self.fresh = lambda: next(names)
        self.store: dict[str, bytes] = {}
        self.book: Book | None
        self.book, writes = Book.first(first_plan(scheme), self.fresh)
        self.put(writes)
        self.sides = {name: Side(name) for name in BROKERS}
        self.links: dict[str, list[tuple[int, int]]] = {name: [] for name in BROKERS[1:]}
        self.sent: dict[tuple[str, int], int] = {}
        self.count: dict[str, int] = dict.fromkeys(self.links, 0)
        self.events = itertools.count(1)
        self.published: list[int] = []
        self.now = 0.0
        # the reader: the lane that it is at, its number there, and what it got by number
        self.part, self.at = Lane(BROKERS[1]), 0
        self.got: dict[int, int] = {}
        self.kept = 0
        self.ended: list[Move] = []
        for side in self.sides.values():
            self.book.epochs.on_register(side.name, side.session)
        self.save()
        self.settle_all(rounds=6)

    # ------------------------------------------------------------------------------------ the leader

    def put(self, writes: list[Write]) -> None:
        self.store.update({write.key: write.value for write in writes})

    @property
    def move(self) -> Move | None:
        value = self.store.get("moves.c")
        return None if value is None else decode(value, Move)

    def keep(self, move: Move) -> None:
        before = self.move
        if before is not None and before.id == move.id and before.phase in ENDS:
            assert move.phase == before.phase, "a move ends once"
        if move.phase in ENDS and (before is None or before.phase != move.phase):
            self.ended.append(move)
        self.store["moves.c"] = encode(move)

    @property
    def record(self) -> ClientRecord:
        return decode(self.store[client_key("c")], ClientRecord)

    def save(self) -> None:
        assert self.book is not None
        self.put([self.book.state()])
        if self.move is not None:
            self.keep(looked(self.move, self.view(), self.now))

    def view(self) -> ClientView:
        assert self.book is not None
        assert self.book.epochs.wanted is not None
        places = self.book.places_of("c")
        newest = places[self.book.epochs.wanted]
        return ClientView(self.record.broker, newest, all(at == newest for at in places.values()))

    def lead(self) -> Book:
        """The leader; a new one goes on from the store."""
        if self.book is None:
            clients = [value for key, value in self.store.items() if key.startswith("clients.")]
            self.book = Book.load(self.store.__getitem__, clients, self.fresh)
            self.put(self.book.revise())
            self.save()
        return self.book

    def die(self) -> None:
        self.book = None

    def offer(self, to: str) -> None:
        book = self.lead()
        move = self.move
        if (move is None or not moves.is_open(move)) and self.record.broker != to:
            if any(lane.broker == to for lane in self.record.lanes[:-1]):
                return
            id_ = self.fresh()
            self.keep(Move(id_, "c", self.record.broker, to, moves.OFFERED, self.now, self.now + 30))
            assert book.head is not None

    def answer(self, yes: bool) -> None:
        self.lead()
        if self.move is not None:
            now = self.now
            self.keep(moves.accepted(self.move, now) if yes else moves.declined(self.move, "", now))

    def switch(self, *, die: bool) -> None:
        """Propose, and save; a leader may die before it saves."""
        book, move = self.lead(), self.move
        if move is None or move.phase != moves.REPLICATED or book.head.at.get("c") == move.foreign:
            return
        try:
            _, writes = book.move({"c": move.foreign})
        except EpochError:
            return
        self.put(writes)
        if die:
            self.die()
        else:
            self.save()

    def replan(self, scheme: str) -> None:
        """Another plan, made for where the client was at first."""
        book = self.lead()
        try:
            _, writes = book.propose(first_plan(scheme))
        except (EpochError, PlanError):
            return
        self.put(writes)
        self.save()

    # ---------------------------------------------------------------------------------- the brokers

    def obey(self, name: str) -> None:
        """A broker does what the saved state says, and reports."""
        side, state = self.sides[name], decode(self.store[STATE], ControlState)
        epochs = Epochs.from_json(bytes(state.epochs))
        for live in state.live:
            revision = live.changes[-1][0] if live.changes else live.base
            if side.plans.get(live.epoch, (-1, ""))[0] < revision:
                side.plans[live.epoch] = revision, self.place(live)
        if epochs.target is not None and epochs.turn > side.turn:
            side.flipped, side.turn = epochs.target, epochs.turn
        for epoch in side.plans.keys() - set(epochs.live):
            del side.plans[epoch]
        side.round = epochs.round
        if self.book is not None:
            side.number += 1
            installed = frozenset((epoch, revision) for epoch, (revision, _) in side.plans.items())
            sent = dict(self.sent) if name == BROKERS[0] else {}
            committed = {(BROKERS[0], epoch): side.position for epoch in side.plans}
            self.book.epochs.on_report(
                BrokerReport(
                    name,
                    side.session,
                    side.number,
                    installed,
                    side.flipped,
                    side.turn,
                    side.round,
                    sent,
                    committed,
                )
            )
            self.save()

    def place(self, live: LiveEpoch) -> str:
        plan = decode_plan(self.store[live.plan_key])
        for _, key in live.changes:
            plan = applied(plan, decode(self.store[key], PlanChanges).changes)
        return place_in(plan)

    def do_duty(self, name: str) -> None:
        """What a broker has to do for the move, and says to the leader."""
        move, side = self.move, self.sides[name]
        duty = None if move is None else duty_of(move, name, self.now)
        if duty is Duty.REPLICATE:
            assert move is not None
            self.lead()
            assert self.move is not None
            self.keep(moves.replicated(self.move, len(side.lane), self.now))
        if duty is Duty.END:
            assert move is not None
            last = side.lane[-1] if side.lane else None
            if not isinstance(last, LaneEnd) or last.move != move.id:
                side.lane.append(LaneEnd(move.id, move.foreign, move.start))
            book = self.lead()
            assert self.move is not None
            move = moves.ended(self.move, len(side.lane), self.now)
            if self.record.broker == move.home:
                lanes = moves.lanes_after(self.record.lanes, move)
                moved = msgspec.structs.replace(self.record, broker=move.foreign, lanes=lanes)
                self.put(book.put_records([moved]))
            self.keep(move)

    def publish(self) -> None:
        """An event enters, and goes where the plan that it is stamped with has the client."""
        first, event = self.sides[BROKERS[0]], next(self.events)
        self.published.append(event)
        to = first.plans[first.flipped][1]
        if to == first.name:
            first.lane.append(event)
            return
        self.count[to] += 1
        self.sent[to, first.flipped] = self.count[to]
        self.links[to].append((event, first.flipped))

    def arrive(self, name: str) -> None:
        if self.links.get(name):
            event, epoch = self.links[name].pop(0)
            side = self.sides[name]
            assert side.plans[epoch][1] == name, "routed by one plan from the first broker to the last"
            side.lane.append(event)
            side.position += 1

    # ----------------------------------------------------------------------------------- the reader

    def read(self) -> None:
        """Take the next one of the lane."""
        lane = self.sides[self.part.broker].lane
        if self.at >= len(lane):
            return
        self.at += 1
        found, number = lane[self.at - 1], self.part.base + self.at
        assert number > max(self.got, default=0), "numbers go up"
        self.kept = number
        if isinstance(found, LaneEnd):
            self.part = moves.next_lane(self.part, self.at, found)
            self.at = self.part.start
            self.left(found.move)
        else:
            self.got[number] = found

    def left(self, move: str) -> None:
        if self.record.lanes:
            lanes = moves.lanes_left(self.record.lanes, move)
            record = msgspec.structs.replace(self.record, lanes=lanes)
            self.put(self.lead().put_records([record]))

    def come_back(self) -> None:
        """A new process with the number of the last delivery, and nothing else."""
        lanes = self.record.lanes or [Lane(self.record.broker)]
        part = lanes[moves.part_of(lanes, self.kept)]
        self.part, self.at = part, max(part.start, self.kept - part.base)

    def advance(self, name: str) -> None:
        """What the move waits for; the brokers by turns."""
        phase = "" if self.move is None else self.move.phase
        if phase == moves.OFFERED:
            self.answer(True)
        elif phase == moves.REPLICATED:
            self.switch(die=False)
        elif phase == moves.SWITCHING:
            self.arrive(name)
            self.obey(name)
        else:
            self.do_duty(name)

    def settle_all(self, rounds: int = 40) -> None:
        for _ in range(rounds):
            self.lead()
            for name in BROKERS:
                while self.links.get(name):
                    self.arrive(name)
                self.obey(name)
                self.do_duty(name)
            self.switch(die=False)
            self.save()


STEPS = ("publish", "publish", "publish", "arrive", "obey", "duty", "read", "read", "come_back", "offer")
MORE = ("accept", "decline", "switch", "switch_and_die", "die", "late", "replan", *["advance"] * 12)


def lived(seed: int, steps: int, scheme: str) -> World:
    """A world after so many things have happened, more often than not those that a move waits for."""
    rng, world = random.Random(seed), World(scheme)
    for _ in range(steps):
        step = rng.choice(STEPS + MORE)
        broker = rng.choice(BROKERS)
        match step:
            case "arrive":
                world.arrive(broker)
            case "obey":
                world.obey(broker)
            case "duty":
                world.do_duty(broker)
            case "offer":
                world.offer(broker)
            case "accept" | "decline":
                world.answer(step == "accept")
            case "switch" | "switch_and_die":
                world.switch(die=step == "switch_and_die")
            case "late":
                world.now += 20
            case "replan":
                world.replan(scheme)
            case "advance":
                world.advance(broker)
            case _:
                getattr(world, step)()
    return world


@given(st.integers(0, 1 << 30), st.integers(20, 200), st.sampled_from(["mst", "mult", "per-source"]))
@settings(max_examples=150, deadline=None)
def test_whatever_happens_a_client_is_at_one_broker_and_reads_everything_once_and_in_order(
    seed: int, steps: int, scheme: str
) -> None:
    world = lived(seed, steps, scheme)
    world.settle_all()
    world.now += 1000
    world.settle_all()
    assert world.move is None or world.move.phase in ENDS
    book = world.lead()
    assert len(set(book.places_of("c").values())) == 1
    assert {place_in(live.plan) for live in book.live.values()} == {world.record.broker}
    world.publish()
    world.settle_all(rounds=4)
    world.come_back()
    for _ in range(len(world.published) + 20):
        world.read()
    assert list(world.got.values()) == world.published
    assert sorted(world.got) == list(world.got)


def test_what_happens_there_are_moves_in_every_end() -> None:
    """Else the test before would say little."""
    ends = [move.phase for seed in range(40) for move in lived(seed, 200, "mst").ended]
    assert set(ends) == ENDS
    assert ends.count(moves.DONE) > 10


# ------------------------------------------------------------------------------------------- lanes alone


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=6))
def test_every_number_finds_its_lane_again(stays: list[tuple[int, bool]]) -> None:
    """A client goes between two brokers. Whichever number it comes back with, what follows is next."""
    lanes: list[Lane] = []
    lane: dict[str, list[str | None]] = {"a": [], "b": []}
    numbered: list[tuple[int, str | None]] = []
    at = "a"
    for stay, (count, _) in enumerate(stays):
        part = lanes[-1] if lanes else Lane("a")
        for k in range(count):
            lane[at].append(f"{stay}.{k}")
            numbered.append((part.base + len(lane[at]), lane[at][-1]))
        if stay + 1 < len(stays):
            lane[at].append(None)
            numbered.append((part.base + len(lane[at]), None))
            to = "b" if at == "a" else "a"
            move = Move(
                f"m{stay}", "c", at, to, moves.SWITCHED, 0, 0, start=len(lane[to]), end=len(lane[at])
            )
            lanes = moves.lanes_after(lanes, move)
            at = to
    numbers = [number for number, _ in numbered]
    assert numbers == sorted(set(numbers))
    lanes = lanes or [Lane("a")]
    for (number, _), (_, following) in itertools.pairwise(numbered):
        part = lanes[moves.part_of(lanes, number)]
        place = max(part.start, number - part.base)
        assert lane[part.broker][place] == following


def test_parts_that_were_read_are_forgotten_and_those_before_with_them() -> None:
    lanes = [Lane("a", end=3, move="m1"), Lane("b", 4, 0, 2, "m2"), Lane("a", 4, 3)]
    assert moves.lanes_left(lanes, "m2") == lanes[2:]
    assert moves.lanes_left(lanes, "m1") == lanes[1:]
    assert moves.lanes_left(lanes, "m9") == lanes


def test_the_end_of_a_lane_says_where_to_go_on_and_nonsense_is_told() -> None:
    said = LaneEnd("m", "käfer", 7, 3)
    assert said.encode().isascii()
    assert LaneEnd.decode(said.encode()) == said
    with pytest.raises(InputError, match="where to go on"):
        LaneEnd.decode('{"to": 1}')


# ------------------------------------------------------------------------------------------------ phases


def offered(**changed: object) -> Move:
    made = Move("m", "c", "a", "b", moves.OFFERED, 0.0, 30.0, ttl_s=60.0)
    return msgspec.structs.replace(made, **changed)


def test_a_suspended_client_is_not_moved_unless_plans_have_begun() -> None:
    away = ClientView("a", "a", suspended="quota")
    for phase in (moves.OFFERED, moves.ACCEPTED, moves.REPLICATED):
        assert looked(offered(phase=phase), away, 1.0).phase == moves.WITHDRAWN
    assert looked(offered(phase=moves.REPLICATED), ClientView("a", "b", False, "quota"), 1.0).phase == (
        moves.SWITCHING
    )


def test_an_offer_lapses_and_what_was_accepted_is_given_up_in_the_end() -> None:
    here = ClientView("a", "a")
    assert looked(offered(), here, 29.0).phase == moves.OFFERED
    assert looked(offered(), here, 31.0).phase == moves.LAPSED
    assert moves.accepted(offered(), 31.0).phase == moves.OFFERED
    taken = moves.accepted(offered(), 29.0)
    assert looked(taken, here, 29.0 + moves.PATIENCE_S).phase == moves.ACCEPTED
    late = looked(taken, here, 30.0 + moves.PATIENCE_S)
    assert (late.phase, "b did not answer" in late.why) == (moves.WITHDRAWN, True)


def test_plans_are_the_truth_also_over_a_move_that_was_given_up() -> None:
    assert looked(offered(phase=moves.WITHDRAWN), ClientView("a", "b", False), 1.0).phase == moves.SWITCHING
    assert looked(offered(phase=moves.LAPSED), ClientView("a", "b", True), 1.0).phase == moves.SWITCHED
    assert looked(offered(phase=moves.DONE), ClientView("c", "c"), 1.0).phase == moves.DONE


def test_who_does_what() -> None:
    assert duty_of(offered(), "a", 1.0) is Duty.HAND
    assert duty_of(offered(), "b", 1.0) is None
    assert duty_of(offered(phase=moves.ACCEPTED), "b", 1.0) is Duty.REPLICATE
    assert duty_of(offered(phase=moves.SWITCHING), "a", 1.0) is None
    assert duty_of(offered(phase=moves.SWITCHED), "a", 1.0) is Duty.END
    done = offered(phase=moves.DONE, at=10.0)
    assert duty_of(done, "a", 69.0) is Duty.REDIRECT
    assert duty_of(done, "a", 71.0) is None


# -------------------------------------------------------------------------------------------- requests


def rules(**more: object) -> RequestLimits:
    return RequestLimits(frozenset(BROKERS), {}, {}, lambda _: None, **more)  # type: ignore[arg-type]


def test_a_client_that_moves_may_ask_at_both_brokers_and_afterwards_at_the_new_one() -> None:
    held = {"c/s": ClientSubscription(FilterText("x >= 0"))}
    record = ClientRecord("c", BROKERS[1], held)
    new = Request("subscribe", "t", FilterText("x = 2"))
    during = rules(moving={"c": BROKERS[2]})
    for at in BROKERS[1:]:
        asked = ask(record, ForwardedRequest(at, "c", new), during)
        assert asked.problem is None
        assert asked.record.broker == BROKERS[1], "the record follows when the lane at home has ended"
    assert ask(record, ForwardedRequest(BROKERS[0], "c", new), during).problem is not None
    moved = ClientRecord("c", BROKERS[2], held, lanes=[Lane(BROKERS[2], 5)])
    refused = ask(moved, ForwardedRequest(BROKERS[1], "c", new), rules()).problem
    assert refused is not None
    assert (refused.code, refused.broker) == ("moved", BROKERS[2])
    assert ask(moved, ForwardedRequest(BROKERS[2], "c", new), rules()).problem is None


# ------------------------------------------------------------------------------------------------ books


@pytest.mark.parametrize("scheme", ["mst", "mult", "semcast"])
def test_plans_before_a_switch_keep_a_client_where_it_was_whatever_is_asked_meanwhile(scheme: str) -> None:
    world = World(scheme)
    book = world.lead()
    before = book.epochs.wanted
    assert before is not None
    after, writes = book.move({"c": BROKERS[2]})
    world.put([*writes, book.state()])
    record = book.records["c"]
    more = {**record.subscriptions, "c/t": ClientSubscription(FilterText("x = 2"))}
    book.put_records([msgspec.structs.replace(record, subscriptions=more)])
    world.put([*book.revise(["c/t"]), book.state(), Write(client_key("c"), encode(book.records["c"]))])
    for each in (book, Book.load(world.store.__getitem__, [encode(r) for r in book.records.values()], str)):
        assert not each.revise()
        for id_ in ("c/s", "c/t"):
            hosts = {e: live.plan.classes for e, live in each.live.items()}
            where = {e: BROKERS[int(k.broker[k.class_of[id_]])] for e, k in hosts.items()}
            assert where == {before: BROKERS[1], after: BROKERS[2]}
    assert not book.can_roll_back_to(before)


def test_a_plan_made_for_the_old_place_has_the_client_at_the_new_one() -> None:
    world = World("mst")
    book = world.lead()
    book.move({"c": BROKERS[2]})
    epoch, _ = book.propose(first_plan("mst"))
    assert place_in(book.live[epoch].plan) == BROKERS[2]
    assert book.live[epoch].plan.attachments["c"] == BROKERS[2]


def test_a_plan_that_cannot_have_the_client_there_is_refused() -> None:
    # mirror-all leads to subscribers only
    rows = [Subscription("c/s", "c", BROKERS[1], "x >= 0")]
    problem = Problem.of(OVERLAY, Classes.collapse(rows, OVERLAY, {}), Demand.of([]))
    book, _ = Book.first(make_plan("mirror-all", problem), iter(map(str, range(99))).__next__)
    with pytest.raises(PlanError, match="overtaken"):
        book.move({"c": BROKERS[2]})


# ------------------------------------------------------------------------------------------- suggestions


def test_suggestions_are_moves_that_pay_and_summaries_count_every_event_once(tmp_path: Path) -> None:
    """w publishes at v0, c gets it at v1. A cheaper link to v0 is worth a move, a dear one is not."""
    batch = events_to_batch(
        [Event(f"e{k}", "w", attributes={"x": k % 2}, size_bytes=500) for k in range(40)]
    )
    file = tmp_path / "samples-1-1-1.parquet"
    pq.write_table(pa.Table.from_batches([batch]), file)
    (tmp_path / PUBLISHERS).write_text(json.dumps({"w": BROKERS[0]}))
    plan = first_plan("mst")
    for price, pays in ((0.0, True), (1e9, False)):
        access = {
            ("c", BROKERS[1]): 1.0,
            ("c", BROKERS[0]): price,
            ("d", BROKERS[2]): 0.0,
            ("w", BROKERS[0]): 0.0,
        }
        found = suggest(plan, tmp_path, [str(file)], share=0.5, access=access)
        assert [(m.client, m.home, m.foreign) for m in found.moves] == (
            [("c", BROKERS[1], BROKERS[0])] if pays else []
        )
        assert found.cost - found.cost_after == pytest.approx(sum(move.saving for move in found.moves))
        assert (found.cost_after < found.cost) == pays
    by_name = {each.client: each for each in found.clients}
    assert (by_name["w"].published_events, by_name["w"].published_bytes) == (80, 40_000)
    # c wants all of them, d those with x = 1
    assert (by_name["c"].received_events, by_name["d"].received_events) == (80, 40)
    assert by_name["c"].published_events == 0
    # a client that may not be asked is not asked
    cheap = access | {("c", BROKERS[0]): 0.0}
    kept = suggest(plan, tmp_path, [str(file)], access=cheap, may_move=lambda client, _: client != "c")
    assert not kept.moves


# ------------------------------------------------------------------------------------- brokers by hand


class Asking:
    """A client's request, and what it was answered."""

    reply = "inbox"

    def __init__(self) -> None:
        self.told: list[Answer] = []

    async def respond(self, data: bytes) -> None:
        self.told.append(decode(data, Answer))


def porter(name: str, records: dict[str, ClientRecord]) -> Porter:
    async def record(client: str) -> ClientRecord | None:
        return records.get(client)

    async def store() -> Store:
        raise LiveError("away")

    async def tell(passed: ForwardedRequest) -> Answer:
        return Answer(ok=True)

    return Porter(name, "nats://here", None, tell, store, record)  # type: ignore[arg-type]


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("at", ["a", "x"])
def test_who_asks_where_it_was_is_sent_on_though_the_next_move_has_begun(early: bool, at: str) -> None:
    """A client that has not heard that its move is done, when it is asked to move again elsewhere."""
    records = {"c": ClientRecord("c", "b", lanes=[Lane("a"), Lane("b", 4)])}
    second = Move("2", "c", "b", "a", moves.OFFERED, 5.0, 1e12)

    async def scenario() -> list[Answer]:
        asked, here = Asking(), porter(at, records)
        if early:
            await here.ask("c", Request("offer", wait_s=9), asked)  # type: ignore[arg-type]
        await here._heard("moves.c", encode(second))
        if not early:
            told = await here.ask("c", Request("offer", wait_s=9), asked)  # type: ignore[arg-type]
            return [told] if told is not None else []
        return asked.told

    (answer,) = run_to_end(scenario())
    assert answer.error is not None
    assert (answer.error.code, answer.error.broker) == ("moved", "b")


def test_an_offer_is_handed_out_once_where_the_client_is() -> None:
    offer = Move("2", "c", "b", "a", moves.OFFERED, 5.0, 1e12)

    async def scenario() -> tuple[list[Answer], list[Answer]]:
        asked, other, here = Asking(), Asking(), porter("b", {"c": ClientRecord("c", "b")})
        await here.ask("c", Request("offer", wait_s=9), asked)  # type: ignore[arg-type]
        await here.ask("d", Request("offer", wait_s=9), other)  # type: ignore[arg-type]
        await here._heard("moves.c", encode(offer))
        return asked.told, other.told

    told, others = run_to_end(scenario())
    assert [answer.move for answer in told] == [offer]
    assert others == []
