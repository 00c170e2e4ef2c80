"""Plans put to use: priced and simulated on a log, and held against each other.

Owns `price`, `simulate` and `diff`, and what they give back. Both readings of a log count it by the plan's
own subscriptions; those of the log are not asked for.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ramify.errors import InputError
from ramify.overlay.routing.simulator import SimulationResult, Simulator
from ramify.planning.choosing.diff import PlanDiff
from ramify.planning.choosing.diff import diff as plan_diff
from ramify.planning.choosing.weigh import row_of
from ramify.planning.demand.demand import Demand
from ramify.planning.demand.splits import Split
from ramify.planning.demand.tally import TallySettings
from ramify.planning.plans.plan import Plan
from ramify.planning.pricing.price import Price
from ramify.studies.inputs import AnyPlan, AnyRules, as_plan, as_rules
from ramify.studies.logs import Log, OpenLog
from ramify.studies.rejects import Rejects, several
from ramify.studies.sessions import Spark, session_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LogPrice", "LogSimulation", "diff", "price", "simulate"]


def price(
    plan: AnyPlan,
    log: Log,
    *,
    rules: AnyRules | None = None,
    hours: float | None = None,
    sample: float = 1.0,
    keep: float = 1.0,
    seed: int = 1,
    spark: Spark | None = None,
) -> "LogPrice":
    """Price a plan on every event of a log, where the events are.

    `rules` are judged as in a study: see `LogPrice.broken`. The other parameters are those of `study`.
    Raises `InputError` when the log has no usable event.

    >>> import ramify
    >>> log = ramify.read_log(workload="demo:events=400,subscriptions=20")
    >>> plan = ramify.study(log).compare(["explicit"]).best.plan
    >>> priced = ramify.price(plan, log)
    >>> priced.events, priced.broken
    (400, ())
    """
    from ramify.pipeline.passes.pricing import price_log

    if hours is not None and not hours > 0:
        raise InputError(f"hours = {hours}. Allowed: a number above 0.")
    if not 0 < sample <= 1:
        raise InputError(f"sample = {sample}. Allowed: above 0, at most 1: the share of events in the log.")
    made = as_plan(plan)
    kept = as_rules(rules, made.overlay)
    with (
        _opened(made, log, spark, "pricing the log") as (session, opened),
        price_log(
            session,
            made,
            opened.source,
            attachments=opened.attachments,
            tags=kept.tags(made.classes.schema),
            seconds=None if hours is None else hours * 3600,
            factor=1 / sample,
            split=Split(keep=keep, seed=seed),
        ) as found,
    ):
        rejects, priced = opened.rejects(found.found), found.price
        log.note(rejects, events_alone=True)
    if not priced.volume.events:
        raise InputError("the log has no event to price the plan on. Give another log.")
    return LogPrice(made, priced, row_of(made, priced, rules=kept).broken, rejects)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LogPrice:
    """What a plan costs on a log.

    Attributes
    ----------
    plan        what was priced
    price       all sums and figures
    broken      the rules that it breaks on any event, or on one that may come; each with its name first
    rejected    what of the log could not be used
    """

    plan: Plan
    price: Price
    broken: tuple[str, ...] = ()
    rejected: Rejects = field(default_factory=Rejects)

    @property
    def events(self) -> int:
        """Events that were priced."""
        return self.price.volume.events

    @property
    def messages(self) -> int:
        """Crossings of links by events, all of them."""
        return self.price.message_count

    @property
    def money_per_month(self) -> float | None:
        """Money over 30 days, headers included; None where the log spans no time."""
        return self.price.money_per_month

    @property
    def gap(self) -> float:
        """Cost over what no plan can beat."""
        return self.price.gap

    @property
    def headline(self) -> str:
        """One sentence: what the plan costs."""
        month = self.money_per_month
        cost = f"${self.price.money:,.6f} for them" if month is None else f"${month:,.2f} a month"
        return (
            f"{self.plan.scheme} on {several(self.events, 'event')}: {cost}, {self.gap:.3f} times "
            "what no plan can beat."
        )

    def figures(self) -> dict[str, Any]:
        """All figures as plain values, for JSON."""
        told = {"plan": self.plan.scheme, **self.price.figures(), **self.rejected.figures()}
        return {**told, "broken": list(self.broken)}

    def to_frame(self) -> "pd.DataFrame":
        """A row per link and direction that anything crossed.

        sender, receiver      brokers
        messages              events that crossed
        payload_bytes         bytes of the events themselves
        wire_bytes            the same with headers
        money                 for the bytes on the wire
        """
        return _link_frame(self.plan, self.price.messages, self.price.payload, self.price.wire)

    def __repr__(self) -> str:
        faults = [f"breaks {fault}" for fault in self.broken]
        return "\n".join([self.headline, *faults, *([self.rejected.summary] if self.rejected else [])])


def simulate(
    plan: AnyPlan, log: Log, *, keep: float = 1.0, seed: int = 1, spark: Spark | None = None
) -> "LogSimulation":
    """Send the events of a log through the routers of a plan, in virtual time, and count what happens.

    Equal events are sent once and counted as many. What is counted equals what `price` says.

    >>> import ramify
    >>> log = ramify.read_log(workload="demo:events=400,subscriptions=20")
    >>> plan = ramify.study(log).compare(["explicit"]).best.plan
    >>> ramify.simulate(plan, log).messages == ramify.price(plan, log).messages
    True
    """
    from ramify.pipeline.passes.passes import reckoned

    made = as_plan(plan)
    split = Split(keep=keep, seed=seed)
    with _opened(made, log, spark, "reading the log") as (session, opened):
        counting = TallySettings.of(
            made.classes, made.overlay, opened.attachments, grid=made.grid, split=split
        )
        with reckoned(session, opened.source, made.classes.filters, counting) as found:
            rejects, demand = opened.rejects(found), found.windows().whole
            log.note(rejects, events_alone=True)
    if not demand.events:
        raise InputError("the log has no event to simulate. Give another log.")
    return LogSimulation(made, demand, Simulator(made).simulate_demand(demand), rejects)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LogSimulation:
    """What routers did with the events of a log.

    Attributes
    ----------
    plan        what they routed by
    demand      the events, as distinct patterns with counts
    result      everything that was counted
    rejected    what of the log could not be used
    """

    plan: Plan
    demand: Demand
    result: SimulationResult
    rejected: Rejects

    @property
    def events(self) -> int:
        """Events that were sent."""
        return self.demand.events

    @property
    def messages(self) -> int:
        """Crossings of links by events, all of them."""
        return int(self.result.messages.sum())

    @property
    def deliveries(self) -> int:
        """Events handed to subscriptions."""
        return sum(self.result.delivered.values())

    @property
    def money(self) -> float:
        """Money for the bytes on the wire."""
        return float((self.result.wire * self.plan.overlay.price).sum()) / 1e9

    def to_frame(self) -> "pd.DataFrame":
        """A row per link and direction that anything crossed: the columns of `LogPrice.to_frame`."""
        return _link_frame(self.plan, self.result.messages, self.result.payload, self.result.wire)

    def __repr__(self) -> str:
        said = (
            f"{self.plan.scheme}: {several(self.events, 'event')}, {several(self.messages, 'message')} "
            f"over links, {self.deliveries:,} deliveries, ${self.money:,.6f}"
        )
        return f"{said}\n{self.rejected.summary}" if self.rejected else said


def diff(old: AnyPlan, new: AnyPlan) -> PlanDiff:
    """What leads from one plan to another: channels, tree links, subscriptions, clients. False if nothing.

    >>> import ramify
    >>> found = ramify.study(ramify.read_log(workload="demo:events=400,subscriptions=20"))
    >>> found = found.compare(["mst", "explicit"])
    >>> bool(ramify.diff(found["mst"].plan, found["explicit"].plan))
    True
    >>> print(ramify.diff(found.best.plan, found.best.plan))
    no difference
    """
    return plan_diff(as_plan(old), as_plan(new))


@contextmanager
def _opened(plan: Plan, log: Log, spark: Spark | None, what: str) -> Iterator[tuple[Any, OpenLog]]:
    """A session and the log in it, read as the plan's filters ask."""
    from ramify.pipeline.session.failures import doing

    if not isinstance(log, Log):
        raise InputError(f"this needs a log, not {type(log).__name__}. Make one with read_log.")
    with session_of(log.spark if spark is None else spark) as session, doing(what):
        yield session, log.open_for(session, plan)


def _link_frame(plan: Plan, messages: Any, payload: Any, wire: Any) -> "pd.DataFrame":
    import pandas as pd

    overlay = plan.overlay
    rows: list[Mapping[str, Any]] = []
    for link, ends in enumerate(overlay.ends.tolist()):
        for way, (sender, receiver) in enumerate((ends, ends[::-1])):
            if messages[link, way]:
                rows.append(
                    {
                        "sender": overlay.brokers[sender],
                        "receiver": overlay.brokers[receiver],
                        "messages": int(messages[link, way]),
                        "payload_bytes": int(payload[link, way]),
                        "wire_bytes": int(wire[link, way]),
                        "money": float(overlay.price[link, way]) * int(wire[link, way]) / 1e9,
                    }
                )
    return pd.DataFrame(
        rows, columns=["sender", "receiver", "messages", "payload_bytes", "wire_bytes", "money"]
    )
