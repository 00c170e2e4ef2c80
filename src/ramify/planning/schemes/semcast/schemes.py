"""Semantic multicast: channels by content and destinations, no matching inside the overlay (SemCast).

Problem    Carry every event to the brokers that want it over few links, with matching at the first and
           last broker only.
Idea       Profiles that contain each other share a channel where that saves (`semcast.hierarchies`);
           channels that partly overlap are split into what they share and what they do not
           (`semcast.merging`). Each channel floods a tree of its own from a rendezvous point
           (`semcast.trees`). The publisher's broker evaluates the channels' expressions and sends one copy
           to each rendezvous point.
Guarantee  Every class gets every event that it wants exactly once, seen in the sample or not: the channels
           that serve it have disjoint expressions whose union holds whenever the class matches.
Cost       O(sum over events of the square of the profiles matched) to compare profiles and channels, then
           a part of that per merge; a tree join per channel and destination; a search from every broker.
           See the modules named above.
Departures Errata are listed in those modules. `rendezvous="best"` (ours) takes, of the brokers nearest to
           publishers and destinations, the one with the least total of legs and tree, for channels that are
           made with random points and with such; the better are kept. `trees="steiner"` is the paper's
           SemCast-O; `trees="delay"` bounds latency: a subscription's bound is end to end, so the worst leg
           from another broker that may publish is taken off it. Classes that a rendezvous point is out of
           the way for leave their hierarchy for a channel rooted at their gateway (ours). A class that is
           late even so cannot be served sooner, and is named among the settings; with `late="refuse"` there
           is no plan then (`plans.lateness` says why). `pruned` filters at every hop of the same trees. A
           leg is the direct link where there is one, else a cheapest path; the fastest way, link or not,
           where trees bound latency. `paper_cost` among the settings is the paper's own measure on the
           training window: events times tree links, legs left out.

Reference: O. Papaemmanouil, U. Cetintemel, "SemCast: Semantic Multicast for Content-based Data
Dissemination".
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from ramify.errors import InputError
from ramify.network.graphs.distances import Weight, all_pairs
from ramify.network.trees.terminals import TerminalSets
from ramify.planning.demand.overlap import Overlap, Profiles, Statistics
from ramify.planning.plans.growth import NEVER, mapped, simple
from ramify.planning.plans.lateness import (
    LATE_SHOWN,
    TooLateError,
    late_by_root,
    late_subscriptions,
    refuses,
)
from ramify.planning.plans.legs import Legs, directed, latencies, legs_to
from ramify.planning.plans.plan import (
    Admission,
    All,
    Channel,
    ChannelTree,
    Entry,
    Expression,
    Holds,
    Match,
    Negation,
    Plan,
    Pruning,
    Serves,
    Some,
)
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.scheme import Progress, put_together, silent
from ramify.planning.schemes.semcast.expressions import form, hierarchy, over_classes, terms
from ramify.planning.schemes.semcast.hierarchies import (
    EdgeEstimate,
    Hierarchies,
    Reach,
    build_hierarchies,
    covering_profiles,
)
from ramify.planning.schemes.semcast.merging import Draft, Noise, merge_channels
from ramify.planning.schemes.semcast.trees import GrowingTree, TreeWays

__all__ = ["SemcastParams", "plan"]

Rendezvous = Literal["random", "best"]
Trees = Literal["low-cost", "steiner", "delay"]
Lateness = Literal["root-path", "refuse"]

RENDEZVOUS_CANDIDATES = 24
"""Brokers that are compared as rendezvous point of a channel, those first that look nearest."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SemcastParams:
    """How channels and trees are made.

    rendezvous   where trees are rooted: at `random`, or at the `best` broker for a channel
    trees        `low-cost` joins, centralised `steiner` trees, or joins within a `delay`
    late         a subscription that no way reaches in time gets the fastest `root-path`; or `refuse` it
    noise        what merged channels do not share: kept `apart`, free to `merge` on, or `never` split off
    pruned       filter at every hop of the trees instead of flooding them
    orders       random orders of joining that edges are estimated with
    iterations   most merges; `seconds` is their budget of time; none: until no merge saves anything
    most_terms   hierarchies that one may be entangled with through merges
    """

    rendezvous: Rendezvous = "random"
    trees: Trees = "low-cost"
    late: Lateness = "root-path"
    noise: Noise = "apart"
    pruned: bool = False
    orders: int = 1
    iterations: int | None = None
    seconds: float | None = None
    most_terms: int = 5

    def __post_init__(self) -> None:
        kinds = {"rendezvous": Rendezvous, "trees": Trees, "late": Lateness, "noise": Noise}
        for name, kind in kinds.items():
            if getattr(self, name) not in get_args(kind):
                raise InputError(f"{name} = {getattr(self, name)!r}. Allowed: {', '.join(get_args(kind))}.")
        if self.late == "refuse" and self.trees != "delay":
            raise InputError(
                f"late = 'refuse' with trees = {self.trees!r}. Only trees = 'delay' bound latency."
            )
        for name, least, most in (("orders", 1, 64), ("most_terms", 1, 20)):
            if not least <= getattr(self, name) <= most:
                raise InputError(f"{name} = {getattr(self, name)}. Allowed: {least} to {most}.")
        if self.iterations is not None and self.iterations < 0:
            raise InputError(f"iterations = {self.iterations}. Allowed: 0 or more, or none.")
        if self.seconds is not None and not self.seconds >= 0:
            raise InputError(f"seconds = {self.seconds}. Allowed: 0 or more, or none.")


def plan(
    problem: Problem, params: SemcastParams, rng: np.random.Generator, progress: Progress = silent
) -> Plan:
    """Hierarchies, merged channels, rendezvous points, trees."""
    profiles = Profiles.of(problem.classes)
    seen = Statistics.of_demand(problem.demand, profiles, problem.pattern_weight)
    overlap = _overlap(problem, profiles, seen)
    estimate = EdgeEstimate(problem.steiner.distance, params.orders, rng)
    places = _Points(problem, seen)
    hosts = profiles.hosts(problem.classes)
    starts = [rng.integers(len(problem.overlay), size=len(profiles)).astype(np.int32)]
    if params.rendezvous == "best":
        # at a gateway of its own a profile seems to cost nothing, and none joins another: both are tried
        starts.append(places.best(seen.bits, hosts, seen.rate)[0])
    found = []
    for i, points in enumerate(starts):
        shown = _within(progress, 0.7 * i / len(starts), 0.7 / len(starts))
        shown(0.0, "comparing profiles")
        made, left_out = _hierarchies(profiles, overlap, hosts, estimate, points)
        shown(0.4, "merging channels")
        merged = merge_channels(
            made,
            seen,
            estimate,
            noise=params.noise,
            iterations=params.iterations,
            seconds=params.seconds,
            most_terms=params.most_terms,
            progress=_within(shown, 0.4, 0.6),
        )
        roots, total = np.array([draft.point for draft in merged.channels], dtype=np.int32), 0.0
        if params.rendezvous == "best" and len(merged.channels):
            bits = np.array([draft.bits for draft in merged.channels])
            reached = [draft.reach.brokers for draft in merged.channels]
            roots, total = places.best(bits, reached, seen.weigh(bits))
        found.append((total, made, left_out, merged, roots))
    _, made, left_out, merged, roots = min(found, key=lambda each: each[0])
    progress(0.7, "growing trees")
    laid = _ChannelDrafts(merged.channels, roots, _classes_of(made, profiles))
    ways = None if params.trees == "steiner" else TreeWays.of(problem.overlay, problem.steiner)
    by: Weight | None = None
    if params.trees == "delay":
        assert ways is not None
        by, laid = "latency", _in_time(problem, laid, profiles, seen, estimate, ways)
    legs = legs_to(problem.overlay, laid.roots.tolist(), problem.publishers.tolist(), by)
    trees = _trees(problem, params, laid, estimate, legs, ways)
    channels = _channels(problem, params, laid, trees)
    settings: dict[str, Any] = {
        "hierarchies": len(made),
        "merges": merged.merges,
        "cut_short": merged.cut_short,
        "uncompared": left_out,
        "paper_cost": _paper_cost(seen.weighted(problem.demand.count), laid.drafts, trees),
    }
    if params.trees == "delay":
        settings |= {"trees": params.trees, "late": params.late}
    planned = put_together("semcast", problem, channels, settings, paths=legs.paths, legs=legs.own)
    return _judged(planned) if params.trees == "delay" else planned


def _within(progress: Progress, begin: float, share: float) -> Progress:
    """Progress of a part of the work."""
    return lambda done, what: progress(begin + share * done, what)


def _overlap(problem: Problem, profiles: Profiles, seen: Statistics) -> Overlap:
    """Which profiles overlap: by tables where the problem has them, else by the demand."""
    if problem.overlap is None:
        return seen.overlap()
    if len(problem.overlap) != len(profiles):
        raise InputError(
            f"the overlap is of {len(problem.overlap)} profiles, the classes have {len(profiles)}. "
            "Make it of these classes."
        )
    return problem.overlap


def _hierarchies(
    profiles: Profiles,
    overlap: Overlap,
    hosts: Sequence[Ints],
    estimate: EdgeEstimate,
    points: Ints,
) -> tuple[Hierarchies, int]:
    """The hierarchies, and how many pairs of filters were too many to compare."""
    left_out = 0

    def covers(unseen: list[int]) -> dict[int, list[int]]:
        nonlocal left_out
        found, left_out = covering_profiles(profiles.filters, unseen)
        return found

    return build_hierarchies(overlap, hosts, estimate, points, covers), left_out


def _classes_of(made: Hierarchies, profiles: Profiles) -> list[tuple[int, ...]]:
    """The classes of each hierarchy, ascending."""
    return [tuple(sorted(k for p in row for k in profiles.classes[p])) for row in made.members]


@dataclass(frozen=True, slots=True)
class _ChannelDrafts:
    """Channels with their rendezvous points, and the classes of each hierarchy that they name."""

    drafts: Sequence[Draft]
    roots: Ints
    classes: Sequence[tuple[int, ...]]

    def served(self, draft: Draft) -> list[int]:
        return [k for h in draft.serves for k in self.classes[h]]


def _channels(
    problem: Problem, params: SemcastParams, laid: _ChannelDrafts, trees: Sequence[Ints]
) -> list[Channel]:
    n = len(problem.overlay)
    allowed = None if len(problem.publishers) == n else frozenset(problem.publishers.tolist())
    entries: dict[int, Entry] = {}
    for root in np.unique(laid.roots).tolist():
        targets = np.full(n, -1, dtype=np.int32)
        targets[problem.publishers] = root
        entries[root] = Entry(targets)
    pruning = Pruning.FILTER if params.pruned else Pruning.NONE
    found = []
    for c, (draft, links) in enumerate(zip(laid.drafts, trees, strict=True)):
        root = int(laid.roots[c])
        kind = ("nested", "hierarchy", "common", "noise")[form(draft.expression)]
        found.append(
            Channel(
                f"{kind} {c}",
                Admission(Holds(over_classes(draft.expression, laid.classes)), allowed),
                Serves.at_hosts(laid.served(draft), problem.classes),
                pruning,
                ChannelTree(links, root),
                entries[root],
            )
        )
    return found


def _paper_cost(counted: Statistics, drafts: Sequence[Draft], trees: Sequence[Ints]) -> float:
    """Events times tree links over all channels."""
    if not drafts:
        return 0.0
    events = counted.weigh(np.array([draft.bits for draft in drafts]))
    return float(events @ np.array([len(links) for links in trees]))


# ----------------------------------------------------------------------------------- rendezvous points


class _Points:
    """Finds good rendezvous points."""

    def __init__(self, problem: Problem, seen: Statistics) -> None:
        self._problem, self._seen = problem, seen

    def best(self, bits: Words, brokers: Sequence[Ints], rate: Floats) -> tuple[Ints, float]:
        """For each set of messages and destinations the broker with the least legs and tree; their sum.

        Legs are from the publishers of the messages. `RENDEZVOUS_CANDIDATES` brokers are compared
        exactly (by Steiner trees), those first whose legs and way to the nearest destination take least;
        ties to the lowest.
        """
        problem = self._problem
        publisher = problem.demand.publisher
        sources, place = np.unique(publisher, return_inverse=True)
        if not len(sources):
            return np.array([each[0] for each in brokers], dtype=np.int32), 0.0
        there = all_pairs(problem.overlay, directed(problem.overlay), sources=sources.tolist()).distance
        found = np.empty(len(bits), dtype=np.int32)
        tried: list[tuple[int, Ints]] = []
        legs: list[Floats] = []
        for c, row in enumerate(bits):
            sent = np.unpackbits(row.view(np.uint8), bitorder="little", count=len(publisher)) > 0
            weight = np.bincount(place[sent], weights=problem.pattern_weight[sent], minlength=len(sources))
            leg = weight @ there
            near = problem.steiner.distance[brokers[c]].min(axis=0)
            # for a channel that carries nothing the nearest is best
            rough = leg + (rate[c] if rate[c] > 0 else 1.0) * near
            chosen = np.sort(np.argsort(rough, kind="stable")[:RENDEZVOUS_CANDIDATES])
            tried += [(int(r), brokers[c]) for r in chosen]
            legs.append(leg[chosen])
        per = len(chosen) if len(bits) else 1
        cost = problem.steiner.costs(TerminalSets.of([(r, each.tolist()) for r, each in tried]))
        least = 0.0
        for c in range(len(bits)):
            part = slice(c * per, (c + 1) * per)
            total = legs[c] + (rate[c] if rate[c] > 0 else 1.0) * cost[part]
            found[c] = tried[c * per + int(np.argmin(total))][0]
            least += float(total.min()) if rate[c] > 0 else 0.0
        return found, least


# ----------------------------------------------------------------------------------------------- trees


def _trees(
    problem: Problem,
    params: SemcastParams,
    laid: _ChannelDrafts,
    estimate: EdgeEstimate,
    legs: Legs,
    ways: TreeWays | None,
) -> list[Ints]:
    """The links of each channel's tree: of Steiner trees where no ways to join are given."""
    pairs = list(zip(laid.roots.tolist(), laid.drafts, strict=True))
    if ways is None:
        wanted = [(root, draft.reach.brokers.tolist()) for root, draft in pairs]
        grown = problem.steiner.trees(TerminalSets.of(wanted))
        links = np.column_stack((grown.parent, grown.child)).astype(np.int32)
        return [links[a:b] for a, b in pairwise(grown.start.tolist())]
    ms = latencies(problem.overlay)
    found = []
    for root, draft in pairs:
        tree = GrowingTree(root, ways, ms)
        order = draft.reach.brokers[np.argsort(estimate.rank[0, draft.reach.brokers])].tolist()
        if params.trees == "low-cost":
            for gateway in order:
                tree.join(gateway)
        else:
            served = np.array(laid.served(draft), dtype=np.int64)
            for gateway in order:
                _join_within(problem, tree, gateway, served, legs.worst_ms(root, gateway))
        found.append(tree.links())
    return found


def _join_within(
    problem: Problem,
    tree: GrowingTree,
    gateway: int,
    served: npt.NDArray[np.int64],
    leg_ms: float,
) -> None:
    """One join under the strictest bound of the gateway's classes."""
    here = served[problem.classes.broker[served] == gateway]
    strictest = float(problem.classes.latency_ms[here].min())
    if strictest == np.inf:
        tree.join(gateway)
    else:
        tree.join_within(gateway, strictest - leg_ms)


def _in_time(
    problem: Problem,
    laid: _ChannelDrafts,
    profiles: Profiles,
    seen: Statistics,
    estimate: EdgeEstimate,
    ways: TreeWays,
) -> _ChannelDrafts:
    """The same, but for classes that would be late by their root and are served sooner at their gateway.

    Those of a gateway become one more hierarchy, with a channel rooted there, and leave their own: in every
    expression it stands for less, so that the channels that serve it still split what is left of it.
    Channels that carry nothing to anybody then are not made.
    """
    served = [(root, laid.served(d)) for root, d in zip(laid.roots.tolist(), laid.drafts, strict=True)]
    late = late_by_root(problem.classes, ways.ms, problem.publishers, served)
    if not len(late):
        return laid
    moved, hosts = set(late.tolist()), problem.classes.broker
    classes = [tuple(k for k in row if k not in moved) for row in laid.classes]
    # all messages of a hierarchy: a profile that other gateways ask for too stays in it
    wanted = [_wanted(row, profiles, seen) for row in classes]
    drafts, roots = [], []
    for root, draft in zip(laid.roots.tolist(), laid.drafts, strict=True):
        if all(classes[h] == laid.classes[h] for h in terms(draft.expression)):
            drafts.append(draft)
            roots.append(root)
            continue
        expression = simple(
            mapped(draft.expression, lambda term: Match(tuple(h for h in term.classes if classes[h])))
        )
        left = [k for h in draft.serves for k in classes[h]]
        if expression != NEVER and left:
            reach = estimate.reach(hosts[left])
            drafts.append(_drafted(expression, draft.serves, root, reach, wanted, seen, estimate))
            roots.append(root)
    for gateway in np.unique(hosts[late]).tolist():
        h = len(classes)
        classes.append(tuple(late[hosts[late] == gateway].tolist()))
        wanted.append(_wanted(classes[h], profiles, seen))
        reach = estimate.reach([gateway])
        drafts.append(_drafted(hierarchy(h), (h,), gateway, reach, wanted, seen, estimate))
        roots.append(gateway)
    return _ChannelDrafts(drafts, np.array(roots, dtype=np.int32), classes)


def _drafted(
    expression: Expression,
    serves: tuple[int, ...],
    root: int,
    reach: Reach,
    wanted: Sequence[Words],
    seen: Statistics,
    estimate: EdgeEstimate,
) -> Draft:
    bits = _admitted(expression, wanted)
    rate = float(seen.weigh(bits[None, :])[0])
    return Draft(expression, serves, root, reach, bits, rate, estimate.edges(reach, root))


def _wanted(classes: Sequence[int], profiles: Profiles, seen: Statistics) -> Words:
    """The sampled messages that any of these classes wants."""
    found: Words = np.bitwise_or.reduce(seen.bits[np.unique(profiles.of_class[list(classes)])], axis=0)
    return found


def _admitted(expression: Expression, wanted: Sequence[Words]) -> Words:
    """The sampled messages that an expression over hierarchies admits."""
    found: Words
    match expression:
        case Match(named):
            found = np.bitwise_or.reduce([wanted[h] for h in named], axis=0)
        case All(parts):
            found = np.bitwise_and.reduce([_admitted(part, wanted) for part in parts], axis=0)
        case Some(parts):
            found = np.bitwise_or.reduce([_admitted(part, wanted) for part in parts], axis=0)
        case Negation(part):
            found = ~_admitted(part, wanted)
    return found


def _judged(made: Plan) -> Plan:
    """The plan that names its late subscriptions. `TooLateError` if they are to be refused."""
    late = late_subscriptions(made)
    if late and refuses(made):
        raise TooLateError("semcast-delay", late)
    named = ", ".join(row.id for row in late[:LATE_SHOWN])
    return replace(made, settings={**made.settings, "refused": len(late), "refused_subscriptions": named})
