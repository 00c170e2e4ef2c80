"""One plan by hand for every row of the table of schemes: what it costs and does, counted on paper.

Every plan is priced and simulated; both must agree with each other and with the numbers here. Header bytes
are those of `overlay.routing.headers`: TREE and NOTE 4, LEG 5 and one per channel, COPY 5, LIST 5 and one
per destination, CARRIED 4 and its tree; a label adds 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from ramify.content.filters.space import Axis, Grid
from ramify.content.filters.subscriptions import Subscription
from ramify.network.graphs.examples import kyra_figure_4
from ramify.network.graphs.generators import star
from ramify.network.graphs.overlay import Link, Overlay
from ramify.overlay.routing.headers import HeaderKind
from ramify.overlay.routing.simulator import Crossing, SimulationResult, Simulator
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.check import faults
from ramify.planning.plans.plan import (
    Admission,
    All,
    AnyOf,
    Cells,
    Channel,
    ChannelTree,
    Content,
    Entry,
    Everything,
    Holds,
    Match,
    Negation,
    Plan,
    Pruning,
    Serves,
    Some,
    Stamped,
)
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import Price, price
from worlds import SCHEMA

GB = 10**9


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def overlay_of(links: str, price_per_gb: dict[str, float] | None = None) -> Overlay:
    """`"ab bc"`: brokers a, b, c by letter, links a - b and b - c, 1 ms each."""
    pairs = links.split()
    prices = price_per_gb or {}
    made = [Link.symmetric(a, b, prices.get(a + b, 1.0)) for a, b in pairs]
    return Overlay.build(links, sorted(set("".join(pairs))), made)


def classes_at(overlay: Overlay, hosts: Sequence[str]) -> Classes:
    """Class k wants the keyword k, at the k-th host."""
    rows = [Subscription(f"s{k}", f"c{k}", host, keywords=(f"k{k}",)) for k, host in enumerate(hosts)]
    return Classes.collapse(rows, overlay, SCHEMA.attributes)


@dataclass(frozen=True)
class Scene:
    """An overlay with classes, and channels on it spelled by letters."""

    overlay: Overlay
    classes: Classes

    @classmethod
    def of(cls, links: str, hosts: Sequence[str], price_per_gb: dict[str, float] | None = None) -> "Scene":
        overlay = overlay_of(links, price_per_gb)
        return cls(overlay, classes_at(overlay, hosts))

    def at(self, broker: str) -> int:
        return self.overlay.index[broker]

    def tree(self, links: str, root: str | None = None) -> ChannelTree:
        rows = [(self.at(a), self.at(b)) for a, b in links.split()]
        pairs = np.array(rows, dtype=np.int32).reshape(-1, 2)
        return ChannelTree(pairs, None if root is None else self.at(root))

    def channel(
        self,
        content: Content,
        serves: Sequence[int],
        pruning: Pruning,
        tree: ChannelTree | None = None,
        entry: Entry | None = None,
        publishers: str | None = None,
    ) -> Channel:
        allowed = None if publishers is None else frozenset(self.at(broker) for broker in publishers)
        hosts = Serves.at_hosts(serves, self.classes)
        return Channel("c", Admission(content, allowed), hosts, pruning, tree, entry or Entry())

    def to(self, target: str) -> Entry:
        return Entry.to(self.at(target), len(self.overlay))

    def plan(self, *channels: Channel, **parts: object) -> Plan:
        return replace(Plan("hand", self.overlay, self.classes, channels), **parts)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Ran:
    """One event's way, by brokers' names; and everything that was counted."""

    price: Price
    done: SimulationResult
    steps: list[Crossing]

    @property
    def way(self) -> list[str]:
        names = self.price.overlay.brokers
        return [names[step.sender] + ">" + names[step.receiver] for step in self.steps]

    @property
    def messages(self) -> dict[str, int]:
        return named(self.price, self.price.messages)

    @property
    def legs(self) -> dict[str, int]:
        return named(self.price, self.price.leg_messages)

    @property
    def header_bytes(self) -> int:
        return int((self.price.wire - self.price.payload).sum())

    def counts(self) -> tuple[int, int, int, int, int]:
        """deliveries, matchings, waste, broker duplicates, link duplicates."""
        made = self.price
        return made.deliveries, made.matchings, made.waste, made.broker_duplicates, made.link_duplicates


def named(priced: Price, per_link: np.ndarray) -> dict[str, int]:
    names, found = priced.overlay.brokers, {}
    for (a, b), (there, back) in zip(priced.overlay.ends.tolist(), per_link.tolist(), strict=True):
        found |= {names[a] + ">" + names[b]: there, names[b] + ">" + names[a]: back}
    return {way: count for way, count in found.items() if count}


def run(plan: Plan, origin: str, matched: tuple[int, ...], cell: int = -1) -> Ran:
    """Publish one event of 10^9 bytes; what was priced must be what was routed."""
    at = plan.overlay.index[origin]
    demand = Demand.of([(at, matched, 1, GB)], cells=[cell])
    priced = price(plan, demand)
    simulator = Simulator(plan)
    steps = simulator.publish(at, cell, matched, event="e", size=GB)
    done = simulator.result
    for name in ("messages", "payload", "wire", "leg_messages"):
        np.testing.assert_array_equal(getattr(priced, name), getattr(done, name), err_msg=name)
    for name in ("matchings", "broker_duplicates", "link_duplicates", "visits", "waste"):
        assert getattr(priced, name) == getattr(done, name), name
    assert set(done.delivered.values()) <= {1}
    assert priced.undelivered == 0
    assert priced.deliveries == len(matched) == len(done.delivered)
    return Ran(priced, done, steps)


# ------------------------------------------------------------------ unicast, broadcast, trees, hub, mirror

FORK = "ab bc bd"  # a - b, and behind b both c and d


def test_unmerged_unicast_pays_twice_for_two_destinations_behind_one_link() -> None:
    scene = Scene.of(FORK, "cd")
    plan = scene.plan(scene.channel(AnyOf(), [0, 1], Pruning.COPIES))
    ran = run(plan, "a", (0, 1))
    assert ran.messages == {"a>b": 2, "b>c": 1, "b>d": 1}
    # b passes copies on without matching; its second copy is a duplicate there and on the link.
    assert ran.counts() == (2, 3, 1, 1, 1)
    assert ran.header_bytes == 4 * 5
    assert ran.price.cost == 4.0


def test_two_classes_at_one_broker_need_one_copy() -> None:
    scene = Scene.of(FORK, "cc")
    ran = run(scene.plan(scene.channel(AnyOf(), [0, 1], Pruning.COPIES)), "a", (0, 1))
    assert ran.messages == {"a>b": 1, "b>c": 1}
    assert ran.counts() == (2, 2, 1, 0, 0)


def test_unicast_along_a_tree_goes_its_way_and_not_the_shortest() -> None:
    scene = Scene.of("ab bc ac", "c")
    plan = scene.plan(scene.channel(AnyOf(), [0], Pruning.COPIES, scene.tree("ab bc")))
    assert run(plan, "a", (0,)).way == ["a>b", "b>c"]
    assert run(scene.plan(scene.channel(AnyOf(), [0], Pruning.COPIES)), "a", (0,)).way == ["a>c"]


def test_broadcast_floods_what_nobody_wants() -> None:
    scene = Scene.of(FORK, "c")
    plan = scene.plan(scene.channel(Everything(), [0], Pruning.NONE, scene.tree(FORK)))
    ran = run(plan, "d", ())
    assert ran.messages == {"d>b": 1, "b>a": 1, "b>c": 1}
    # d matches for its own clients, c because the channel serves someone there; a and b need not.
    assert ran.counts() == (0, 2, 3, 0, 0)
    assert ran.header_bytes == 3 * 4


def test_a_pruned_tree_goes_only_where_someone_wants_it() -> None:
    scene = Scene.of(FORK, "cd")
    plan = scene.plan(scene.channel(Everything(), [0, 1], Pruning.FILTER, scene.tree(FORK)))
    assert run(plan, "a", ()).counts() == (0, 1, 0, 0, 0)
    one = run(plan, "a", (0,))
    assert one.way == ["a>b", "b>c"]
    assert one.counts() == (1, 3, 1, 0, 0)
    both = run(plan, "a", (0, 1))
    assert both.messages == {"a>b": 1, "b>c": 1, "b>d": 1}
    assert both.counts() == (2, 4, 1, 0, 0)


def test_what_the_publishers_own_broker_wants_crosses_no_link() -> None:
    scene = Scene.of(FORK, "ac")
    plan = scene.plan(scene.channel(AnyOf(), [0, 1], Pruning.FILTER, scene.tree(FORK)))
    ran = run(plan, "a", (0,))
    assert (ran.way, ran.counts()) == ([], (1, 1, 0, 0, 0))


def test_each_publisher_uses_its_own_channel() -> None:
    scene = Scene.of("ab bc ac", "c")
    plan = scene.plan(
        scene.channel(Everything(), [0], Pruning.FILTER, scene.tree("ab ac", "a"), publishers="a"),
        scene.channel(Everything(), [0], Pruning.FILTER, scene.tree("ab bc", "b"), publishers="b"),
        scene.channel(Everything(), [0], Pruning.FILTER, scene.tree("ac bc", "c"), publishers="c"),
    )
    assert run(plan, "a", (0,)).way == ["a>c"]
    assert run(plan, "b", (0,)).way == ["b>c"]
    assert [step.header.channels for step in run(plan, "b", (0,)).steps] == [(1,)]
    assert run(plan, "c", (0,)).way == []


STAR = "ha hb hc"


def test_mirror_all_copies_everything_to_every_site() -> None:
    scene = Scene.of(STAR, "b")
    plan = scene.plan(scene.channel(Everything(), [0], Pruning.NONE, scene.tree(STAR, "h")))
    ran = run(plan, "a", (0,))
    assert ran.messages == {"a>h": 1, "h>b": 1, "h>c": 1}
    assert ran.legs == {}
    assert ran.counts() == (1, 2, 2, 0, 0)


def test_a_hub_takes_a_leg_and_sends_on_from_there() -> None:
    scene = Scene.of(STAR, "bc")
    hub = scene.channel(Everything(), [0, 1], Pruning.FILTER, scene.tree(STAR, "h"), scene.to("h"))
    ran = run(scene.plan(hub), "a", (0,))
    assert ran.messages == {"a>h": 1, "h>b": 1}
    assert ran.legs == {"a>h": 1}
    assert ran.counts() == (1, 3, 1, 0, 0)
    assert ran.header_bytes == 6 + 4
    assert (ran.price.cost, ran.price.cost_without_legs) == (2.0, 1.0)
    # What nobody wants goes to the hub all the same.
    assert run(scene.plan(hub), "a", ()).messages == {"a>h": 1}


def test_a_flooding_hub_sends_the_event_back_to_where_it_came_from() -> None:
    scene = Scene.of(STAR, "b")
    hub = scene.channel(Everything(), [0], Pruning.NONE, scene.tree(STAR, "h"), scene.to("h"))
    ran = run(scene.plan(hub), "a", (0,))
    assert ran.messages == {"a>h": 1, "h>a": 1, "h>b": 1, "h>c": 1}
    assert ran.counts() == (1, 2, 2, 1, 1)


# ------------------------------------------------------------------------------------ majumder: groups


def test_groups_that_share_a_link_send_the_event_over_it_twice() -> None:
    scene = Scene.of(FORK, "cd")
    groups = [scene.channel(AnyOf(), [k], Pruning.FILTER, scene.tree(FORK)) for k in (0, 1)]
    plan = scene.plan(*groups)
    ran = run(plan, "a", (0, 1))
    assert ran.messages == {"a>b": 2, "b>c": 1, "b>d": 1}
    # a once, b for each channel, c and d.
    assert ran.counts() == (2, 5, 1, 1, 1)
    assert ran.header_bytes == 4 * 4
    assert run(plan, "a", (1,)).messages == {"a>b": 1, "b>d": 1}


def test_a_class_that_two_channels_serve_gets_the_event_once() -> None:
    scene = Scene.of(FORK, "c")
    both = [scene.channel(AnyOf(), [0], Pruning.FILTER, scene.tree(FORK)) for _ in range(2)]
    ran = run(scene.plan(*both), "a", (0,))
    assert ran.messages == {"a>b": 2, "b>c": 2}
    assert ran.counts() == (1, 5, 1, 2, 2)
    assert ran.done.repeats == 1
    assert ran.done.delivered == {("e", "s0"): 1}


# ----------------------------------------------------------------- semcast: expressions and rendezvous

RENDEZVOUS = "pr ra rb"  # publishers at p, the rendezvous point r, gateways a and b
E1, E2 = Match((0,)), Match((1,))


def semcast(*channels: tuple[Content, Sequence[int], str]) -> Plan:
    scene = Scene.of(RENDEZVOUS, "ab")
    return scene.plan(
        *(
            scene.channel(content, serves, Pruning.NONE, scene.tree(links, "r"), scene.to("r"))
            for content, serves, links in channels
        )
    )


SPLIT = semcast(
    (Holds(All((E1, Negation(E2)))), [0], "ra"),
    (Holds(All((E1, E2))), [0, 1], "ra rb"),
    (Holds(All((E2, Negation(E1)))), [1], "rb"),
)


def test_an_expression_channel_takes_a_leg_to_its_rendezvous_point_and_floods() -> None:
    ran = run(SPLIT, "p", (0, 1))
    assert ran.messages == {"p>r": 1, "r>a": 1, "r>b": 1}
    assert ran.legs == {"p>r": 1}
    # p matches to admit, a and b to hand over; r floods by the channel alone.
    assert ran.counts() == (2, 3, 1, 0, 0)
    assert ran.header_bytes == 6 + 4 + 4
    assert ran.steps[0].header.channels == (1,)
    assert (ran.price.cost, ran.price.cost_without_legs) == (3.0, 2.0)


def test_the_expression_decides_the_channel() -> None:
    assert run(SPLIT, "p", (0,)).messages == {"p>r": 1, "r>a": 1}
    assert run(SPLIT, "p", (1,)).messages == {"p>r": 1, "r>b": 1}
    assert run(SPLIT, "p", ()).messages == {}


def test_a_noise_channel_reaches_brokers_that_do_not_want_the_event() -> None:
    plan = semcast((Holds(Some((E1, E2))), [0, 1], "ra rb"))
    ran = run(plan, "p", (0,))
    assert ran.messages == {"p>r": 1, "r>a": 1, "r>b": 1}
    # b matches in vain: r and b had the event for nothing.
    assert ran.counts() == (1, 3, 2, 0, 0)


def test_one_leg_lists_every_channel_that_is_entered_there() -> None:
    plan = semcast((Holds(E1), [0], "ra"), (Holds(E2), [1], "rb"))
    ran = run(plan, "p", (0, 1))
    assert ran.messages == {"p>r": 1, "r>a": 1, "r>b": 1}
    leg = ran.steps[0].header
    assert (leg.kind, leg.target, leg.channels) == (HeaderKind.LEG, 3, (0, 1))  # brokers a, b, p, r: r is 3
    assert ran.header_bytes == 7 + 4 + 4
    assert ran.counts() == (2, 3, 1, 0, 0)


def test_at_the_rendezvous_point_itself_there_is_no_leg() -> None:
    ran = run(semcast((Holds(E1), [0], "ra"), (Holds(E2), [1], "rb")), "r", (0, 1))
    assert (ran.messages, ran.legs) == ({"r>a": 1, "r>b": 1}, {})
    assert ran.counts() == (2, 3, 0, 0, 0)


def test_a_channel_that_floods_brings_an_event_back_to_a_publisher_on_it() -> None:
    ran = run(semcast((Holds(E1), [0], "ra"), (Holds(E2), [1], "rb")), "a", (0, 1))
    assert ran.messages == {"a>r": 1, "r>a": 1, "r>b": 1}
    # The copy that comes back is matched, and handed to nobody again.
    assert ran.counts() == (2, 3, 1, 1, 1)
    assert ran.done.repeats == 0


def test_the_filtering_variant_stops_where_nobody_wants_the_event() -> None:
    plan = semcast((Holds(Some((E1, E2))), [0, 1], "ra rb"))
    pruned = replace(plan, channels=(replace(plan.channels[0], pruning=Pruning.FILTER),))
    ran = run(pruned, "p", (0,))
    assert ran.messages == {"p>r": 1, "r>a": 1}
    assert ran.counts() == (1, 3, 1, 0, 0)


# ------------------------------------------------------------------------- mbr: nearest broker of a tree


def test_an_off_tree_publisher_takes_a_leg_along_a_path_to_the_nearest_broker() -> None:
    scene = Scene.of("ab bc cd de", "e")
    grid = Grid((Axis("x", (5,)),))  # cells: below 5, from 5 on, none
    group = scene.channel(
        Cells(ints(1)), [0], Pruning.NONE, scene.tree("cd de"), Entry(ints(2, 2, -1, -1, -1))
    )
    plan = scene.plan(group, grid=grid, paths={(0, 2): (0, 1, 2)})
    ran = run(plan, "a", (0,), 1)
    assert ran.way == ["a>b", "b>c", "c>d", "d>e"]
    assert ran.legs == {"a>b": 1, "b>c": 1}
    # b passes the leg on by its label; c and d flood; a and e match.
    assert ran.counts() == (1, 2, 3, 0, 0)
    assert ran.header_bytes == 2 * (6 + 2) + 2 * 4
    assert ran.price.class_ms.tolist() == [4.0]
    assert run(plan, "b", (0,), 1).legs == {"b>c": 1}
    assert run(plan, "d", (0,), 1).messages == {"d>c": 1, "d>e": 1}
    assert run(plan, "a", (), 0).way == []


# ------------------------------------------------------------------------------------- kyra, Figure 4


def kyra() -> Plan:
    """Trees by zone, legs to the clique's proxy, notifications from the proxy to the host.

    Classes 0 and 1 (x = 9) at F, class 2 (x >= 2) at G straddling all zones, class 3 (x = 9) at H.
    """
    example = kyra_figure_4()
    overlay, index = example.overlay, example.overlay.index
    rows = [
        Subscription("s0", "c0", "F", sql="x = 9"),
        Subscription("s1", "c1", "F", sql="x = 9 AND topic = 'a'"),
        Subscription("s2", "c2", "G", sql="x >= 2"),
        Subscription("s3", "c3", "H", sql="x = 9"),
    ]
    classes = Classes.collapse(rows, overlay, SCHEMA.attributes)
    grid = Grid((Axis("x", tuple(range(1, 10))),))  # cell x holds the event x, for 0 to 9
    regions, channels = [], []
    for name, links in example.tree_links.items():
        low, high = example.tree_zones[name]
        zone = ints(*range(low, high + 1))
        regions.append(zone)
        holds = [s for s, (a, b) in example.server_zones.items() if a <= low and high <= b]
        (at,) = (index[s] for s in holds if s in "FGH")
        entry = [next((s for s in clique if s in holds), clique[-1]) for clique in example.cliques]
        targets = [index[e] for clique, e in zip(example.cliques, entry, strict=True) for _ in clique]
        served = [0, 1, 2, 3] if name == "t2" else [2]
        region = [len(regions) - 1] * len(served)
        channels.append(
            Channel(
                name,
                Admission(Cells(zone)),
                Serves(ints(*served), ints(*[at] * len(served)), ints(*region)),
                Pruning.FILTER,
                ChannelTree(np.array([(index[a], index[b]) for a, b in links], dtype=np.int32)),
                Entry(ints(*targets)),
            )
        )
    return Plan("kyra", overlay, classes, tuple(channels), {}, {}, grid, tuple(regions))


def test_event_9_goes_from_c_along_t2_to_h() -> None:
    ran = run(kyra(), "C", (3,), 9)
    assert ran.way == ["C>H"]
    assert ran.steps[0].header.channels == (2,)
    assert (ran.legs, ran.counts()) == ({}, (1, 2, 0, 0, 0))
    assert ran.price.class_ms[3] == 100.0


def test_a_proxy_notifies_each_host_once_though_two_classes_match_there() -> None:
    ran = run(kyra(), "A", (0, 1, 2), 9)
    assert ran.messages == {"A>C": 1, "C>H": 1, "H>F": 1, "H>G": 1}
    assert ran.legs == {"A>C": 1}
    assert [step.header.kind for step in ran.steps] == [
        HeaderKind.LEG,
        HeaderKind.TREE,
        HeaderKind.NOTE,
        HeaderKind.NOTE,
    ]
    # A, C, H, F and G match; C and H have it for others.
    assert ran.counts() == (3, 5, 2, 0, 0)
    assert ran.header_bytes == 6 + 4 + 4 + 4
    assert ran.price.class_ms.tolist() == [120.0, 120.0, 120.0, -1.0]


def test_no_notification_goes_back_to_the_publishers_broker() -> None:
    ran = run(kyra(), "F", (0, 1, 2, 3), 9)
    assert ran.messages == {"F>H": 1, "H>G": 1}
    assert ran.counts() == (4, 3, 0, 0, 0)


def test_a_straddling_class_is_served_by_the_proxy_of_the_events_zone() -> None:
    assert run(kyra(), "B", (2,), 5).way == ["B>G"]  # zone 4..6: G serves itself
    assert run(kyra(), "C", (2,), 5).way == ["C>B", "B>G"]
    assert run(kyra(), "B", (2,), 3).way == ["B>A", "A>D", "D>F", "F>G"]  # zone 0..3: F notifies G
    assert run(kyra(), "G", (2,), 3).way == ["G>F"]  # the leg to its clique's proxy; nobody else


def test_the_plan_of_figure_4_has_no_faults() -> None:
    plan = kyra()
    problem = Problem.of(plan.overlay, plan.classes, Demand.of([]), grid=plan.grid)
    assert list(faults(plan, problem)) == []


# ------------------------------------------------------------------ portfolio, explicit, explicit-list


def portfolio(*between: Channel) -> tuple[Scene, Plan]:
    scene = Scene.of("ab bc ac", "cb")
    over_b = scene.channel(Stamped(), [0, 1], Pruning.FILTER, scene.tree("ab bc"))
    over_a = scene.channel(Stamped(), [0, 1], Pruning.FILTER, scene.tree("ab ac"))
    return scene, scene.plan(over_b, *between, over_a)


def test_the_cheapest_tree_is_stamped_and_ties_go_to_the_lowest_channel() -> None:
    _, plan = portfolio()
    direct = run(plan, "a", (0,))  # a>b>c costs 2 on channel 0, a>c 1 on channel 1
    assert (direct.way, direct.steps[0].header.channels) == (["a>c"], (1,))
    tie = run(plan, "a", (1,))
    assert (tie.way, tie.steps[0].header.channels) == (["a>b"], (0,))
    both = run(plan, "a", (0, 1))  # two links either way
    assert (both.way, both.steps[0].header.channels) == (["a>b", "b>c"], (0,))
    assert both.counts() == (2, 3, 0, 0, 0)


def test_the_choice_is_by_the_plans_rule() -> None:
    scene, plan = portfolio()
    dear = overlay_of("ab bc ac", {"ac": 5.0})
    by_price = replace(plan, overlay=dear, classes=scene.classes)
    assert run(by_price, "a", (0,)).way == ["a>b", "b>c"]
    assert run(replace(by_price, rule="hops"), "a", (0,)).way == ["a>c"]


def test_one_stamped_channel_carries_an_event_wherever_the_others_stand() -> None:
    scene, _ = portfolio()
    still = scene.channel(Everything(), [], Pruning.NONE, scene.tree("", "a"), publishers="a")
    _, plan = portfolio(still)  # stamped, everything, stamped
    ran = run(plan, "a", (0,))
    assert (ran.way, ran.steps[0].header.channels) == (["a>c"], (2,))
    assert run(plan, "a", (1,)).way == ["a>b"]


def test_an_explicit_header_carries_its_tree() -> None:
    scene = Scene.of(FORK, "cd")
    ran = run(scene.plan(scene.channel(Stamped(), [0, 1], Pruning.TREE)), "a", (0, 1))
    assert ran.messages == {"a>b": 1, "b>c": 1, "b>d": 1}
    # To b: 4, then b (two children, not wanted), c (wanted), d (wanted): 1 + 2 + 2. To c and d: 4 + 1.
    assert ran.header_bytes == 9 + 5 + 5
    # b only splits the header.
    assert ran.counts() == (2, 3, 1, 0, 0)


def test_an_explicit_list_is_split_by_next_hop() -> None:
    scene = Scene.of(FORK, "cd")
    ran = run(scene.plan(scene.channel(Stamped(), [0, 1], Pruning.DESTINATIONS)), "a", (0, 1))
    assert ran.messages == {"a>b": 1, "b>c": 1, "b>d": 1}
    # To b: 5 and two destinations; to c and d: 5 and one.
    assert ran.header_bytes == 7 + 6 + 6
    assert ran.counts() == (2, 3, 1, 0, 0)


@pytest.mark.parametrize(
    ("pruning", "expected"),
    [
        # Brokers from 128 on take two bytes. LIST from 130 to the hub: kind, hops, 130 (2), channel, 2,
        # 150 (2), 199 - 150; then to each: kind, hops, 130 (2), channel, 1, itself (2).
        (Pruning.DESTINATIONS, 9 + 8 + 8),
        # CARRIED: kind, hops, 130 (2), channel, then the hub's byte and (150 or 199 (2), its byte) each;
        # then 5 and one byte of what the receiver must do.
        (Pruning.TREE, 12 + 6 + 6),
        # COPY: kind, hops, 130 (2), channel, destination (2); two crossings each.
        (Pruning.COPIES, 4 * 7),
    ],
)
def test_large_numbers_take_more_header_bytes(pruning: Pruning, expected: int) -> None:
    overlay = star(200)
    hub = int(overlay.degree.argmax())
    assert hub == 0
    names = overlay.brokers
    classes = classes_at(overlay, [names[150], names[199]])
    serves = Serves.at_hosts([0, 1], classes)
    plan = Plan("wide", overlay, classes, (Channel("c", Admission(AnyOf()), serves, pruning),))
    assert run(plan, names[130], (0, 1)).header_bytes == expected


# ------------------------------------------------------------------------- zhao_wu: publisher and cells


def test_a_channel_for_a_publisher_and_cells_takes_nothing_else() -> None:
    scene = Scene.of("ab bc", "c")
    grid = Grid((Axis("x", (5,)),))
    own = scene.channel(Cells(ints(0)), [0], Pruning.FILTER, scene.tree("ab bc"), publishers="a")
    rest = scene.channel(Cells(ints(1, 2)), [0], Pruning.COPIES, publishers="ab")
    plan = scene.plan(own, rest, grid=grid)
    assert [s.header.kind for s in run(plan, "a", (0,), 0).steps] == [HeaderKind.TREE, HeaderKind.TREE]
    assert [s.header.kind for s in run(plan, "a", (0,), 1).steps] == [HeaderKind.COPY, HeaderKind.COPY]
    assert price(plan, Demand.of([(1, (0,), 1, 1)], cells=[0])).undelivered == 1


# ----------------------------------------------------------------------------------- paths, and marks


def test_brokers_inside_a_path_pass_on_by_label_and_are_charged() -> None:
    scene = Scene.of("ab bc", "cab")
    mesh = scene.channel(AnyOf(), [0, 1], Pruning.FILTER, scene.tree("ac"))
    near = scene.channel(AnyOf(), [2], Pruning.FILTER, scene.tree("ab bc"))
    plan = scene.plan(mesh, near, paths={(0, 2): (0, 1, 2)})
    there = run(plan, "a", (0,))
    assert there.way == ["a>b", "b>c"]
    assert [step.header.label for step in there.steps] == [(0, 2), (0, 2)]
    # TREE and its label, over two links; b does not match.
    assert there.header_bytes == 2 * (4 + 2)
    assert there.counts() == (1, 2, 1, 0, 0)
    assert there.price.cost == 2.0
    back = run(plan, "c", (1,))
    assert (back.way, back.header_bytes) == (["c>b", "b>a"], 12)
    # b gets its own event on its own channel, whatever passes through it.
    both = run(plan, "a", (0, 2))
    assert both.messages == {"a>b": 2, "b>c": 1}
    assert both.counts() == (2, 3, 0, 1, 1)


def test_marks_are_kept_and_checked_and_change_nothing() -> None:
    scene = Scene.of(FORK, "cd")
    plain = scene.channel(AnyOf(), [0, 1], Pruning.FILTER, scene.tree(FORK))
    marked = replace(plain, marks={(0, 1): "p", (1, 0): "s", (1, 2): "s"})
    one, other = run(scene.plan(plain), "a", (0, 1)), run(scene.plan(marked), "a", (0, 1))
    assert one.price.figures() == other.price.figures()
    assert one.steps == other.steps
    problem = Problem.of(scene.overlay, scene.classes, Demand.of([]))
    assert list(faults(scene.plan(marked), problem)) == []
    wrong = replace(plain, marks={(0, 2): "p"})
    assert "is not p or s on a link of its tree" in next(faults(scene.plan(wrong), problem))
