"""The life of plans on the brokers: installed, confirmed, flipped to, drained, retired. Pure.

Owns the decisions of a coordinator. Events go in (a proposal, a broker's report, a lease that lapsed);
`actions()` says what is to be done now. No clock, no socket. Everything is in `to_json`, so that another
coordinator continues where one stopped. Two rules bind the caller:

    save first   when `version` changed, store `to_json()` by compare-and-set before acting;
    again        actions may be lost, repeated and late: they are listed until reports show them done.

An epoch's life. `propose` makes e + 1. When every registered broker holds it, with every change that the
present epoch has, the *turn* goes up by one and brokers are told to flip: the first broker of an event
stamps it with that epoch, and it is routed by it to its end. Other epochs drain and are then retired.
`rollback` is one more turn, to an epoch that is still live.

When an epoch is drained. Brokers are asked in rounds: round r + 1 is announced when every member has
reported with round r. Epoch e, which nobody is told to flip to, is drained when of two successive rounds

    1. the earlier has every member at the present turn,
    2. both say the same of what was sent with e, and
    3. on every link, sent <= committed in the earlier.

Why that is safe. Let t be the moment when the later round was announced. Reports of the earlier were taken
before t, those of the later after it (they carry its number), whatever was delayed or reordered between.
Both counts only grow, so at t every link has: sent(t) <= sent later = sent earlier <= committed earlier <=
committed(t). No event with e is under way at t. None begins after t: a first broker stamps the epoch of its
turn, and by 1 nobody stamps e; a later broker sends with e only in the commit of an event that it got with
e. Hence a report need not be of one moment: what was sent may be read before what was committed. With one
round it must: else an event can pass between the two readings, and nobody has seen it.

Silence. A broker whose lease lapsed (*lost*) routes nothing until it has caught up, so installing and
flipping go on without it; but its lanes may hold events of any epoch, so nothing is retired until it has
come back and reported, or `forget` gives it up. At most three epochs live: then `propose` refuses and
names the brokers that it waits for.

What a broker must keep to:
- Each time it takes its lease it has a new *session*. It routes only while it holds the lease, and only
  once it has carried out all actions addressed to it of one saved state that has its session as registered.
- It flips only upwards in turns, only to an epoch that it holds, and between steps. A step that a crash
  cut in two is finished with the epoch that it began with.
- It reports once it has caught up, from what its log has committed, and after it saw the round. `committed`
  is the position in the lane from a neighbour: of the lane as a whole, or of its last event of that epoch.
  `sent` is never too low, also after a restart and a purge; too high is safe, so a broker that no longer
  knows may name the end of the lane when it started, for every epoch that it holds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

import msgspec

from ramify.errors import InputError, LiveError

__all__ = [
    "MOST_LIVE",
    "Action",
    "Ask",
    "BrokerReport",
    "EpochError",
    "EpochStage",
    "Epochs",
    "Flip",
    "Install",
    "Retire",
]

MOST_LIVE = 3
"""Epochs that a broker may have to hold at once."""


_T = TypeVar("_T")


class EpochError(LiveError):
    """What was asked of the epochs cannot be done now. `waiting` says why, by broker."""

    def __init__(self, reason: str, waiting: Mapping[str, str] | None = None) -> None:
        self.waiting = dict(waiting or {})
        names = "; ".join(f"{broker}: {why}" for broker, why in sorted(self.waiting.items()))
        super().__init__(f"{reason}; waiting for {names}" if names else reason)


class EpochStage(Enum):
    """Where an epoch is in its life."""

    INSTALLING = "installing"
    """Some registered broker does not hold it yet, or it lacks changes that the present epoch has."""
    CONFIRMED = "confirmed"
    """Every registered broker held it; they are flipping to it."""
    FLIPPED = "flipped"
    """Every member stamps events with it."""
    DRAINING = "draining"
    """Another is to be flipped to, or was; its events may be under way."""
    RETIRED = "retired"
    """No event of it is or will be under way; brokers drop it."""


@dataclass(frozen=True, slots=True)
class Install:
    """Hold this revision of an epoch's plan, beside what is held."""

    epoch: int
    plan_id: str
    revision: int
    to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Flip:
    """Stamp events with this epoch, unless a later turn was seen."""

    epoch: int
    turn: int
    to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Retire:
    """Drop an epoch, for good."""

    epoch: int
    to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """Report, with this round."""

    round: int
    to: tuple[str, ...]


Action = Install | Flip | Retire | Ask


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """What a broker holds and has done.

    session    the broker's, see the module
    number     of the report, growing within a session
    installed  (epoch, revision) of every plan it holds
    flipped    the epoch that it stamps events with, and `turn` the turn that told it; 0 and 0 at first
    round      the highest that it had been asked when it took this
    sent       (neighbour, epoch) -> number of the last event of that epoch in the lane to it, or higher
    committed  (neighbour, epoch) -> position in the lane from the neighbour
    """

    broker: str
    session: str
    number: int
    installed: frozenset[tuple[int, int]] = frozenset()
    flipped: int = 0
    turn: int = 0
    round: int = 0
    sent: Mapping[tuple[str, int], int] = field(default_factory=dict)
    committed: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def revision(self, epoch: int) -> int:
        """The latest revision of an epoch that it holds, -1 without any."""
        return max((r for e, r in self.installed if e == epoch), default=-1)

    def to_json(self) -> bytes:
        """For the store; the same bytes for the same report."""
        return msgspec.json.encode(_report_out(self))

    @staticmethod
    def from_json(data: bytes) -> "BrokerReport":
        """Raises `InputError` for what is no report."""
        return _report_in(_decode(data, _Report))


@dataclass(slots=True)
class _Live:
    """An epoch that is not retired. `revision`: the last change that its plan has."""

    plan_id: str
    revision: int


class Epochs:
    """See the module. A call costs O(brokers x live epochs), the end of a round O(links)."""

    def __init__(self) -> None:
        self.version = 0
        """Goes up with every decision: when it has changed, save before acting."""
        self.turn = 0
        self.target: int | None = None
        """The epoch of the present turn; None before the first."""
        self.wanted: int | None = None
        """The epoch to flip to as soon as every registered broker holds it."""
        self.round = 1
        self.revision = 0
        self._last = 0
        self._live: dict[int, _Live] = {}
        # a member's session; None while it is lost
        self._sessions: dict[str, str | None] = {}
        # the latest report of each member, and those that completed the last round
        self._reports: dict[str, BrokerReport] = {}
        self._before: dict[str, BrokerReport] = {}

    # ---------------------------------------------------------------------------------------- what is

    @property
    def live(self) -> tuple[int, ...]:
        """The epochs that are not retired, oldest first."""
        return tuple(sorted(self._live))

    @property
    def members(self) -> frozenset[str]:
        """All brokers that count, also the lost ones."""
        return frozenset(self._sessions)

    @property
    def registered(self) -> frozenset[str]:
        """The brokers whose lease holds."""
        return frozenset(broker for broker, session in self._sessions.items() if session is not None)

    @property
    def lost(self) -> frozenset[str]:
        """The brokers whose lease lapsed."""
        return self.members - self.registered

    def session(self, broker: str) -> str | None:
        """The session under which a broker is registered."""
        return self._sessions.get(broker)

    def state(self, epoch: int) -> EpochStage:
        """Where an epoch is. Raises `EpochError` for one that never was."""
        if not 0 < epoch <= self._last:
            raise EpochError(f"there is no epoch {epoch}: the last one is {self._last}")
        if epoch not in self._live:
            return EpochStage.RETIRED
        if epoch == self.target:
            return EpochStage.FLIPPED if self._all_at_turn() else EpochStage.CONFIRMED
        return EpochStage.INSTALLING if epoch == self.wanted else EpochStage.DRAINING

    def waits_for(self, epoch: int) -> dict[str, str]:
        """The brokers that an epoch waits for at its stage, and why. None once it is flipped or retired."""
        state = self.state(epoch)
        if state in (EpochStage.FLIPPED, EpochStage.RETIRED):
            return {}
        if state is EpochStage.INSTALLING:
            lacking = self._lacking(epoch)
            return dict.fromkeys(lacking, f"does not hold epoch {epoch}.{self._live[epoch].revision}")
        found = dict.fromkeys(self.lost, "its lease has lapsed")
        for broker in self.members - found.keys():
            report = self._reports.get(broker)
            if report is None:
                found[broker] = "has not reported"
            elif report.turn != self.turn:
                found[broker] = f"has not flipped to epoch {self.target}"
        if state is EpochStage.DRAINING:
            found = {**self._undelivered(epoch), **self._silent(), **found}
        return found

    def active_at(self, revision: int) -> tuple[frozenset[str], frozenset[str]]:
        """The members where a change is active, and those where it is not (yet); the lost are among these.

        Active: the broker holds the change in every epoch that events may now be stamped with. Once all
        registered brokers are active, each event published from then on is routed with the change, across
        flips too, since an epoch is flipped to only with all changes that the one before had.
        """
        if not 0 <= revision <= self.revision:
            raise EpochError(f"there is no revision {revision}: the last one is {self.revision}")
        if self.target is None:
            return frozenset(), self.members
        at_turn = all(self._turn_of(broker) == self.turn for broker in self.registered)
        # a broker that is behind may stamp with any epoch of a turn before
        stamped = (self.target,) if at_turn else self.live
        active = frozenset(
            broker
            for broker in self.registered
            if (report := self._reports.get(broker)) is not None
            and all(report.revision(epoch) >= revision for epoch in stamped)
        )
        return active, self.members - active

    # ----------------------------------------------------------------------------------------- events

    def propose(self, plan_id: str, contains: int | None = None) -> int:
        """A new epoch for a plan, to be flipped to when every registered broker holds it.

        `contains` is the last revision whose changes the plan has; without it, all up to now. An epoch
        that was proposed before and not flipped to is given up. Raises `EpochError` when three epochs live,
        with the brokers that they wait for.
        """
        contains = self.revision if contains is None else contains
        if not 0 <= contains <= self.revision:
            raise EpochError(f"there is no revision {contains}: the last one is {self.revision}")
        dropping = self._dropping()
        if len(self._live) + len(dropping) >= MOST_LIVE:
            waiting: dict[str, str] = {}
            for epoch in self.live:
                if self.state(epoch) is EpochStage.DRAINING:
                    waiting |= self.waits_for(epoch)
            waiting |= {b: f"still holds epoch {e}" for e, brokers in dropping.items() for b in brokers}
            epochs = ", ".join(map(str, sorted({*self._live, *dropping})))
            nobody = "" if self._sessions else ", and no broker has registered that could drop one"
            raise EpochError(f"epochs {epochs} live, and no more than {MOST_LIVE} may{nobody}", waiting)
        self._last += 1
        self._live[self._last] = _Live(plan_id, contains)
        self.wanted = self._last
        self._decided()
        return self._last

    def rollback(self, epoch: int) -> None:
        """Flip back to an epoch that is still live. Raises `EpochError` when it is not."""
        if epoch not in self._live:
            raise EpochError(f"epoch {epoch} is not live: propose its plan again")
        self.wanted = epoch
        self._decided()

    def revise(self, epoch: int | None = None) -> int:
        """The number of a change to the plan of one live epoch, or of all of them. See `active_at`.

        An epoch left out cannot be flipped to until it is revised as well.
        """
        if epoch is not None and epoch not in self._live:
            raise EpochError(f"epoch {epoch} is not live: it cannot be changed")
        self.revision += 1
        for each in self._live if epoch is None else (epoch,):
            self._live[each].revision = self.revision
        self._decided()
        return self.revision

    def on_register(self, broker: str, session: str) -> None:
        """A broker has taken its lease. What it held in an earlier session no longer counts."""
        if self._sessions.get(broker) == session:
            return
        self._sessions[broker] = session
        self._reports.pop(broker, None)
        self._decided()

    def on_lost(self, broker: str, session: str | None = None) -> None:
        """A broker's lease lapsed. Ignored when it was that of a session before the present."""
        known = self._sessions.get(broker)
        if known is not None and session in (None, known):
            self._sessions[broker] = None
            self._decided()

    def forget(self, broker: str) -> None:
        """Give up a lost broker and all that is in its lanes: it, its server and the links to it are gone.

        Raises `EpochError` while it is registered.
        """
        if self._sessions.get(broker) is not None:
            raise EpochError(f"broker {broker!r} lives: stop it before it is forgotten")
        for known in (self._sessions, self._reports, self._before):
            known.pop(broker, None)
        self._decided()

    def on_report(self, report: BrokerReport) -> bool:
        """Take a report. False when it is late: of another session, or not after the latest one."""
        if self._sessions.get(report.broker) != report.session:
            return False
        known = self._reports.get(report.broker)
        if known is not None and known.number >= report.number:
            return False
        self._reports[report.broker] = report
        self._advance()
        return True

    # ---------------------------------------------------------------------------------------- actions

    def actions(self) -> list[Action]:
        """Everything that registered brokers have not been seen to have done, in the order to do it."""
        found: list[Action] = []
        for epoch in self.live:
            kept = self._live[epoch]
            if to := self._lacking(epoch):
                found.append(Install(epoch, kept.plan_id, kept.revision, to))
        if self.target is not None:
            to = tuple(sorted(b for b in self.registered if self._turn_of(b) != self.turn))
            if to:
                found.append(Flip(self.target, self.turn, to))
        for epoch, holders in sorted(self._dropping().items()):
            if to := tuple(sorted(self.registered & holders)):
                found.append(Retire(epoch, to))
        if self._draining() and (to := tuple(sorted(self.registered & self._silent().keys()))):
            found.append(Ask(self.round, to))
        return found

    def _decided(self) -> None:
        self.version += 1
        self._advance()

    def _advance(self) -> None:
        self._try_flip()
        self._try_retire()

    def _try_flip(self) -> None:
        wanted, target = self.wanted, self.target
        if wanted is None or wanted == target or not self.registered or self._lacking(wanted):
            return
        if target is not None and self._live[wanted].revision < self._live[target].revision:
            return
        self.turn += 1
        self.target = wanted
        self.version += 1

    def _try_retire(self) -> None:
        """When a round is complete: retire what is drained, and begin the next."""
        draining = self._draining()
        if not draining or not self._sessions or self._silent():
            return
        for epoch in draining:
            if self._is_drained(epoch):
                del self._live[epoch]
        self._before = dict(self._reports)
        self.round += 1
        self.version += 1

    def _is_drained(self, epoch: int) -> bool:
        """The rule of the module, for the round that is complete and the one before."""
        for broker in self.members:
            before = self._before.get(broker)
            if before is None or before.turn != self.turn:
                return False
            if self._sent(before, epoch) != self._sent(self._reports[broker], epoch):
                return False
        return not self._undelivered(epoch, self._before)

    def _undelivered(self, epoch: int, reports: Mapping[str, BrokerReport] | None = None) -> dict[str, str]:
        """The receivers that have not committed all that was sent to them with an epoch."""
        reports = self._reports if reports is None else reports
        found: dict[str, str] = {}
        for sender, report in reports.items():
            for to, number in self._sent(report, epoch).items():
                reader = reports.get(to)
                position = 0 if reader is None else reader.committed.get((sender, epoch), 0)
                if number > position:
                    found[to] = f"has committed {position} of {number} from {sender}"
        return found

    def _sent(self, report: BrokerReport, epoch: int) -> dict[str, int]:
        return {
            to: n for (to, e), n in report.sent.items() if e == epoch and n > 0 and to in self._sessions
        }

    def _draining(self) -> list[int]:
        return [epoch for epoch in self.live if epoch not in (self.target, self.wanted)]

    def _dropping(self) -> dict[int, set[str]]:
        """Retired epochs that members are still known to hold."""
        found: dict[int, set[str]] = {}
        for broker, report in self._reports.items():
            for epoch, _ in report.installed:
                if epoch not in self._live:
                    found.setdefault(epoch, set()).add(broker)
        return found

    def _lacking(self, epoch: int) -> tuple[str, ...]:
        """The registered brokers not known to hold an epoch with all its changes."""
        wanted = self._live[epoch].revision
        reports = self._reports
        return tuple(
            sorted(b for b in self.registered if b not in reports or reports[b].revision(epoch) < wanted)
        )

    def _silent(self) -> dict[str, str]:
        """The members that have not reported with the present round."""
        reports, why = self._reports, f"has not reported in round {self.round}"
        return {b: why for b in self._sessions if b not in reports or reports[b].round < self.round}

    def _turn_of(self, broker: str) -> int:
        report = self._reports.get(broker)
        return -1 if report is None else report.turn

    def _all_at_turn(self) -> bool:
        return all(self._turn_of(broker) == self.turn for broker in self.members)

    # ------------------------------------------------------------------------------------------- JSON

    def to_json(self) -> bytes:
        """All of it; the same bytes for the same state."""
        live = [(e, kept.plan_id, kept.revision) for e, kept in sorted(self._live.items())]
        return msgspec.json.encode(
            _EpochsRecord(
                version=self.version,
                turn=self.turn,
                target=self.target,
                wanted=self.wanted,
                round=self.round,
                revision=self.revision,
                last=self._last,
                live=live,
                sessions=dict(sorted(self._sessions.items())),
                reports=_reports_out(self._reports.values()),
                before=_reports_out(self._before.values()),
            )
        )

    @classmethod
    def from_json(cls, data: bytes) -> "Epochs":
        """The state that was saved. Raises `InputError` for what is none."""
        saved = _decode(data, _EpochsRecord)
        made = cls()
        made._live = {epoch: _Live(plan_id, revision) for epoch, plan_id, revision in saved.live}
        if unknown := {saved.target, saved.wanted} - {None, *made._live}:
            raise InputError(f"saved epochs contradict themselves: {unknown} is in use but not live")
        made.version, made.turn, made.round = saved.version, saved.turn, saved.round
        made.target, made.wanted = saved.target, saved.wanted
        made.revision, made._last = saved.revision, saved.last
        made._sessions = dict(saved.sessions)
        made._reports = {row.broker: _report_in(row) for row in saved.reports}
        made._before = {row.broker: _report_in(row) for row in saved.before}
        return made


class _Report(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    broker: str
    session: str
    number: int
    installed: list[tuple[int, int]]
    flipped: int
    turn: int
    round: int
    sent: list[tuple[str, int, int]]
    committed: list[tuple[str, int, int]]


class _EpochsRecord(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    version: int
    turn: int
    target: int | None
    wanted: int | None
    round: int
    revision: int
    last: int
    live: list[tuple[int, str, int]]
    sessions: dict[str, str | None]
    reports: list[_Report]
    before: list[_Report]


def _report_out(report: BrokerReport) -> _Report:
    return _Report(
        report.broker,
        report.session,
        report.number,
        sorted(report.installed),
        report.flipped,
        report.turn,
        report.round,
        sorted((to, epoch, n) for (to, epoch), n in report.sent.items()),
        sorted((source, epoch, n) for (source, epoch), n in report.committed.items()),
    )


def _reports_out(reports: Iterable[BrokerReport]) -> list[_Report]:
    return [_report_out(report) for report in sorted(reports, key=lambda each: each.broker)]


def _report_in(row: _Report) -> BrokerReport:
    return BrokerReport(
        row.broker,
        row.session,
        row.number,
        frozenset(row.installed),
        row.flipped,
        row.turn,
        row.round,
        {(to, epoch): n for to, epoch, n in row.sent},
        {(source, epoch): n for source, epoch, n in row.committed},
    )


def _decode(data: bytes, type_: type[_T]) -> _T:
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = "a broker's report" if type_ is _Report else "the state of the epochs"
        raise InputError(f"this is not {what}: {error}") from None
