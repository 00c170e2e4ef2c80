"""Several coordinators, each with a share of the attributes: a pure model.

Problem    One coordinator that knows every profile is a bottleneck and a single point of failure.
Idea       Every attribute has an owner. A profile is kept by all owners of its attributes, and so is what
           was sampled of it. A request goes to any one of them, which decides by what it keeps. To
           reorganise, the coordinators put together what they keep, and one of them makes the channels.
Guarantee  Nobody is excluded at any time: a coordinator that does not know a covering channel opens one.
           After a reorganisation the channels are those that a single coordinator would have made of the
           same requests and samples, however attributes are shared.
Cost       A profile is kept once per owner; a request takes a notice to each of its other owners; a
           reorganisation, what every coordinator keeps, once.
Departures Who decides a request and who is elected is not said: the first owner that is up, and the first
           coordinator that is up. A profile without attributes (everything, or nothing) is kept by all.
           Profiles are put in the order of their ids before channels are made, since coordinators do not
           know in what order others heard of theirs.

Reference: O. Papaemmanouil, U. Cetintemel, "SemCast", section 3.2.5.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ramify.content.constraints import Value
from ramify.content.events import AttributeType
from ramify.content.filters import Filter
from ramify.content.subscriptions import Subscription
from ramify.errors import InputError
from ramify.network.overlay import Overlay
from ramify.planning.classes import Classes
from ramify.planning.demand import Demand
from ramify.planning.plan import Plan
from ramify.planning.problem import Problem
from ramify.planning.scheme import Scheme
from ramify.planning.semcast.membership import Membership, joined, left, ways_for

__all__ = ["Coordinator", "Coordinators"]


@dataclass(slots=True)
class Coordinator:
    """What one keeps: subscriptions with an attribute of its own, and what each of their filters matched.

    `seen` is message number -> the filters (by key) that it matched.
    """

    attributes: frozenset[str]
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    filters: dict[str, Filter] = field(default_factory=dict)
    seen: dict[int, frozenset[bytes]] = field(default_factory=dict)

    def keep(self, row: Subscription, filter_: Filter) -> None:
        """Hear of a subscription."""
        self.subscriptions[row.id] = row
        self.filters[row.id] = filter_

    def forget(self, id_: str) -> None:
        """Hear that it is gone."""
        self.subscriptions.pop(id_, None)
        self.filters.pop(id_, None)

    def sample(self, number: int, values: Mapping[str, Value]) -> None:
        """Note which of the kept profiles a message matches."""
        self.seen[number] = frozenset(
            filter_.key
            for filter_ in {f.key: f for f in self.filters.values()}.values()
            if filter_.holds(values)
        )


class Coordinators:
    """All of them, and the plan in force. `messages` counts what they sent each other, by kind."""

    def __init__(
        self,
        overlay: Overlay,
        schema: Mapping[str, AttributeType],
        shares: Sequence[Collection[str]],
        scheme: Scheme,
        *,
        attachments: Mapping[str, str] | None = None,
        seed: int = 0,
    ) -> None:
        if not shares:
            raise InputError("no coordinator. Give at least one a share of the attributes.")
        owned = [name for share in shares for name in share]
        twice = [name for name, times in Counter(owned).items() if times > 1]
        if twice:
            raise InputError(f"attribute {twice[0]!r} has two owners. Give it to one.")
        self._overlay, self._schema, self._scheme, self._seed = overlay, schema, scheme, seed
        self._attachments = dict(attachments or {})
        self.each = tuple(Coordinator(frozenset(share)) for share in shares)
        self.messages: Counter[str] = Counter()
        self._sent: list[tuple[int, int]] = []
        self.plan = self._made([], [])
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

    def sample(self, publisher: int, values: Mapping[str, Value], size_bytes: int = 0) -> None:
        """A sampled message, published at a broker: every coordinator notes it for its own profiles."""
        for one in self.each:
            one.sample(len(self._sent), values)
        self._sent.append((publisher, size_bytes))

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
        matched = [
            frozenset().union(*(self.each[i].seen.get(number, frozenset()) for i in up))
            for number in range(len(self._sent))
        ]
        self.messages["synchronise"] += len(up) - 1
        self.messages["announce"] += len(up) - 1
        self.plan = self._made([rows[id_] for id_ in sorted(rows)], matched)
        return self.plan

    def problem(self) -> Problem:
        """What the plan in force can be checked against: its classes, no demand."""
        return Problem.of(self._overlay, self.plan.classes, Demand.of([]), self._attachments)

    def _made(self, rows: list[Subscription], matched: Sequence[frozenset[bytes]]) -> Plan:
        classes = Classes.collapse(rows, self._overlay, self._schema)
        of_filter: dict[bytes, list[int]] = {}
        for k, filter_ in enumerate(classes.filters):
            of_filter.setdefault(filter_.key, []).append(k)
        patterns = [
            (publisher, [k for key in keys for k in of_filter.get(key, ())], 1, size)
            for (publisher, size), keys in zip(self._sent, matched, strict=False)
        ]
        problem = Problem.of(self._overlay, classes, Demand.of(patterns), self._attachments)
        params = self._scheme.params(**self._scheme.preset)
        return self._scheme.plan(problem, params, np.random.default_rng(self._seed), lambda *_: None)

    @staticmethod
    def _first(choices: list[int], down: Collection[int]) -> int:
        for i in choices:
            if i not in down:
                return i
        raise InputError("no responsible coordinator is up. Wait for one.")
