"""Channel expressions and merging: nobody is left out, nobody gets anything twice, after every merge."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.network.graphs.distances import all_pairs
from ramify.network.graphs.generators import line
from ramify.network.graphs.overlay import Overlay
from ramify.planning.demand.overlap import Statistics
from ramify.planning.plans.plan import All, Expression, Match, Negation, Some, evaluate
from ramify.planning.schemes.semcast.expressions import (
    common,
    form,
    hierarchy,
    noise,
    over_classes,
    terms,
)
from ramify.planning.schemes.semcast.hierarchies import EdgeEstimate, Hierarchies
from ramify.planning.schemes.semcast.merging import Draft, merge_channels, merges
from worlds import overlays

NOISE = ("apart", "merge", "never")

expressions = st.recursive(
    st.sets(st.integers(0, 4), min_size=1, max_size=2).map(lambda h: Match(tuple(sorted(h)))),
    lambda part: (
        st.lists(part, max_size=3).map(lambda given: All(tuple(given)))
        | st.lists(part, max_size=3).map(lambda given: Some(tuple(given)))
        | part.map(Negation)
        | st.tuples(part, part).map(lambda two: common(*two))
        | st.tuples(part, part).map(lambda two: noise(*two))
    ),
    max_leaves=6,
)


@st.composite
def states(draw: st.DrawFn) -> tuple[Hierarchies, Statistics, EdgeEstimate]:
    """Hierarchies with any overlaps, on any overlay: one profile each."""
    overlay: Overlay = draw(overlays(8, symmetric=True))
    count = draw(st.integers(0, 6))
    rows = draw(st.lists(st.sets(st.integers(0, max(count - 1, 0))), max_size=30)) if count else []
    start = np.cumsum([0, *map(len, rows)])
    weight = draw(st.lists(st.integers(1, 9), min_size=len(rows), max_size=len(rows)))
    seen = Statistics.of_rows(count, start, [p for row in rows for p in sorted(row)], weight)
    n = len(overlay)
    estimate = EdgeEstimate(all_pairs(overlay, "hops").distance, draw(st.integers(1, 2)), _rng())
    hosts = [draw(st.sets(st.integers(0, n - 1), min_size=1)) for _ in range(count)]
    points = np.array([draw(st.integers(0, n - 1)) for _ in range(count)], dtype=np.int32)
    made = Hierarchies(
        np.full(count, -1, dtype=np.int32),
        np.arange(count, dtype=np.int32),
        tuple((p,) for p in range(count)),
        points,
        tuple(estimate.reach(sorted(own)) for own in hosts),
    )
    return made, seen, estimate


def _rng() -> np.random.Generator:
    return np.random.default_rng(5)


def subsets(count: int) -> list[frozenset[int]]:
    return [frozenset(h for h in range(count) if mask >> h & 1) for mask in range(1 << count)]


def carried(channels: tuple[Draft, ...], want: frozenset[int]) -> list[int]:
    """The hierarchies that get a message which exactly these want, as often as they do."""
    return sorted(h for each in channels if evaluate(each.expression, want) for h in each.serves)


# ----------------------------------------------------------------------------------------- expressions


@given(a=expressions, b=expressions)
def test_common_and_noise_split_what_two_admit(a: Expression, b: Expression) -> None:
    for want in subsets(5):
        in_a, in_b = evaluate(a, want), evaluate(b, want)
        assert evaluate(common(a, b), want) == (in_a and in_b)
        assert evaluate(noise(a, b), want) == (in_a and not in_b)


@given(
    expression=expressions,
    owners=st.lists(st.integers(0, 4), max_size=9),
    matched=st.sets(st.integers(0, 8)),
)
def test_over_classes_a_hierarchy_is_any_of_its_own(
    expression: Expression, owners: list[int], matched: set[int]
) -> None:
    classes = [tuple(k for k, h in enumerate(owners) if h == own) for own in range(5)]
    want = frozenset(owners[k] for k in matched if k < len(owners))
    assert evaluate(over_classes(expression, classes), matched) == evaluate(expression, want)


def test_the_three_forms_are_told_apart() -> None:
    e = [hierarchy(h) for h in range(4)]
    pair = common(e[0], e[1])
    assert [form(e[0]), form(pair), form(common(pair, e[2])), form(noise(pair, e[2]))] == [1, 2, 2, 3]
    assert form(noise(e[2], pair)) == 3
    assert form(noise(noise(e[0], e[1]), e[2])) == form(noise(e[3], noise(e[0], e[1]))) == 0
    assert form(All(())) == 0
    assert terms(noise(e[3], noise(e[0], e[1]))) == {0, 1, 3}


# --------------------------------------------------------------------------------------------- merging


@pytest.mark.parametrize("kind", NOISE)
@settings(max_examples=60)
@given(state=states())
def test_after_every_merge_everyone_gets_what_they_want_once(
    kind: str, state: tuple[Hierarchies, Statistics, EdgeEstimate]
) -> None:
    """For every message that can be, seen or not: what it reached before, it reaches after, once."""
    made, seen, estimate = state
    count = len(made)
    steps = list(merges(made, seen, estimate, noise=kind, most_terms=6))[:12]  # type: ignore[arg-type]
    wanted = sampled(seen)
    for channels in steps:
        for want in subsets(count):
            got = carried(channels, want)
            assert len(set(got)) == len(got)
            if kind == "never":
                assert want <= set(got)
            else:
                assert got == sorted(want)
        for each in channels:
            admitted = [evaluate(each.expression, want) for want in wanted]
            assert np.unpackbits(each.bits.view(np.uint8), bitorder="little").tolist() == admitted
            assert each.rate == pytest.approx(seen.weight[admitted].sum())
            assert set(each.reach.brokers.tolist()) == {
                int(b) for h in each.serves for b in made.reach[h].brokers
            }
    for before, after in pairwise(steps):
        assert cost(after) < cost(before)


def sampled(seen: Statistics) -> list[frozenset[int]]:
    """The profiles, which are the hierarchies here, that want each message of the sample."""
    by_profile = np.unpackbits(seen.bits.view(np.uint8), axis=1, bitorder="little", count=len(seen.weight))
    return [frozenset(np.flatnonzero(row).tolist()) for row in by_profile.T]


def cost(channels: tuple[Draft, ...]) -> float:
    return sum(each.rate * each.edges for each in channels)


@pytest.mark.parametrize("kind", NOISE)
@settings(max_examples=60)
@given(state=states())
def test_each_merge_is_the_one_that_saves_most(
    kind: str, state: tuple[Hierarchies, Statistics, EdgeEstimate]
) -> None:
    """Every pair that may merge is priced anew, by building what it would become."""
    made, seen, estimate = state
    steps = list(merges(made, seen, estimate, noise=kind, most_terms=6))[:8]  # type: ignore[arg-type]
    may: list[Draft] = list(steps[0])
    for before, after in pairwise(steps):
        best = max(
            (saving(a, b, kind, estimate, seen) for i, b in enumerate(may) for a in may[:i]), default=0
        )
        assert cost(before) - cost(after) == pytest.approx(best)
        gone = {id(each) for each in before} - {id(each) for each in after}
        fresh = [each for each in after if id(each) not in {id(old) for old in before}]
        assert len(gone) == 2
        assert len(fresh) == (1 if kind == "never" else 3)
        may = [each for each in may if id(each) not in gone] + (fresh if kind == "merge" else fresh[:1])
    if len(steps) < 8:
        left = [saving(a, b, kind, estimate, seen) for i, b in enumerate(may) for a in may[:i]]
        assert max(left, default=0) <= 1e-9


def saving(a: Draft, b: Draft, kind: str, estimate: EdgeEstimate, seen: Statistics) -> float:
    shared = float(seen.weigh((a.bits & b.bits)[None, :])[0])
    if not shared:
        return 0.0
    lead = a if a.rate >= b.rate else b
    edges = estimate.edges(estimate.reach([*a.reach.brokers, *b.reach.brokers]), lead.point)
    now = a.rate * a.edges + b.rate * b.edges
    if kind == "never":
        return now - (a.rate + b.rate - shared) * edges
    return now - shared * edges - (a.rate - shared) * a.edges - (b.rate - shared) * b.edges


@settings(max_examples=40)
@given(state=states(), most=st.integers(1, 4))
def test_no_hierarchy_is_entangled_with_more_than_asked(
    state: tuple[Hierarchies, Statistics, EdgeEstimate], most: int
) -> None:
    made, seen, estimate = state
    for kind in ("apart", "merge"):
        found = merge_channels(made, seen, estimate, noise=kind, most_terms=most, iterations=20)  # type: ignore[arg-type]
        for h in range(len(made)):
            named = frozenset().union(*(terms(c.expression) for c in found.channels if h in c.serves))
            assert len(named) <= max(most, 1)


@pytest.mark.parametrize("most", [2, 3, 5])
def test_noise_that_merges_on_entangles_no_more_than_asked_either(most: int) -> None:
    """Ten hierarchies that overlap much: partners become entangled with others after they were found."""
    full = 0
    for seed in range(12):
        made, seen, estimate = many(seed)
        found = merge_channels(made, seen, estimate, noise="merge", most_terms=most, iterations=60)
        for h in range(len(made)):
            named = frozenset().union(*(terms(c.expression) for c in found.channels if h in c.serves))
            assert len(named) <= most
            full += len(named) == most
    assert full


def many(seed: int) -> tuple[Hierarchies, Statistics, EdgeEstimate]:
    """Ten hierarchies of one profile each at any brokers of a line; each message is for about half."""
    rng = np.random.default_rng(seed)
    rows = [np.flatnonzero(rng.random(10) < 0.5).tolist() for _ in range(60)]
    start = np.cumsum([0, *map(len, rows)])
    seen = Statistics.of_rows(10, start, [p for row in rows for p in row], rng.integers(1, 9, 60).tolist())
    estimate = EdgeEstimate(all_pairs(line(12), "hops").distance, 1, rng)
    made = Hierarchies(
        np.full(10, -1, dtype=np.int32),
        np.arange(10, dtype=np.int32),
        tuple((p,) for p in range(10)),
        rng.integers(12, size=10).astype(np.int32),
        tuple(estimate.reach(rng.integers(12, size=3)) for _ in range(10)),
    )
    return made, seen, estimate


@settings(max_examples=30)
@given(state=states(), most=st.integers(0, 3))
def test_budgets_stop_early_and_say_so(
    state: tuple[Hierarchies, Statistics, EdgeEstimate], most: int
) -> None:
    made, seen, estimate = state
    whole = merge_channels(made, seen, estimate, most_terms=6)
    part = merge_channels(made, seen, estimate, most_terms=6, iterations=most)
    assert part.merges == min(most, whole.merges)
    assert part.cut_short == (whole.merges > most)
    assert not whole.cut_short
    hurried = merge_channels(made, seen, estimate, most_terms=6, seconds=0.0)
    assert hurried.merges == 0
    assert len(hurried.channels) == len(made)
