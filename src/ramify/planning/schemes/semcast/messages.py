"""What a revision of a SemCast plan takes in messages between brokers: its joins and leaves, replayed.

Owns the replay. A revision says which gateways a channel got and lost; here they join and leave as the
paper's brokers would, by messages (`join_protocol`), on the trees as they stood before.

Guarantee  The brokers' tables afterwards are the trees of the revision, so that the count is of what
           brokers that keep their trees by themselves send for it. Telling gateways of it is not counted.
Cost       O(brokers + trees of the channels whose gateways changed).
"""

from collections import Counter

import numpy as np

from ramify.planning.plans.lateness import bounds_latency, leg_ms
from ramify.planning.plans.legs import latencies, slowest_but
from ramify.planning.plans.plan import Channel, Plan
from ramify.planning.schemes.semcast.join_protocol import JoinNetwork
from ramify.planning.schemes.semcast.membership import growing_tree, ways_for

__all__ = ["replayed", "tree_messages"]


def tree_messages(before: Plan, after: Plan) -> Counter[str]:
    """How many messages of each kind lead from one revision to the next."""
    return replayed(before, after).counts


def replayed(before: Plan, after: Plan, rng: np.random.Generator | None = None) -> JoinNetwork:
    """Brokers that went from one revision to the next; of channels whose gateways changed alone.

    Messages are delivered in the order they were sent, or in any that `rng` draws.
    """
    ms = latencies(after.overlay)
    ways = ways_for(after)
    network = JoinNetwork(len(after.overlay), ways, ms, rng)
    for c, channel in enumerate(after.channels):
        assert channel.tree is not None
        assert channel.tree.root is not None
        has, had = set(channel.serves.at.tolist()), set[int]()
        if c < len(before.channels):
            had = set(before.channels[c].serves.at.tolist())
            if had == has:
                continue
            network.take_up(c, growing_tree(before, before.channels[c], ways, ms))
        else:
            network.open(c, channel.tree.root)
        for gateway in sorted(had - has):
            network.leave(c, gateway)
        for gateway in sorted(has - had):
            network.join(c, gateway, _within(after, channel, gateway, ms))
    return network


def _within(plan: Plan, channel: Channel, gateway: int, ms: dict[tuple[int, int], float]) -> float | None:
    """How far from the root a gateway may be for the strictest of its classes; None: anywhere."""
    if not bounds_latency(plan):
        return None
    here = channel.serves.classes[channel.serves.at == gateway]
    strictest = float(plan.classes.latency_ms[here].min())
    return None if strictest == np.inf else strictest - slowest_but(leg_ms(plan, channel, ms), gateway)
