"""Several coordinators, each with a share of the attributes: a pure model.

Problem    One coordinator that knows every profile is a bottleneck and a single point of failure.
Idea       Every attribute has an owner. A profile is kept by all owners of its attributes, and so is what
           was sampled of it. A request goes to any one of them, which decides by what it keeps. To
           reorganise, the coordinators put together what they keep, and one of them makes the channels.
Guarantee  Nobody is excluded at any time: a coordinator that does not know a covering channel opens one.
           After a reorganisation the channels are those that a single coordinator would have made of the
           same requests and samples, however attributes are shared.
Cost       A profile is kept once per owner, with a bit per message of a bounded window; a request takes a
           notice to each of its other owners; a reorganisation, what every coordinator keeps, once.
Departures Who decides a request and who is elected is not said: the first owner that is up, and the first
           coordinator that is up. A profile without attributes (everything, or nothing) is kept by all.
           Profiles are put in the order of their ids before channels are made, since coordinators do not
           know in what order others heard of theirs. What a profile matched is forgotten with its last
           subscription.

Reference: O. Papaemmanouil, U. Cetintemel, "SemCast", section 3.2.5.
"""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ramify.content.events.events import AttributeType
from ramify.content.filters.constraints import Value
from ramify.content.filters.filters import Filter
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError
from ramify.network.graphs.overlay import Overlay
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.overlap import SelectivityWindow
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.scheme import Scheme
from ramify.planning.schemes.semcast.membership import Membership, joined, left, ways_for

__all__ = ["MOST_MESSAGES", "Coordinator", "Coordinators"]

MOST_MESSAGES = 10_000
"""The latest sampled messages that coordinators go by, unless told."""


@dataclass(slots=True)
class _Profile:
    """A distinct filter: its number in the window, and how many kept subscriptions have it."""

    number: int
    filter: Filter
    asked: int = 0


@dataclass(slots=True)
class Coordinator:
    """What one keeps: subscriptions with an attribute of its own, and what each of their filters matched.

    `seen` is a window of sampled messages over its profiles, which come and go: `profiles` has their
    numbers, by key.
    """

    attributes: frozenset[str]
    seen: SelectivityWindow
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    filters: dict[str, Filter] = field(default_factory=dict)
    profiles: dict[bytes, _Profile] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)

    def keep(self, row: Subscription, filter_: Filter) -> None:
        """Hear of a subscription."""
        self.forget(row.id)
        self.subscriptions[row.id] = row
        self.filters[row.id] = filter_
        if filter_.key not in self.profiles:
            number = self._free.pop() if self._free else len(self.profiles)
            self.seen.grow(number + 1)
            self.profiles[filter_.key] = _Profile(number, filter_)
        self.profiles[filter_.key].asked += 1

    def forget(self, id_: str) -> None:
        """Hear that it is gone."""
        if self.subscriptions.pop(id_, None) is None:
            return
        key = self.filters.pop(id_).key
        profile = self.profiles[key]
        profile.asked -= 1
        if not profile.asked:
            del self.profiles[key]
            self.seen.forget(profile.number)
            self._free.append(profile.number)

    def sample(self, values: Mapping[str, Value], at_s: float) -> None:
        """Note which of the kept profiles a message matches."""
        matched = sorted(each.number for each in self.profiles.values() if each.filter.holds(values))
        self.seen.add([0, len(matched)], matched, [at_s])

    def matched(self, messages: int) -> list[set[bytes]]:
        """The profiles, by key, that each message of the window matched, the oldest first."""
        bits = self.seen.statistics().bits
        found: list[set[bytes]] = [set() for _ in range(messages)]
        for key, profile in self.profiles.items():
            row = np.unpackbits(bits[profile.number].view(np.uint8), bitorder="little", count=messages)
            for m in np.flatnonzero(row).tolist():
                found[m].add(key)
        return found


class Coordinators:
    """All of them, and the plan in force. `messages` counts what they sent each other, by kind.

    They go by the latest `most_messages` that were sampled; with a half-life, by the recent ones more.
    """

    def __init__(
        self,
        overlay: Overlay,
        schema: Mapping[str, AttributeType],
        shares: Sequence[Collection[str]],
        scheme: Scheme,
        *,
        attachments: Mapping[str, str] | None = None,
        seed: int = 0,
        most_messages: int = MOST_MESSAGES,
        half_life_s: float | None = None,
    ) -> None:
        if not shares:
            raise InputError("no coordinator. Give at least one a share of the attributes.")
        owned = [name for share in shares for name in share]
        twice = [name for name, times in Counter(owned).items() if times > 1]
        if twice:
            raise InputError(f"attribute {twice[0]!r} has two owners. Give it to one.")
        self._overlay, self._schema, self._scheme, self._seed = overlay, schema, scheme, seed
        self._attachments = dict(attachments or {})
        windows = (SelectivityWindow(0, most_rows=most_messages, half_life_s=half_life_s) for _ in shares)
        self.each = tuple(Coordinator(frozenset(s), w) for s, w in zip(shares, windows, strict=True))
        self.messages: Counter[str] = Counter()
        self._decays = half_life_s is not None
        # publisher and size of the messages in the windows, the oldest first
        self._sent: deque[tuple[int, int]] = deque(maxlen=most_messages)
        self._latest_s = 0.0
        self.plan = self._made([], [], None)
        self._ways = ways_for(self.plan)

    def owners(self, filter_: Filter) -> list[int]:
        """Those responsible for a profile. `InputError` for an attribute that nobody owns."""
        known = frozenset().union(*(one.attributes for one in self.each))
        for path in sorted(filter_.paths - known):
            raise InputError(f"nobody owns attribute {path!r}. Give it to a coordinator.")
        if not filter_.paths:
            return list(range(len(self.each)))
        return [i for i, one in enumerate(self.each) if one.attributes & filter_.paths]

    def subscribe(self, row: Subscription, down: Collection[int] = ()) -> Membership:
        """One of the owners that are up decides, by what it keeps; the others are told, or when back."""
        filter_ = row.parse(self._schema)
        owners = self.owners(filter_)
        decider = self._first(owners, down)
        kept = self.each[decider].subscriptions
        among = {self.plan.classes.class_of[id_] for id_ in kept}
        change = joined(self.plan, row, self._ways, among=among)
        for i in owners:
            self.each[i].keep(row, filter_)
        self.messages["request"] += 1
        self.messages["notice"] += len(owners) - 1
        self.plan = change.plan
        return change

    def unsubscribe(self, id_: str, down: Collection[int] = ()) -> Membership:
        """Likewise."""
        holders = [i for i, one in enumerate(self.each) if id_ in one.subscriptions]
        change = left(self.plan, id_)
        self._first(holders, down)
        for i in holders:
            self.each[i].forget(id_)
        self.messages["request"] += 1
        self.messages["notice"] += len(holders) - 1
        self.plan = change.plan
        return change

    def sample(
        self, publisher: int, values: Mapping[str, Value], size_bytes: int = 0, at_s: float | None = None
    ) -> None:
        """A sampled message, published at a broker: every coordinator notes it for its own profiles.

        Without a time it is as old as the one before. `InputError` for times that go back.
        """
        when = self._latest_s if at_s is None else at_s
        for one in self.each:
            one.sample(values, when)
        self._sent.append((publisher, size_bytes))
        self._latest_s = when

    def reorganise(self, down: Collection[int] = ()) -> Plan:
        """Put together what all that are up keep; the elected one makes the channels.

        What only coordinators that are down keep is lost: `InputError` names the first such subscription.
        """
        up = [i for i in range(len(self.each)) if i not in down]
        self._first(up, ())
        rows = {id_: row for i in up for id_, row in self.each[i].subscriptions.items()}
        lost = sorted(self.plan.classes.class_of.keys() - rows.keys())
        if lost:
            raise InputError(
                f"subscription {lost[0]!r} is kept only by coordinators that are down. Wait for one."
            )
        told = [self.each[i].matched(len(self._sent)) for i in up]
        matched = [set[bytes]().union(*parts) for parts in zip(*told, strict=True)]
        # all have seen the same messages at the same times
        weights = self.each[up[0]].seen.statistics().weight[: len(matched)] if self._decays else None
        self.messages["synchronise"] += len(up) - 1
        self.messages["announce"] += len(up) - 1
        self.plan = self._made([rows[id_] for id_ in sorted(rows)], matched, weights)
        return self.plan

    def problem(self) -> Problem:
        """What the plan in force can be checked against: its classes, no demand."""
        return Problem.of(self._overlay, self.plan.classes, Demand.of([]), self._attachments)

    def _made(
        self,
        rows: list[Subscription],
        matched: Sequence[Collection[bytes]],
        weights: npt.NDArray[np.float64] | None,
    ) -> Plan:
        classes = Classes.collapse(rows, self._overlay, self._schema)
        of_filter: dict[bytes, list[int]] = {}
        for k, filter_ in enumerate(classes.filters):
            of_filter.setdefault(filter_.key, []).append(k)
        patterns = [
            (publisher, [k for key in keys for k in of_filter.get(key, ())], 1, size)
            for (publisher, size), keys in zip(self._sent, matched, strict=True)
        ]
        seen = Demand.of(patterns, weights=None if weights is None else weights.tolist())
        problem = Problem.of(self._overlay, classes, seen, self._attachments)
        params = self._scheme.params(**self._scheme.preset)
        return self._scheme.plan(problem, params, np.random.default_rng(self._seed), lambda *_: None)

    @staticmethod
    def _first(choices: list[int], down: Collection[int]) -> int:
        for i in choices:
            if i not in down:
                return i
        raise InputError("no responsible coordinator is up. Wait for one.")
