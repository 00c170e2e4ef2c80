"""What a coordinator decides: requests to records, records to revisions of the live plans. Pure.

Owns the `Book`, all that a leader knows: the records of clients, the plans of the live epochs, the life of
the epochs. A call changes the book and returns what is to be written, in this order:

    records     what clients want: the truth that plans follow
    changes     one record for each live epoch, or a whole plan for a new one, under keys that are new
    state       what brokers act by; written last, by compare-and-set

So a reader of the store after a crash between two writes finds records that are ahead of the plans, or
keys that nobody refers to; never a plan that is ahead of the records. `Book.load` and `revise` bring the
plans up to the records, and end where the one before would have ended.

The *head* is the newest epoch that is to be flipped to. What it lacks, because its kind of plan cannot take
it, is not active and waits for the next plan. An older epoch may lack more: `missing` waits until nobody
stamps events with that one.

A client that moves to another broker (`moves`) does so with a new epoch: that and all later ones have it
there, those before where it was, whatever is revised meanwhile. The record follows when the older are gone.
"""

import json
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ramify.content.filters.subscriptions import Subscription
from ramify.content.filters.work import WorkAllowance
from ramify.errors import InputError, PlanError
from ramify.memo import is_known, preset
from ramify.network.graphs.files import decode_overlay, encode_overlay
from ramify.network.graphs.overlay import Overlay
from ramify.overlay.control.epochs import Epochs, Flip, Install
from ramify.overlay.control.epochs import EpochStage as Life
from ramify.overlay.control.names import token
from ramify.overlay.control.records import (
    OVERLAY,
    ROUTING,
    STATE,
    ClientRecord,
    ClientSubscription,
    ControlState,
    FilterText,
    LiveEpoch,
    decode,
    encode,
    subscription_of,
)
from ramify.overlay.control.revisions import PlanChange, PlanChanges, recorded_subscription
from ramify.overlay.routing.form import encode_routing
from ramify.planning.choosing.judgement import Bars, faults
from ramify.planning.choosing.revise import add_subscription, delete_subscription, redo, undo
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.files import decode_plan, encoded
from ramify.planning.plans.lateness import TooLateError, refuses
from ramify.planning.plans.plan import Plan
from ramify.planning.pricing.rules import BrokenRule, Rules

__all__ = [
    "MOST_CHANGES",
    "Book",
    "BrokenRulesError",
    "Lack",
    "LivePlan",
    "RevisedPlan",
    "Write",
    "applied",
    "client_key",
    "records_of",
    "revised",
    "spelled",
    "wanted_of",
]


MOST_CHANGES = 256
"""Revisions of an epoch after which its plan is written anew."""

MOST_CHANGES_BYTES = 512 << 10
"""Bytes of one record of changes, but for one that a single change makes longer."""

Matching = Callable[[Plan, Subscription, Rules], tuple[Demand, npt.NDArray[np.bool_]] | None]
"""The present sample as a demand of a plan's classes, and which of its patterns a newcomer matches. Events
are held against the tags of the rules."""

Judge = Callable[[Plan, Demand | None], Sequence[BrokenRule]]
"""The rules that a plan breaks."""


@dataclass(frozen=True, slots=True)
class Write:
    """A value for the store. `large` ones are written in parts."""

    key: str
    value: bytes
    large: bool = False


@dataclass(frozen=True, slots=True)
class Lack:
    """Why a plan does not have a subscription. `replan`: a new plan would. `broken`: the rules for which no
    plan may have it."""

    reason: str
    replan: bool
    broken: tuple[BrokenRule, ...] = ()


UNUSABLE = "rules"
"""The rule that is broken by every new plan while the record of rules cannot be used."""


class BrokenRulesError(PlanError):
    """A plan that is not to be had because it breaks rules; `faults` begin with their names."""

    def __init__(self, plan: Plan, broken: Sequence[BrokenRule]) -> None:
        self.names = tuple(dict.fromkeys(fault.rule for fault in broken))
        super().__init__(f"plan {plan.scheme} breaks rules of the overlay:", map(str, broken))


# ---------------------------------------------------------------------------------------------- plans


@dataclass(frozen=True, slots=True)
class RevisedPlan:
    """A plan brought up to what is wanted, the changes that did it, and what it cannot take."""

    plan: Plan
    changes: list[PlanChange]
    lacks: dict[str, Lack]
    demand: Demand | None


def revised(
    plan: Plan,
    wanted: Mapping[str, Subscription],
    touched: Iterable[str] | None = None,
    demand: Demand | None = None,
    matching: Callable[[Plan, Subscription], tuple[Demand, npt.NDArray[np.bool_]] | None] | None = None,
    judge: Judge | None = None,
    bars: Bars | None = None,
) -> RevisedPlan:
    """The plan with exactly the wanted subscriptions, of those that were touched, or of all.

    What a plan of its kind cannot take, what would make it break a rule that it kept, and what the rules
    bar from every plan is left out and named. Applying `changes` to the plan (`applied`) gives the same
    plan. Costs O(classes) for each change, and O(subscriptions) once when all are compared.
    """
    ids = sorted({*wanted, *plan.classes.class_of} if touched is None else set(touched))
    members = {row.id: row for row in _members(plan, None if touched is None else ids)}
    changes: list[PlanChange] = []
    lacks: dict[str, Lack] = {}
    coming: list[Subscription] = []
    vacant: list[int] = []
    for id_ in ids:
        row, k = wanted.get(id_), plan.classes.class_of.get(id_)
        if row is not None and bars is not None and (barred := bars.against(row, plan)):
            lacks[id_] = Lack("; ".join(map(str, barred)), False, barred)
            row = None
        if k is not None and (row is None or not _is_same(plan, k, members[id_], row)):
            left = delete_subscription(plan, id_)
            plan = left.plan
            changes.append(PlanChange(removed=id_, growth=left.growth))
            if plan.classes.vacant[k]:
                vacant.append(k)
            k = None
        if row is not None and k is None:
            coming.append(row)
    if demand is not None:
        demand = demand.without_class(*vacant)
    broken = set() if judge is None or not coming else {fault.rule for fault in judge(plan, demand)}
    broken -= {UNUSABLE}
    for row in coming:
        sample = None if matching is None else matching(plan, row)
        given, matched = (demand, None) if sample is None else sample
        try:
            given = Demand.of([]) if given is None else given
            with WorkAllowance():
                joined = add_subscription(plan, row, given, matched)
        except InputError as error:
            lacks[row.id] = Lack(str(error), isinstance(error, PlanError))
            continue
        if judge is not None:
            now = judge(joined.plan, joined.follow(given, matched))
            if more := [str(fault) for fault in now if fault.rule not in broken]:
                lacks[row.id] = Lack(f"with {row.id} plan {plan.scheme} breaks {'; '.join(more)}", True)
                continue
        plan = joined.plan
        made = PlanChange(
            json.loads(row.to_json()), joined.class_id, list(joined.channels), growth=joined.growth
        )
        changes.append(made)
    return RevisedPlan(plan, changes, lacks, demand)


def applied(plan: Plan, changes: Iterable[PlanChange]) -> Plan:
    """The plan after changes that a coordinator recorded. Raises `InputError` for those of another plan.

    Parses no filter, so that a leader with thousands of hard ones begins at once.
    """
    for change in changes:
        if change.subscription is None:
            plan = undo(plan, change.removed, change.growth)
            continue
        row = recorded_subscription(change.subscription)
        plan = redo(plan, row, change.class_id, change.channels, change.growth)
    return plan


def _members(plan: Plan, ids: Sequence[str] | None) -> Iterable[Subscription]:
    """The members of the classes of these subscriptions, or of all."""
    known = plan.classes.class_of
    held = range(len(plan.classes)) if ids is None else sorted({known[id_] for id_ in ids if id_ in known})
    return (row for k in held for row in plan.classes.members[k])


def _is_same(plan: Plan, k: int, row: Subscription, wanted: Subscription) -> bool:
    """Whether a member of class k is what is wanted. Filters are parsed only where spelled apart."""
    if (row.client, row.broker, row.latency_ms) != (wanted.client, wanted.broker, wanted.latency_ms):
        return False
    spelled = plan.classes.spelled[k]
    if _spelling(spelled) == _spelling(wanted):
        return True
    schema = plan.classes.schema
    return spelled.parse(schema).key == wanted.parse(schema).key


def _spelling(row: Subscription) -> tuple[Any, ...]:
    return row.sql, _object(row.pattern), row.keywords, _object(row.sigma)


def _object(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _tidied(plan: Plan, like: Plan | None = None) -> Plan:
    """The plan as one that was read has it: a class is spelled by its first member.

    Filters that are known, or that another plan spells alike, are not parsed again: of 100,000 that would
    take half a minute.
    """
    before = plan.classes
    rows = tuple(m[0] if m else row for m, row in zip(before.members, before.spelled, strict=True))
    tidy = all(row is spelled for row, spelled in zip(rows, before.spelled, strict=True))
    if tidy and is_known(before, "filters"):
        return plan
    classes = before if tidy else replace(before, spelled=rows)
    known = before if is_known(before, "filters") else None if like is None else like.classes
    if known is not None and is_known(known, "filters"):
        same = [_spelling(a) == _spelling(b) for a, b in zip(rows, known.spelled, strict=False)]
        parsed = (
            known.filters[k] if k < len(same) and (same[k] or known is before) else row.parse(before.schema)
            for k, row in enumerate(rows)
        )
        preset(classes, filters=tuple(parsed))
    return plan if tidy else replace(plan, classes=classes)


# -------------------------------------------------------------------------------------------- records


def client_key(client: str) -> str:
    """Where a client's record stands."""
    return f"clients.{token(client)}"


def spelled(row: Subscription) -> FilterText:
    """A subscription's filter as records have it."""
    words: Any = row.keywords
    if words is not None:
        words = [list(word) if isinstance(word, tuple) else word for word in words]
    return FilterText(row.sql, _object(row.pattern), words, _object(row.sigma))


def records_of(plan: Plan) -> dict[str, ClientRecord]:
    """The records that ask for what a plan serves, by client. Raises `InputError` for a client at two
    brokers: it has one lane."""
    found: dict[str, ClientRecord] = {}
    for row in (row for members in plan.classes.members for row in members):
        known = found.setdefault(row.client, ClientRecord(row.client, row.broker, {}, {}))
        if known.broker != row.broker:
            raise InputError(
                f"client {row.client!r} subscribes at {known.broker!r} and at {row.broker!r}. "
                "A live client is attached to one broker: give it another name at the other."
            )
        known.subscriptions[row.id] = ClientSubscription(spelled(row), latency_ms=row.latency_ms)
    return found


def wanted_of(record: ClientRecord, at: str | None = None) -> dict[str, Subscription]:
    """The subscriptions of a client that count, at its broker or another."""
    return {
        id_: subscription_of(record.client, at or record.broker, id_, held.filter, held.latency_ms)
        for id_, held in record.subscriptions.items()
        if not held.suspended
    }


# ----------------------------------------------------------------------------------------------- book


@dataclass(slots=True)
class LivePlan:
    """An epoch's plan as its last revision has it, and where that comes from (`LiveEpoch`)."""

    plan: Plan
    plan_key: str
    base: int
    changes: list[tuple[int, str]] = field(default_factory=list)
    lacks: dict[str, Lack] = field(default_factory=dict)
    demand: Demand | None = None
    at: Mapping[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """All that the store has of it."""
        return [self.plan_key, f"{self.plan_key}.{ROUTING}", *(key for _, key in self.changes)]


def _plan_writes(key: str, plan: Plan) -> list[Write]:
    """A plan, and what brokers read in its stead: its routing form, which saves them compiling it."""
    form = Write(f"{key}.{ROUTING}", encode_routing(plan), large=True)
    return [form, Write(key, encoded(plan), large=True)]


def _parts(changes: Sequence[PlanChange]) -> list[list[PlanChange]]:
    """Changes cut so that a server takes each part as one value; one part where there are none."""
    parts: list[list[PlanChange]] = [[]]
    size = 0
    for change in changes:
        own = len(encode(change))
        if parts[-1] and size + own > MOST_CHANGES_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(change)
        size += own
    return parts


class Book:
    """See the module. `fresh` gives names that were never used, for keys."""

    def __init__(self, overlay: Overlay, fresh: Callable[[], str]) -> None:
        self.overlay = overlay
        self.epochs = Epochs()
        self.records: dict[str, ClientRecord] = {}
        self.wanted: dict[str, Subscription] = {}
        self.owner: dict[str, str] = {}
        """The client of each subscription, also of those that do not count."""
        self.live: dict[int, LivePlan] = {}
        self.matching: Matching | None = None
        self.rules = Rules()
        """What every plan must keep."""
        self.unusable = ""
        """Why the record of rules cannot be used; until it can, no plan is installed and nobody joins."""
        self.dropped: list[str] = []
        """Keys that the next saved state no longer refers to."""
        self.blocked: dict[str, str] = {}
        """The brokers that a plan, made because the head lacked something, waits for, and why."""
        self._fresh = fresh

    @classmethod
    def first(
        cls, plan: Plan, fresh: Callable[[], str], rules: Rules | None = None
    ) -> tuple["Book", list[Write]]:
        """The book of a new overlay with its plan as the first epoch, and all that is to be written.

        Raises `BrokenRulesError` for a plan that breaks rules.
        """
        made = cls(plan.overlay, fresh)
        made.rules = rules or Rules()
        if broken := made.faults(plan, None):
            raise BrokenRulesError(plan, broken)
        writes = made.put_records(records_of(plan).values())
        writes.append(Write(OVERLAY, encode_overlay(plan.overlay), large=True))
        _, more = made.propose(plan)
        return made, [*writes, *more, made.state()]

    @classmethod
    def load(
        cls, read: Callable[[str], bytes], clients: Iterable[bytes], fresh: Callable[[], str]
    ) -> "Book":
        """The book that a store holds. `read` gives the value of a key that the state refers to.

        Call `revise` next: its writer may have stopped between records and plans.
        """
        made = cls(decode_overlay(read(OVERLAY)), fresh)
        for value in clients:
            made.put_records([decode(value, ClientRecord)])
        state = decode(read(STATE), ControlState)
        made.epochs = Epochs.from_json(bytes(state.epochs))
        for epoch in state.live:
            plan = decode_plan(read(epoch.plan_key))
            for _, key in epoch.changes:
                plan = applied(plan, decode(read(key), PlanChanges).changes)
            live = LivePlan(plan, epoch.plan_key, epoch.base, list(epoch.changes), at=dict(epoch.at))
            made.live[epoch.epoch] = live
        return made

    @property
    def head(self) -> LivePlan:
        """The plan to be: see the module."""
        wanted = self.epochs.wanted
        if wanted is None:
            raise InputError("no plan has been proposed yet: propose one first")
        return self.live[wanted]

    def put_records(self, records: Iterable[ClientRecord]) -> list[Write]:
        """Take over what clients want now. Plans follow with `revise`."""
        writes: list[Write] = []
        for record in records:
            before = self.records.get(record.client)
            for id_ in before.subscriptions if before is not None else ():
                self.wanted.pop(id_, None)
                self.owner.pop(id_, None)
            self.records[record.client] = record
            self.wanted |= wanted_of(record)
            self.owner |= dict.fromkeys(record.subscriptions, record.client)
            writes.append(Write(client_key(record.client), encode(record)))
        return writes

    def revise(self, touched: Iterable[str] | None = None) -> list[Write]:
        """Bring every live plan up to what is wanted, as one revision; nothing when all are."""
        ids = None if touched is None else list(touched)
        known, rules = self.matching, self.rules
        sampled = None if known is None else lambda plan, row: known(plan, row, rules)
        judge = self.faults if rules or self.unusable else None
        found = {
            epoch: revised(
                live.plan, self.wanted_at(live.at), ids, live.demand, sampled, judge, self.bars(live.plan)
            )
            for epoch, live in self.live.items()
        }
        for epoch, made in found.items():
            lacks = self.live[epoch].lacks
            for id_ in list(lacks) if ids is None else ids:
                lacks.pop(id_, None)
            lacks |= made.lacks
        if not any(made.changes for made in found.values()):
            return []
        revision = self.epochs.revise()
        writes: list[Write] = []
        for epoch, made in found.items():
            live = self.live[epoch]
            live.plan, live.demand = made.plan, made.demand
            for part in _parts(made.changes):
                key = f"changes.{self._fresh()}"
                live.changes.append((revision, key))
                writes.append(Write(key, encode(PlanChanges(epoch, revision, part))))
        return writes

    def propose(self, plan: Plan, demand: Demand | None = None) -> tuple[int, list[Write]]:
        """A new epoch for a plan, brought up to what is wanted. Raises `EpochError` while three live, and
        `BrokenRulesError` for a plan that breaks rules.

        The plan must pass `check`; and it must be able to take all that the head has, else `PlanError`.
        What both lack waits for the plan after: were it refused, plans could be overtaken for ever. Clients
        are where the head has them, also in a plan that was made when they were elsewhere.
        """
        at = {} if self.epochs.wanted is None else self.head.at
        # a newcomer that the rules keep out stays out; a move is judged as a whole
        return self._propose(plan, demand, at, judge=self.faults if self.rules or self.unusable else None)

    def move(
        self, to: Mapping[str, str], plan: Plan | None = None, demand: Demand | None = None
    ) -> tuple[int, list[Write]]:
        """As `propose`, with clients at other brokers: the head's plan but for them, or the one given.

        Rules that the head breaks already do not hold a client back.
        """
        head = self.head
        broken = frozenset(fault.rule for fault in self.faults(head.plan, head.demand)) - {UNUSABLE}
        demand = head.demand if plan is None else demand
        return self._propose(plan or head.plan, demand, {**head.at, **to}, broken)

    def faults(self, plan: Plan, demand: Demand | None) -> list[BrokenRule]:
        """The rules that a plan breaks, as far as they can be judged (`planning.choosing.judgement`).

        Nothing is known of rates where a demand does not span a time.
        """
        rules = self.rules
        if self.unusable:
            return [BrokenRule(UNUSABLE, f"their record cannot be used: {self.unusable}")]
        if demand is None or len(rules.residency) > demand.tag_filters:
            return faults(plan, None, rules)
        return faults(plan, demand, rules if demand.seconds else Rules(residency=rules.residency))

    def bars(self, plan: Plan) -> Bars | None:
        """What the residency rules bar from plans for these clients; None without such rules."""
        return Bars.of(plan, self.rules) if self.rules.residency else None

    def served_at(self, at: Mapping[str, str]) -> dict[str, Subscription]:
        """As `wanted_at`, without what the rules bar from every plan."""
        plan, wanted = self.with_clients_at(self.head.plan, at), self.wanted_at(at)
        bars = self.bars(plan)
        if bars is None:
            return dict(wanted)
        return {id_: row for id_, row in wanted.items() if not bars.against(row, plan)}

    def obey(self, rules: Rules, unusable: str = "") -> None:
        """Take other rules; or none, where their record cannot be used. Call `revise` next.

        What was counted with the tags of the rules before is forgotten.
        """
        self.unusable = unusable
        if unusable:
            return
        if rules != self.rules:
            for live in self.live.values():
                live.demand = None
        self.rules = rules

    def _propose(
        self,
        plan: Plan,
        demand: Demand | None,
        at: Mapping[str, str],
        known: frozenset[str] = frozenset(),
        judge: Judge | None = None,
    ) -> tuple[int, list[Write]]:
        placed = self.with_clients_at(plan, at)
        made = revised(placed, self.wanted_at(at), demand=demand, judge=judge, bars=self.bars(placed))
        head = None if self.epochs.wanted is None else self.head
        waiting = {} if head is None else head.lacks
        moved = {
            id_ for client in at if client in self.records for id_ in self.records[client].subscriptions
        }
        coming = sorted(moved & made.lacks.keys() - waiting.keys())
        if barred := [fault for id_ in coming for fault in made.lacks[id_].broken]:
            raise BrokenRulesError(made.plan, barred)
        if lost := [
            lack.reason
            for id_, lack in made.lacks.items()
            if (lack.replan or id_ in moved) and id_ not in waiting
        ]:
            raise PlanError(f"plan {plan.scheme} was overtaken by subscriptions:", lost)
        if broken := [each for each in self.faults(made.plan, made.demand) if each.rule not in known]:
            raise BrokenRulesError(made.plan, broken)
        like = None if head is None else head.plan
        tidy, name = _tidied(made.plan, like), self._fresh()
        epoch = self.epochs.propose(name)
        live = LivePlan(tidy, f"plans.{name}", self.epochs.revision, [], made.lacks, made.demand, dict(at))
        self.live[epoch] = live
        return epoch, _plan_writes(live.plan_key, tidy)

    def wanted_at(self, at: Mapping[str, str]) -> Mapping[str, Subscription]:
        """What is wanted, with some clients at other brokers than their records say."""
        moved: dict[str, Subscription] = {}
        for client, broker in at.items():
            record = self.records.get(client)
            if record is not None and record.broker != broker:
                moved |= wanted_of(record, broker)
        return ChainMap(moved, self.wanted) if moved else self.wanted

    def with_clients_at(self, plan: Plan, at: Mapping[str, str]) -> Plan:
        """A plan that attaches no client that has moved to a broker where it was before."""
        known, records = plan.attachments, self.records
        moved = {c: record.broker for c in known if (record := records.get(c)) is not None and record.lanes}
        stale = {c: b for c, b in {**moved, **at}.items() if known.get(c, b) != b}
        return replace(plan, attachments={**known, **stale}) if stale else plan

    def places_of(self, client: str) -> dict[int, str]:
        """The broker that each live plan has a client at, for one that has a record."""
        recorded = self.records[client].broker
        return {epoch: live.at.get(client, recorded) for epoch, live in self.live.items()}

    def is_head(self, plan: Plan) -> bool:
        """Whether a plan, with what is wanted now, is the head's."""
        at = self.head.at
        placed = self.with_clients_at(plan, at)
        made = revised(placed, self.wanted_at(at), bars=self.bars(placed))
        return encoded(_tidied(made.plan)) == encoded(_tidied(self.head.plan))

    def long(self) -> list[int]:
        """The epochs with so many changes that `rebase` is due.

        Not before every registered broker holds the last: those would have to read the whole plan. But
        under changes without a pause that moment may not come.
        """
        behind = any(isinstance(action, Install) for action in self.epochs.actions())
        most = 4 * MOST_CHANGES if behind else MOST_CHANGES
        return [epoch for epoch, live in self.live.items() if len(live.changes) >= most]

    def rebase(self, epoch: int) -> list[Write]:
        """Write an epoch's plan anew as it is now, in place of its base and all changes.

        Brokers that hold the revision need not read it. Costs the encoding of the plan.
        """
        live, key = self.live[epoch], f"plans.{self._fresh()}"
        tidy = _tidied(live.plan)
        self.dropped += live.keys
        live.plan, live.plan_key, live.changes = tidy, key, []
        live.base = self.epochs.revision
        return _plan_writes(key, tidy)

    def state(self) -> Write:
        """What brokers act by. Plans of retired epochs go out of the book."""
        for epoch in self.live.keys() - set(self.epochs.live):
            self.dropped += self.live.pop(epoch).keys
        live = [
            LiveEpoch(epoch, each.plan_key, each.base, list(each.changes), self._apart(each))
            for epoch, each in sorted(self.live.items())
        ]
        return Write(STATE, encode(ControlState(msgspec.Raw(self.epochs.to_json()), live)))

    def _apart(self, live: LivePlan) -> dict[str, str]:
        """The clients that a plan has elsewhere than their records; the others need no mention any more."""
        records = self.records
        live.at = {c: b for c, b in live.at.items() if c not in records or records[c].broker != b}
        return dict(live.at)

    def referred(self) -> set[str]:
        """The keys of plans and changes that the state needs."""
        return {key for live in self.live.values() for key in live.keys}

    def missing(self, ids: Sequence[str], revision: int) -> dict[str, str]:
        """Where a change of these subscriptions, made with this revision, is not active yet, and why.

        Lost brokers are not among them: they route nothing until they have caught up.
        """
        epochs, target = self.epochs, self.epochs.target
        everyone = epochs.registered or frozenset({"coordinator"})
        if target is None or not epochs.registered:
            return dict.fromkeys(everyone, "no broker routes by a plan yet: wait until brokers register")
        head = self.head.lacks
        for id_ in ids:
            if id_ in head and self.blocked:
                return dict(self.blocked)
            if id_ in head and head[id_].broken:
                return dict.fromkeys(everyone, f"the rules bar {id_}: {head[id_].reason}")
            if id_ in head:
                return dict.fromkeys(everyone, f"waits for a plan that can take {id_}: {head[id_].reason}")
        lacking = [e for e, live in self.live.items() if any(id_ in live.lacks for id_ in ids)]
        if target in lacking:
            waits = epochs.waits_for(epochs.wanted) if epochs.wanted is not None else {}
            return dict(waits) or dict.fromkeys(everyone, "has not flipped to the new plan")
        if lacking:
            behind = {
                broker for action in epochs.actions() if isinstance(action, Flip) for broker in action.to
            }
            if behind:
                return dict.fromkeys(sorted(behind), f"has not flipped to epoch {target}")
        active, _ = epochs.active_at(revision)
        late = epochs.registered - active
        return dict.fromkeys(sorted(late), f"has not confirmed revision {revision}")

    def too_late(self, row: Subscription) -> str:
        """Why the head refuses a subscription for its latency bound; empty where it does not.

        Costs as much as adding it, on plans that refuse; nothing on others.
        """
        plan = self.head.plan
        if not refuses(plan):
            return ""
        if row.id in plan.classes.class_of:
            plan = delete_subscription(plan, row.id).plan
        try:
            with WorkAllowance():
                add_subscription(plan, row, Demand.of([]))
        except TooLateError as error:
            return error.reason
        except InputError:
            return ""  # for another reason: told where it is added
        return ""

    def can_roll_back_to(self, epoch: int) -> bool:
        """Whether an epoch is live and has everything that is wanted, with clients where they are now."""
        if (
            self.epochs.state(epoch) is Life.RETIRED
            or self.live[epoch].lacks.keys() - self.head.lacks.keys()
        ):
            return False
        return self._apart(self.live[epoch]) == self._apart(self.head)
