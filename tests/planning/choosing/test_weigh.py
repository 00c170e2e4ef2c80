"""Auto: the cheapest on validation that keeps the rules, reported on events that nobody looked at."""

from collections.abc import Callable
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, PlanError
from ramify.network.graphs.specs import overlay_from
from ramify.planning.choosing import weigh as module
from ramify.planning.choosing.weigh import UNDELIVERED, weigh
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.pricing.price import Price, price
from ramify.planning.pricing.rules import BrokenRule
from ramify.planning.pricing.weights import Weights
from ramify.planning.schemes import baselines
from ramify.planning.schemes.catalog import SCHEMES, make_plan
from ramify.planning.schemes.scheme import Progress, Scheme
from worlds import SCHEMA

QUICK = ["unicast", "broadcast", "mst", "spt-best", "per-source", "explicit", "explicit-list", "hub"]


@pytest.fixture(scope="module")
def windows() -> tuple[Problem, Demand, Demand]:
    """A class per broker of a ring; three windows of other events."""
    overlay = overlay_from("ring:10")
    rows = [Subscription(name, name, name, sql=f"x = {i}") for i, name in enumerate(overlay.brokers)]
    classes = Classes.collapse(rows, overlay, SCHEMA.attributes)
    rng = np.random.default_rng(4)

    def window() -> Demand:
        return Demand.of(
            (int(rng.integers(10)), rng.choice(10, 3).tolist(), 1, int(rng.integers(500, 900)))
            for _ in range(40)
        )

    return Problem.of(overlay, classes, window()), window(), window()


@pytest.fixture
def two_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two more names of `mst`, and one that forgets half of the classes."""

    def forgetful(problem: Problem, params: object, rng: np.random.Generator, progress: Progress) -> Plan:
        plan = baselines.mst(problem, baselines.NoParams(), rng, progress)
        channel = plan.channels[0]
        kept = type(channel.serves)(*(part[::2] for part in (
            channel.serves.classes, channel.serves.at, channel.serves.region)))  # fmt: skip
        return replace(plan, channels=(replace(channel, serves=kept),))

    for name in ("zz-first", "aa-second"):
        monkeypatch.setitem(SCHEMES, name, Scheme("mst", baselines.NoParams, baselines.mst))
    monkeypatch.setitem(SCHEMES, "forgetful", Scheme("wrong", baselines.NoParams, forgetful))


Windows = tuple[Problem, Demand, Demand]


def test_the_least_money_on_validation_is_chosen(windows: Windows) -> None:
    problem, validation, test = windows
    outcome = weigh(problem, validation, test, QUICK)
    money = {name: price(make_plan(name, problem), validation).money for name in QUICK}
    assert outcome.chosen is not None
    assert outcome.chosen.name == min(money, key=money.__getitem__)
    assert {row.name: row.score for row in outcome.rows} == money
    assert not outcome.reasons


def test_all_windows_are_reported_for_every_scheme(windows: Windows) -> None:
    problem, validation, test = windows
    for row in weigh(problem, validation, test, QUICK).rows:
        assert row.plan is not None
        for made, demand in ((row.train, problem.demand), (row.validation, validation), (row.test, test)):
            assert made is not None
            assert made.demand is demand
            assert made.money == price(row.plan, demand).money
        assert row.seconds >= 0
    assert weigh(problem, validation, None, ["mst"]).rows[0].test is None


def test_neither_training_nor_test_decides(windows: Windows) -> None:
    """Unicast is cheapest for one event that floods nothing; only validation says so."""
    problem, validation, test = windows
    nothing = Demand.of([(0, [], 1, 100)])
    specs = ["broadcast", "per-source"]
    for train, last in ((problem.demand, test), (nothing, nothing)):
        outcome = weigh(replace(problem, demand=train), validation, last, specs)
        assert outcome.chosen is not None
        assert outcome.chosen.name == "per-source"


def test_of_equal_scores_the_first_tried_wins(windows: Windows, two_alike: None) -> None:
    problem, validation, _ = windows
    for specs in (["zz-first", "aa-second"], ["aa-second", "zz-first"]):
        chosen = weigh(problem, validation, None, specs).chosen
        assert chosen is not None
        assert chosen.name == specs[0]


def judge(monkeypatch: pytest.MonkeyPatch, names: Callable[[Price], list[str]]) -> None:
    """Another judge of rules than the real one."""
    monkeypatch.setattr(
        module, "judged", lambda plan, priced, rules: [BrokenRule(name, "so") for name in names(priced)]
    )


def test_a_plan_that_breaks_a_rule_is_not_chosen_and_says_which(
    windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, validation, _ = windows
    free = weigh(problem, validation, None, QUICK).chosen
    assert free is not None

    def keeps(priced: Price) -> list[str]:
        return ["no-" + free.name] if priced.plan.scheme == free.name else []

    judge(monkeypatch, keeps)
    outcome = weigh(problem, validation, None, QUICK)
    assert outcome.chosen is not None
    assert outcome.chosen.score == min(row.score for row in outcome.rows if row.name != free.name)
    assert outcome.reasons == {free.name: f"breaks no-{free.name}: so"}
    row = next(row for row in outcome.rows if row.name == free.name)
    assert row.broken == (f"no-{free.name}: so",)
    assert row.validation is not None


def test_rules_are_judged_on_all_events_of_the_windows(
    windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, validation, test = windows
    whole = Demand.of(
        (int(part.publisher[i]), part[i].tolist(), int(part.count[i]), int(part.size[i]))
        for part in (problem.demand, validation, test)
        for i in range(len(part))
    )
    asked: list[Price] = []
    judge(monkeypatch, lambda priced: asked.append(priced) or [])  # type: ignore[func-returns-value]
    weigh(problem, validation, test, ["mst"], whole=whole)
    weigh(replace(problem, demand=whole), whole, whole, ["mst"], whole=whole)
    weigh(problem, validation, test, ["mst"])
    plan = make_plan("mst", problem)
    assert asked[0].money == price(plan, whole).money
    assert asked[1].volume.events == whole.events
    assert asked[2].demand is validation


def test_when_every_plan_breaks_a_rule_none_is_chosen_and_all_say_why(
    windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, validation, _ = windows
    judge(monkeypatch, lambda made: ["latency", "quota"])
    outcome = weigh(problem, validation, None, ["mst", "hub"])
    assert outcome.chosen is None
    assert outcome.challenger is None
    assert outcome.reasons == dict.fromkeys(("mst", "hub"), "breaks latency: so, quota: so")
    assert weigh(problem, validation, None, []).chosen is None


def test_the_incumbent_stays_unless_enough_is_saved(windows: Windows) -> None:
    problem, validation, _ = windows
    dear, cheap = make_plan("broadcast", problem), make_plan("per-source", problem)
    outcome = weigh(problem, validation, None, ["per-source"], incumbent=dear)
    assert outcome.incumbent is not None
    before, after = (price(plan, validation).money for plan in (dear, cheap))
    assert outcome.challenger is not None
    saving = outcome.saving_of(outcome.challenger)
    assert saving == pytest.approx(1 - after / before)
    assert outcome.chosen is outcome.challenger
    assert list(outcome.successors(np.nextafter(saving, 0))) == [outcome.challenger]
    assert not any(outcome.successors(saving)), "at the threshold the old plan stays"
    back = weigh(problem, validation, None, ["broadcast"], incumbent=cheap)
    assert back.chosen is back.incumbent
    assert back.saving_of(back.rows[0]) < 0
    assert not any(back.successors(0.0))
    for wrong in (-0.1, float("nan"), float("inf")):
        with pytest.raises(InputError, match="Allowed: a share of the cost"):
            back.successors(wrong)
    rows = [each for members in problem.classes.members for each in members]
    other = Classes.collapse(rows[::-1], problem.overlay, SCHEMA.attributes)
    with pytest.raises(PlanError, match="number classes differently"):
        weigh(problem, validation, None, [], incumbent=replace(cheap, classes=other))
    free = weigh(problem, Demand.of([]), None, ["mst"], incumbent=cheap)
    assert free.saving_of(free.rows[0]) == 0.0, "nothing is saved where nothing is paid"
    assert not any(free.successors(0.0))


def test_an_incumbent_that_breaks_a_rule_is_replaced_although_that_saves_nothing(
    windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, validation, _ = windows
    cheap = make_plan("per-source", problem)
    judge(monkeypatch, lambda made: ["residency"] if made.plan.scheme == "per-source" else [])
    outcome = weigh(problem, validation, None, ["broadcast"], incumbent=cheap)
    assert outcome.saving_of(outcome.rows[0]) < 0
    assert list(outcome.successors(0.5)) == [outcome.rows[0]]
    judge(monkeypatch, lambda made: ["residency"])
    assert not any(weigh(problem, validation, None, ["broadcast"], incumbent=cheap).successors(0.0))


def test_a_scheme_that_reaches_a_limit_or_refuses_is_a_row_with_the_reason(
    windows: Windows,
) -> None:
    problem, validation, test = windows
    outcome = weigh(problem, validation, test, ["mult2:most_start=2", "hub=mars", "mst"])
    limit, site, mst = outcome.rows
    assert outcome.chosen is mst
    assert (limit.plan, limit.score, limit.validation) == (None, inf, None)
    assert "at most 2" in (limit.reason or "")
    assert "'mars'" in (site.reason or "")
    assert set(outcome.reasons) == {"mult2:most_start=2", "hub=mars"}


def test_a_plan_that_does_not_deliver_is_never_chosen(windows: Windows, two_alike: None) -> None:
    problem, validation, _ = windows
    outcome = weigh(problem, validation, None, ["forgetful", "mst"])
    assert outcome.rows[0].reason is not None, "it does not pass the check"
    assert outcome.chosen is outcome.rows[1]
    forgets = make_plan("forgetful", problem)
    now = weigh(problem, validation, None, ["mst"], incumbent=forgets).incumbent
    assert now is not None
    assert now.broken == (UNDELIVERED,)
    assert not now.allowed


def test_stored_filters_and_matchings_count_at_the_weight_given(windows: Windows) -> None:
    problem, validation, _ = windows
    for weights in (Weights(per_filter=0.5), Weights(per_matching=0.25), Weights(2.0, 3.0)):
        for row in weigh(problem, validation, None, ["mst", "explicit", "broadcast"], weights=weights).rows:
            made = row.validation
            assert made is not None
            wanted = made.money + weights.per_filter * made.state.filters.sum()
            assert row.score == pytest.approx(wanted + weights.per_matching * made.matchings)


def test_dear_matching_turns_the_choice(windows: Windows) -> None:
    problem, validation, _ = windows
    specs = ["per-source", "broadcast"]
    cheap = weigh(problem, validation, None, specs).chosen
    matchings = {name: price(make_plan(name, problem), validation).matchings for name in specs}
    dear = weigh(problem, validation, None, specs, weights=Weights(per_matching=1e6)).chosen
    assert cheap is not None
    assert dear is not None
    assert cheap.name == "per-source"
    assert dear.name == min(matchings, key=matchings.__getitem__)


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf])
def test_weights_below_nothing_are_refused(wrong: float) -> None:
    with pytest.raises(InputError, match="per_matching"):
        Weights(per_matching=wrong)


def test_a_spec_that_cannot_be_read_is_refused_before_anything_is_made(
    windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, validation, _ = windows
    monkeypatch.setattr(module, "make_plan", None)
    with pytest.raises(InputError, match="unknown scheme 'nst'"):
        weigh(problem, validation, None, ["mst", "nst"])


def test_without_specs_every_scheme_is_tried_in_order_and_progress_only_rises(
    windows: Windows,
) -> None:
    problem, validation, test = windows
    shares: list[float] = []
    outcome = weigh(problem, validation, test, progress=lambda share, what: shares.append(share))
    assert [row.name for row in outcome.rows] == list(SCHEMES)
    assert not outcome.reasons
    assert shares == sorted(shares)
    assert shares[0] >= 0
    assert shares[-1] <= 1


def test_the_same_seed_gives_the_same_outcome(windows: Windows) -> None:
    problem, validation, _ = windows
    specs = ["spt", "portfolio:trees=3", "single"]
    first, again = (weigh(problem, validation, None, specs, seed=3) for _ in range(2))
    assert [row.plan for row in first.rows] == [row.plan for row in again.rows]
    assert [row.score for row in first.rows] == [row.score for row in again.rows]
