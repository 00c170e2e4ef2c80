"""SemCast's hooks: how subscriptions come and go on its running plans (`membership`), as changes of a plan.

Owns the way from a membership to the growth that every broker makes alike. A newcomer joins the channels of
a hierarchy that covers it, or gets a channel of its own.
"""

from collections.abc import Sequence

from ramify.content.filters.subscriptions import Subscription
from ramify.planning.plans.growth import NO_GROWTH, Growth, OpenedChannel, terms
from ramify.planning.plans.plan import Holds, Plan
from ramify.planning.schemes.scheme import Hooks, PlanEntry
from ramify.planning.schemes.semcast.membership import joined, late_in_class, left
from ramify.planning.schemes.semcast.messages import tree_messages

__all__ = ["HOOKS", "enter", "leave"]


def enter(plan: Plan, subscription: Subscription) -> PlanEntry:
    """How a subscription joins: see `membership.joined`, whose errors it raises."""
    came = joined(plan, subscription)
    k, growth = came.class_id, NO_GROWTH
    if came.opened is not None:
        channel = came.plan.channels[came.opened]
        assert channel.tree is not None
        assert channel.tree.root is not None
        links = tuple((int(u), int(v)) for u, v in channel.tree.links.tolist())
        growth = Growth(opened=(OpenedChannel(channel.name, channel.tree.root, links, k, channel.pruning),))
    elif came.channels:
        growth = Growth(like=(k, _beside(came.plan, came.reworded, k)), grown=tuple(came.added.items()))
    return PlanEntry(k, came.channels, growth, came.late)


def leave(plan: Plan, id_: str) -> Growth:
    """What the last member of a class takes with it: branches that served it alone, channels likewise."""
    gone = left(plan, id_)
    return Growth(without=gone.class_id, pruned=tuple(gone.removed.items()), closed=gone.vanished)


def _beside(plan: Plan, channels: Sequence[int], k: int) -> int:
    """Another class of the term that class k has joined."""
    for c in channels:
        content = plan.channels[c].admits.content
        assert isinstance(content, Holds)
        for term in terms(content.expression):
            if k in term.classes:
                return next(other for other in term.classes if other != k)
    raise AssertionError("a class that is covered joins a term")


HOOKS = Hooks(join=enter, leave=leave, late=late_in_class, measures=tree_messages)
