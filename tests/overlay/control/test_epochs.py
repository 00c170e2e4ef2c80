"""Epochs on a toy network: brokers with lanes, in any order, with losses, crashes and failovers."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ramify.errors import InputError
from ramify.overlay.control.epochs import (
    MOST_LIVE,
    Action,
    Ask,
    BrokerReport,
    EpochError,
    Epochs,
    EpochStage,
    Flip,
    Install,
    Retire,
)


@dataclass(frozen=True)
class Passing:
    """An event on a lane. `owed`: the last revision that was declared active when it was published."""

    epoch: int
    hops: int
    owed: int


@dataclass
class ToyBroker:
    """What survives a crash comes first."""

    name: str
    published: list[int] = field(default_factory=list)
    lanes: dict[str, list[Passing]] = field(default_factory=dict)
    floor: dict[str, int] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    session: str | None = None
    ready: bool = False
    installed: dict[int, int] = field(default_factory=dict)
    turn: int = 0
    flipped: int = 0
    round: int = 0
    number: int = 0

    def crash(self) -> None:
        self.lapse()
        # it no longer knows which events were of which epoch, only how far the lanes go
        self.floor = {to: len(lane) for to, lane in self.lanes.items()}
        self.installed = {}
        self.turn = self.flipped = self.round = self.number = 0

    def lapse(self) -> None:
        self.session, self.ready = None, False

    def carry_out(self, action: Action) -> None:
        match action:
            case Install(epoch, _, revision):
                self.installed[epoch] = max(revision, self.installed.get(epoch, 0))
            case Flip(epoch, turn) if turn > self.turn and epoch in self.installed:
                self.flipped, self.turn = epoch, turn
            case Retire(epoch):
                assert epoch != self.flipped, "told to drop the epoch that it stamps"
                self.installed.pop(epoch, None)
            case Ask(round_):
                self.round = max(self.round, round_)


class Toy:
    """The network, the store and the coordinator. Every method is one thing that can happen."""

    def __init__(self, size: int, make: type[Epochs] = Epochs) -> None:
        self.make = make
        self.leader = make()
        self.saved = [self.leader.to_json()]
        self.brokers = {f"b{i}": ToyBroker(f"b{i}") for i in range(size)}
        self.mail: list[tuple[str, Action]] = []
        self.begun: dict[str, BrokerReport] = {}
        self.reports: list[BrokerReport] = []
        self.news: list[tuple[str, str | None]] = []
        self.sessions = self.owed = 0
        self.quick, self.pace = list(self.brokers), 6
        for name in self.brokers:
            self.lease(name)

    # ---------------------------------------------------------------------------------------- brokers

    def publish(self, name: str) -> None:
        self.brokers[name].published.append(self.owed)

    def step(self, name: str, rng: random.Random) -> None:
        broker = self.brokers[name]
        lanes = {n: b.lanes.get(name, []) for n, b in self.brokers.items() if n != name}
        waiting = [n for n, lane in lanes.items() if broker.positions.get(n, 0) < len(lane)]
        inputs = waiting + [""] * bool(broker.published and broker.turn)
        if not broker.ready or not inputs:
            return
        source = rng.choice(inputs)
        if source:
            position = broker.positions[source] = broker.positions.get(source, 0) + 1
            event = lanes[source][position - 1]
        else:
            event = Passing(broker.flipped, rng.choice([0, 1, 2, 16]), broker.published.pop(0))
        held = broker.installed.get(event.epoch)
        assert held is not None, f"{name} got an event of epoch {event.epoch}, which it does not hold"
        assert held >= event.owed, f"{name} routes without change {event.owed}, which was active"
        others = [to for to in self.brokers if to != name]
        # about one onward for each, so that lanes run empty now and then
        for to in rng.sample(others, min(len(others), rng.choice([1] * 9 + [2]))) if event.hops else []:
            broker.lanes.setdefault(to, []).append(Passing(event.epoch, event.hops - 1, event.owed))

    def begin_report(self, name: str) -> None:
        """A report is not taken in one moment: what was sent is read here, what was committed later."""
        broker = self.brokers[name]
        if broker.session is None or not broker.ready:
            return
        broker.number += 1
        sent = {(to, e): n for to, n in broker.floor.items() for e in broker.installed}
        for to, lane in broker.lanes.items():
            for i, event in enumerate(lane, 1):
                sent[to, event.epoch] = max(i, sent.get((to, event.epoch), 0))
        held = frozenset(broker.installed.items())
        self.begun[name] = BrokerReport(
            name, broker.session, broker.number, held, broker.flipped, broker.turn, broker.round, sent
        )

    def end_report(self, name: str) -> None:
        report, broker = self.begun.pop(name, None), self.brokers[name]
        if report is not None and report.session == broker.session:
            known = {epoch for epoch, _ in report.installed}
            committed = {(source, e): n for source, n in broker.positions.items() for e in known}
            self.reports.append(BrokerReport.from_json(replace(report, committed=committed).to_json()))

    def crash(self, name: str) -> None:
        self.brokers[name].crash()

    def lapse(self, name: str) -> None:
        self.brokers[name].lapse()

    def notice(self, name: str) -> None:
        """The store lets the lease go; the coordinator will hear of it."""
        if self.brokers[name].session is None:
            self.news.append((name, None))

    def lease(self, name: str) -> None:
        if self.brokers[name].session is None:
            self.sessions += 1
            # the old lease must have ended before there can be a new one
            self.notice(name)
            self.brokers[name].session = f"s{self.sessions}"
            self.brokers[name].number = 0
            self.news.append((name, f"s{self.sessions}"))

    def catch_up(self, name: str, rng: random.Random) -> None:
        broker = self.brokers[name]
        if broker.session is None or broker.ready:
            return
        states = [Epochs.from_json(data) for data in self.saved[-6:]]
        fitting = [state for state in states if state.session(name) == broker.session]
        if fitting:
            for action in rng.choice(fitting).actions():
                if name in action.to:
                    broker.carry_out(action)
            broker.ready = True

    # ------------------------------------------------------------------------------------ coordinator

    def act(self) -> None:
        data = self.leader.to_json()
        if data != self.saved[-1]:
            self.saved.append(data)
        told = [(name, action) for action in self.leader.actions() for name in action.to]
        self.mail += [entry for entry in told if entry not in self.mail]

    def hear(self) -> None:
        if self.news:
            name, session = self.news.pop(0)
            if session is None:
                self.leader.on_lost(name)
            else:
                self.leader.on_register(name, session)

    def fail_over(self) -> None:
        """What the leader had not saved is gone. The next one sees the leases as they are."""
        self.leader = self.make.from_json(self.saved[-1])
        self.news = [(name, None) for name, b in self.brokers.items() if b.session is None]
        self.news += [(name, b.session) for name, b in self.brokers.items() if b.session is not None]

    def declare(self) -> None:
        """subscribe() returns: remember what is promised from now on."""
        for revision in range(self.owed, self.leader.revision + 1):
            if self.leader.active_at(revision)[1] <= self.leader.lost:
                self.owed = revision

    def propose(self) -> None:
        refused = None
        try:
            self.leader.propose("plan")
        except EpochError as error:
            refused = error.waiting
        if refused is not None and self.leader.members:
            assert refused, "refused without a name"
            assert refused.keys() <= self.leader.members

    # -------------------------------------------------------------------------------------- schedules

    def ordinary(self, rng: random.Random) -> None:
        """One thing of an ordinary day, more often what moves events."""
        name = rng.choice(list(self.brokers))
        happenings: list[Callable[[], None]] = [
            *[lambda: self.step(rng.choice(self.quick), rng)] * self.pace,
            lambda: self.publish(name),
            *[lambda: self.begin_report(name), lambda: self.end_report(name)] * 4,
            *[lambda: self.deliver_report(rng)] * 6,
            *[lambda: self.deliver_mail(rng)] * 6,
            *[self.act, self.hear] * 3,
            *[self.declare, lambda: self.catch_up(name, rng), lambda: self.lease(name)],
        ]
        rng.choice(happenings)()
        if rng.random() < 0.02:
            # some do nothing for a while but talk
            self.quick = rng.sample(list(self.brokers), rng.randint(1, len(self.brokers)))
            self.pace = rng.choice([1, 3, 12])

    def mishap(self, rng: random.Random) -> None:
        name = rng.choice(list(self.brokers))
        happenings: list[Callable[[], None]] = [
            lambda: self.crash(name),
            lambda: self.lapse(name),
            lambda: self.notice(name),
            self.fail_over,
            lambda: self.reports.clear(),
            lambda: self.mail.clear(),
        ]
        rng.choice(happenings)()

    def plan_change(self, rng: random.Random) -> None:
        live = self.leader.live
        happenings: list[Callable[[], object]] = [self.propose, self.propose, self.leader.revise]
        if live:
            happenings += [lambda: self.leader.rollback(rng.choice(live))]
            happenings += [lambda: self.leader.revise(rng.choice(live))]
        rng.choice(happenings)()

    def deliver_report(self, rng: random.Random) -> None:
        if self.reports:
            # late ones too, and some twice
            i = rng.randrange(len(self.reports))
            self.leader.on_report(self.reports[i] if rng.random() < 0.1 else self.reports.pop(i))

    def deliver_mail(self, rng: random.Random) -> None:
        if self.mail:
            i = rng.randrange(len(self.mail))
            name, action = self.mail[i] if rng.random() < 0.1 else self.mail.pop(i)
            # a broker acts on what it is told only in a session, as it reads it from the store
            if name in self.brokers and self.brokers[name].session is not None:
                self.brokers[name].carry_out(action)

    def settle(self, rng: random.Random, rounds: int = 60) -> None:
        """Everyone lives and is fair from now on; events keep coming."""
        self.leader.revise()
        for name in self.brokers:
            self.lease(name)
        for _ in range(rounds):
            while self.news:
                self.hear()
            self.mail.clear()
            self.act()
            while self.mail:
                self.deliver_mail(rng)
            for name in self.brokers:
                self.catch_up(name, rng)
                self.publish(name)
                for _ in range(100):
                    self.step(name, rng)
                self.begin_report(name)
                self.end_report(name)
            while self.reports:
                self.leader.on_report(self.reports.pop(0))
            self.declare()

    def check_settled(self) -> None:
        leader = self.leader
        if not leader.live:
            return
        assert leader.target == leader.wanted
        assert leader.live == (leader.target,), {e: leader.waits_for(e) for e in leader.live}
        assert leader.state(leader.live[0]) is EpochStage.FLIPPED
        for broker in self.brokers.values():
            assert broker.installed == {leader.target: leader.revision}
            assert broker.flipped == leader.target
        assert self.owed == leader.revision
        assert leader.actions() == []


class Network(RuleBasedStateMachine):
    """Invariants are asserted where an event is routed and where a plan is dropped, in the toy."""

    @initialize(size=st.integers(2, 4))
    def begin(self, size: int) -> None:
        self.toy = Toy(size)
        self.rng = random.Random(size)

    @rule(seed=st.integers(0, 2**32), times=st.integers(1, 60))
    def ordinary(self, seed: int, times: int) -> None:
        rng = random.Random(seed)
        for _ in range(times):
            self.toy.ordinary(rng)

    @rule(seed=st.integers(0, 2**32))
    def mishap(self, seed: int) -> None:
        self.toy.mishap(random.Random(seed))

    @rule(seed=st.integers(0, 2**32))
    def plan_change(self, seed: int) -> None:
        self.toy.plan_change(random.Random(seed))

    @rule()
    def act_and_fail_over(self) -> None:
        self.toy.act()
        self.toy.fail_over()

    @precondition(lambda self: len(self.toy.brokers) > 1 and self.toy.leader.lost)
    @rule()
    def forget(self) -> None:
        name = min(self.toy.leader.lost)
        if self.toy.brokers[name].session is None:
            self.toy.leader.forget(name)
            # an operator sees to it that the decision is stored
            self.toy.act()
            del self.toy.brokers[name]
            self.toy.quick = list(self.toy.brokers)
            self.toy.news = [entry for entry in self.toy.news if entry[0] != name]
            for broker in self.toy.brokers.values():
                broker.lanes.pop(name, None)
                broker.positions.pop(name, None)
                broker.floor.pop(name, None)

    @invariant()
    def few_epochs_live(self) -> None:
        if hasattr(self, "toy"):
            assert len(self.toy.leader.live) <= MOST_LIVE

    @invariant()
    def nothing_is_lost_in_json(self) -> None:
        if hasattr(self, "toy"):
            data = self.toy.leader.to_json()
            again = Epochs.from_json(data)
            assert again.to_json() == data
            assert again.actions() == self.toy.leader.actions()

    def teardown(self) -> None:
        if hasattr(self, "toy"):
            self.toy.settle(self.rng)
            self.toy.check_settled()


TestNetwork = Network.TestCase
TestNetwork.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


def day(seed: int, make: type[Epochs], things: int = 1_500) -> None:
    """A day of a network: mostly ordinary, with changes of plan and mishaps."""
    rng = random.Random(seed)
    toy = Toy(rng.randint(2, 4), make)
    for _ in range(things):
        chance = rng.random()
        if chance < 0.004:
            toy.mishap(rng)
        elif chance < 0.014:
            toy.plan_change(rng)
        else:
            toy.ordinary(rng)
    toy.settle(rng)
    toy.check_settled()


class OneRound(Epochs):
    def _is_drained(self, epoch: int) -> bool:
        self._before = dict(self._reports)
        return super()._is_drained(epoch)


class SentUnread(Epochs):
    def _undelivered(self, *_: object) -> dict[str, str]:
        return {}


class SentUnequal(Epochs):
    """The same commits, but what was sent between the rounds is not looked at."""

    def _is_drained(self, epoch: int) -> bool:
        turned = all(b in self._before and self._before[b].turn == self.turn for b in self.members)
        return turned and not self._undelivered(epoch, self._before)


class TurnUnseen(Epochs):
    def _is_drained(self, epoch: int) -> bool:
        kept = self.turn, self._before
        self.turn = 0
        self._before = {
            b: BrokerReport(b, "", 0, sent=r.sent, committed=r.committed) for b, r in kept[1].items()
        }
        try:
            return super()._is_drained(epoch)
        finally:
            self.turn, self._before = kept


class HastyFlip(Epochs):
    def _try_flip(self) -> None:
        if self.wanted not in (None, self.target):
            self.turn, self.target, self.version = self.turn + 1, self.wanted, self.version + 1


BROKEN = [OneRound, SentUnread, SentUnequal, TurnUnseen, HastyFlip]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_the_toy_network_notices_a_broken_rule(broken: type[Epochs]) -> None:
    with pytest.raises(AssertionError, match=r"does not hold|that it stamps"):  # noqa: PT012
        for seed in range(200):
            day(seed, broken)


def obedient(epochs: Epochs, name: str, number: int, **given: object) -> BrokerReport:
    """The report of a broker that has done all it was told."""
    held = {(a.epoch, a.revision) for a in epochs.actions() if isinstance(a, Install)}
    held |= {(e, epochs._live[e].revision) for e in epochs.live}
    fields = {"installed": frozenset(held), "flipped": epochs.target or 0, "turn": epochs.turn, **given}
    return BrokerReport(name, f"{name}-1", number, round=epochs.round, **fields)  # type: ignore[arg-type]


def flipped(*names: str) -> Epochs:
    """Epoch 1 is flipped to everywhere; each broker has reported twice."""
    epochs = Epochs()
    for name in names:
        epochs.on_register(name, f"{name}-1")
    epochs.propose("p1")
    for number in (1, 2):
        for name in names:
            epochs.on_report(obedient(epochs, name, number))
    assert epochs.state(1) is EpochStage.FLIPPED
    return epochs


def test_an_epoch_goes_through_its_states_in_order() -> None:
    epochs = flipped("a", "b")
    assert epochs.propose("p2") == 2
    seen = [(epochs.state(1), epochs.state(2))]
    for number in range(3, 9):
        for name in ("a", "b"):
            epochs.on_report(obedient(epochs, name, number))
            if seen[-1] != (now := (epochs.state(1), epochs.state(2))):
                seen.append(now)
    assert seen == [
        (EpochStage.FLIPPED, EpochStage.INSTALLING),
        (EpochStage.DRAINING, EpochStage.CONFIRMED),
        (EpochStage.DRAINING, EpochStage.FLIPPED),
        (EpochStage.RETIRED, EpochStage.FLIPPED),
    ]


def test_no_broker_is_told_to_flip_before_all_hold_the_plan() -> None:
    epochs = flipped("a", "b")
    epochs.propose("p2")
    assert epochs.actions() == [Install(2, "p2", 0, ("a", "b"))]
    epochs.on_report(obedient(epochs, "a", 3))
    assert epochs.actions() == [Install(2, "p2", 0, ("b",))]
    assert epochs.waits_for(2) == {"b": "does not hold epoch 2.0"}
    epochs.on_report(obedient(epochs, "b", 3))
    assert Flip(2, 2, ("a", "b")) in epochs.actions()


def test_a_lost_broker_stops_no_flip_but_every_retirement_and_is_named() -> None:
    epochs = flipped("a", "b")
    epochs.on_lost("b")
    epochs.propose("p2")
    for number in range(3, 12):
        epochs.on_report(obedient(epochs, "a", number))
    assert epochs.target == 2
    assert epochs.state(1) is EpochStage.DRAINING
    epochs.propose("p3")
    with pytest.raises(EpochError, match=r"epochs 1, 2, 3 live.*b: its lease has lapsed") as refused:
        epochs.propose("p4")
    assert set(refused.value.waiting) >= {"b"}
    with pytest.raises(EpochError, match="lives: stop it"):
        epochs.forget("a")
    epochs.forget("b")
    for number in range(12, 20):
        epochs.on_report(obedient(epochs, "a", number))
    assert epochs.live == (3,)


def test_a_report_taken_before_the_round_does_not_count_for_it() -> None:
    epochs = flipped("a", "b")
    epochs.propose("p2")
    for name in ("a", "b"):
        epochs.on_report(obedient(epochs, name, 3))
    late = [obedient(epochs, "a", number) for number in range(4, 20)]
    for number in range(4, 20):
        epochs.on_report(obedient(epochs, "b", number))
        epochs.on_report(late.pop(0))
        assert epochs.round <= late[0].round + 1 if late else True
    assert epochs.state(1) is EpochStage.DRAINING
    assert Ask(epochs.round, ("a",)) in [replace(a, to=("a",)) for a in epochs.actions()]


def test_a_rollback_is_one_more_turn_and_late_reports_of_the_turn_before_do_not_count() -> None:
    epochs = flipped("a", "b")
    epochs.propose("p2")
    for name in ("a", "b"):
        epochs.on_report(obedient(epochs, name, 3))
    assert (epochs.target, epochs.turn) == (2, 2)
    epochs.rollback(1)
    assert (epochs.target, epochs.turn) == (1, 3)
    # b still stamps 1 from the first turn: it may yet have flipped to 2
    for number in range(4, 12):
        epochs.on_report(obedient(epochs, "a", number))
        epochs.on_report(obedient(epochs, "b", number, flipped=1, turn=1))
    assert epochs.state(2) is EpochStage.DRAINING
    assert epochs.waits_for(2)["b"] == "has not flipped to epoch 1"
    for number in range(12, 18):
        for name in ("a", "b"):
            epochs.on_report(obedient(epochs, name, number))
    assert epochs.live == (1,)
    with pytest.raises(EpochError, match="not live: propose"):
        epochs.rollback(2)


def test_a_change_is_active_where_every_epoch_in_use_has_it() -> None:
    epochs = flipped("a", "b")
    revision = epochs.revise()
    assert epochs.active_at(revision) == (frozenset(), {"a", "b"})
    epochs.on_report(obedient(epochs, "a", 3))
    assert epochs.active_at(revision) == ({"a"}, {"b"})
    epochs.on_lost("b")
    assert epochs.active_at(revision) == ({"a"}, {"b"})
    with pytest.raises(EpochError, match="no revision 2"):
        epochs.active_at(2)


def test_an_epoch_without_the_changes_of_the_present_one_is_not_flipped_to() -> None:
    epochs = flipped("a")
    epochs.revise()
    epochs.propose("p2", contains=0)
    for number in range(3, 8):
        epochs.on_report(obedient(epochs, "a", number))
    assert epochs.state(2) is EpochStage.INSTALLING
    epochs.revise(2)
    epochs.on_report(obedient(epochs, "a", 8))
    assert epochs.target == 2


def test_what_a_broker_held_before_its_session_does_not_count() -> None:
    epochs = flipped("a", "b")
    epochs.propose("p2")
    old = obedient(epochs, "b", 99)
    epochs.on_register("b", "b-2")
    assert not epochs.on_report(old)
    epochs.on_report(obedient(epochs, "a", 3))
    assert epochs.target == 1
    assert epochs.actions()[0] == Install(1, "p1", 0, ("b",))
    epochs.on_lost("b", "b-1")
    assert epochs.registered == {"a", "b"}


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff", b'{"version": "1"}'])
def test_what_is_no_state_or_report_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="this is not"):
        Epochs.from_json(data)
    with pytest.raises(InputError, match="this is not"):
        BrokerReport.from_json(data)
