"""Matchmaking over the trees of any plan: simulated to the end, with what it cost.

A plan's channels make one or several matchmakings. Channels that serve the same and have no root in common
(one per publisher, say) share one; other channels have one each, with the subscriptions that they serve.
Events that enter a channel by a leg are announced where the leg ends.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ramify.content.filters.subscriptions import Subscription
from ramify.errors import PlanError
from ramify.network.trees.tree_kernels import orient
from ramify.network.trees.trees import closed
from ramify.overlay.matchmaking.messages import Descriptor
from ramify.overlay.matchmaking.simulate import MatchNetwork, Traffic, places_of_parents
from ramify.overlay.matchmaking.state import TreePlace
from ramify.planning.plans.plan import Channel, Plan
from ramify.workloads.workload import AdvertisementRow

__all__ = ["MatchResult", "MatchSystem", "match_plan", "systems_of_plan"]


@dataclass(frozen=True, eq=False)
class MatchSystem:
    """Channels that make matches together, and their brokers."""

    channels: tuple[Channel, ...]
    places: tuple[TreePlace, ...]

    def root(self, origin: int) -> int | None:
        """Where the advertisements of a broker are announced; None where no channel admits its events."""
        for channel in self.channels:
            admitted = channel.admits.publishers
            if admitted is None or origin in admitted:
                root = channel.entry.target(origin)
                return root if root in _roots(channel) else None
        return None


@dataclass(frozen=True, eq=False)
class MatchResult:
    """All matchmakings of a plan, at rest."""

    networks: tuple[MatchNetwork, ...]

    @property
    def stored(self) -> int:
        """Descriptors that brokers store for others."""
        return sum(network.stored for network in self.networks)

    @property
    def pairs(self) -> set[tuple[str, str]]:
        """The advertisements and subscriptions that data channels join, by id."""
        return {
            (channel.ad.id, channel.sub.id)
            for network in self.networks
            for broker in network.brokers.values()
            for channels in broker.state.channels.values()
            for channel in channels.values()
        }

    @property
    def traffic(self) -> Traffic:
        """What was sent in all."""
        total = Traffic()
        for network in self.networks:
            total.packets += network.traffic.packets
            total.items += network.traffic.items
            total.descriptors += network.traffic.descriptors
        return total


def match_plan(
    plan: Plan, advertisements: Iterable[AdvertisementRow | Subscription], seed: int = 0
) -> MatchResult:
    """Announce and subscribe everything at once, deliver in a random order, until all is quiet.

    An advertisement may be spelled like a subscription. Raises `PlanError` for a channel without a tree.
    """
    ads: dict[int, list[Descriptor]] = {}
    for row in advertisements:
        at = plan.overlay.index[row.broker]
        spelled = (row.spelling, row.text) if isinstance(row, Subscription) else ("sql", row.sql)
        ads.setdefault(at, []).append(Descriptor(row.id, row.client, *spelled))
    names = plan.overlay.brokers
    networks = []
    for system in systems_of_plan(plan):
        network = MatchNetwork(system.places, plan.classes.schema, seed)
        at_root: dict[int, list[Descriptor]] = {}
        for origin, said in sorted(ads.items()):
            root = system.root(origin)
            if root is not None:
                at_root.setdefault(root, []).extend(said)
        for root, said in sorted(at_root.items()):
            network.advertise(names[root], *said)
        for at, subs in sorted(_subscriptions(plan, system).items()):
            network.subscribe(names[at], *subs)
        network.run()
        networks.append(network)
    return MatchResult(tuple(networks))


def systems_of_plan(plan: Plan) -> list[MatchSystem]:
    """The matchmakings of a plan: see the module. Raises `PlanError` for a channel without a tree."""
    together: list[list[Channel]] = []
    taken: list[set[int]] = []
    for channel in plan.channels:
        roots = _roots(channel)
        for members, used in zip(together, taken, strict=True):
            if members[0].serves == channel.serves and not used & roots:
                members.append(channel)
                used |= roots
                break
        else:
            together.append([channel])
            taken.append(set(roots))
    return [MatchSystem(tuple(members), _places(plan, members)) for members in together]


def _roots(channel: Channel) -> set[int]:
    """The brokers of the tree at which events may enter it."""
    if channel.tree is None:
        raise PlanError("no matches can be made", [f"channel {channel.name} has no tree"])
    on_tree = set(channel.tree.brokers.tolist())
    admitted = channel.admits.publishers
    if channel.entry.targets is None:
        return on_tree if admitted is None else on_tree & admitted
    origins = range(len(channel.entry.targets)) if admitted is None else admitted
    return on_tree & {channel.entry.target(origin) for origin in origins}


def _places(plan: Plan, channels: list[Channel]) -> tuple[TreePlace, ...]:
    names = plan.overlay.brokers
    parents: dict[str, dict[str, str]] = {}
    above = np.empty(len(names), dtype=np.int32)
    for channel in channels:
        assert channel.tree is not None, "_roots has seen to it"
        links = closed(channel.tree.links, np.int32)
        for root in sorted(_roots(channel)):
            orient(links, root, above)
            parents[names[root]] = {names[v]: names[int(above[v])] for v in np.flatnonzero(above >= 0)}
    return tuple(places_of_parents(names, parents, shared=len(channels) == 1))


def _subscriptions(plan: Plan, system: MatchSystem) -> dict[int, list[Descriptor]]:
    """By broker that serves them. One that is served at several brokers is at each."""
    serves = system.channels[0].serves
    entries = sorted(set(zip(serves.at.tolist(), serves.classes.tolist(), strict=True)))
    found: dict[int, list[Descriptor]] = {}
    for at, k in entries:
        found.setdefault(at, []).extend(
            Descriptor(sub.id, sub.client, sub.spelling, sub.text) for sub in plan.classes.members[k]
        )
    return found
