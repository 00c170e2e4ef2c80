"""Matches over a plan's trees, without a coordinator: the matches, what brokers store, what they send.

Owns `make_matches` and what it gives back. The protocol is `overlay.matchmaking`'s; it is simulated here
until all is quiet.
"""

from dataclasses import dataclass
from typing import Any

from ramify.content.filters.subscriptions import BadSubscription, Subscription, read_subscriptions
from ramify.errors import InputError
from ramify.overlay.matchmaking.marking import Marking, mark
from ramify.overlay.matchmaking.over_plan import MatchResult, match_plan
from ramify.planning.plans.plan import Plan
from ramify.studies.inputs import AnyPath, AnyPlan, as_plan
from ramify.workloads.catalog import workload_from
from ramify.workloads.workload import AdvertisementRow

__all__ = ["PlanMatches", "make_matches"]


@dataclass(frozen=True, slots=True, eq=False)
class PlanMatches:
    """Which advertisements meet which subscriptions over a plan.

    Attributes
    ----------
    advertisements   what publishers say that they publish
    result           pairs, what is stored, what was sent
    best             the marking of links that stores least
    rejected         advertisements that cannot be used
    """

    plan: Plan
    advertisements: tuple[AdvertisementRow | Subscription, ...]
    result: MatchResult
    best: Marking
    rejected: tuple[BadSubscription, ...] = ()

    def figures(self) -> dict[str, Any]:
        """All of it, as plain values for JSON."""
        matched, traffic = self.result, self.result.traffic
        return {
            "scheme": self.plan.scheme,
            "advertisements": len(self.advertisements),
            "subscriptions": sum(map(len, self.plan.classes.members)),
            "matchmakings": len(matched.networks),
            "pairs": len(matched.pairs),
            "stored": matched.stored,
            # channels that serve different subscriptions make matches apart: no marking of all is theirs
            "least": self.best.cost if len(matched.networks) == 1 else None,
            "advertisements_everywhere": self.best.loads.pub_everywhere,
            "subscriptions_everywhere": self.best.loads.sub_everywhere,
            "packets": traffic.packets,
            "descriptors_sent": traffic.descriptors,
            "items": dict(sorted(traffic.items.items())),
        }


def make_matches(
    plan: AnyPlan, *, advertisements: AnyPath | None = None, workload: str | None = None, seed: int = 1
) -> PlanMatches:
    """Make matches over the trees of a plan: by the advertisements in a file, or by those of a workload.

    The file is of JSON lines as of subscriptions. `seed` is of the workload, and of the order that packets
    come in. Raises `InputError` where neither or both are given, or the workload has none.
    """
    made = as_plan(plan)
    if (advertisements is None) == (workload is None):
        raise InputError("give either advertisements or a workload (--advertisements, --workload).")
    said: list[AdvertisementRow | Subscription]
    bad: tuple[BadSubscription, ...] = ()
    if workload is not None:
        said = list(workload_from(workload, made.overlay, seed).advertisements)
        if not said:
            raise InputError(f"workload {workload} has no advertisements. Give a file, or use matchmaker.")
    else:
        assert advertisements is not None
        read = read_subscriptions(str(advertisements), made.classes.schema, made.overlay.index)
        said, bad = list(read.good), read.bad
    return PlanMatches(made, tuple(said), match_plan(made, said, seed), mark(made, said)[1], bad)
