"""The checker finds each kind of breach in histories made by hand, and in valid ones that were changed."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.errors import InputError
from ramify.overlay.histories.checker import judge
from ramify.overlay.histories.conditions import digest, holds
from ramify.overlay.histories.rows import (
    Condition,
    DeliveryRow,
    EndRow,
    FaultRow,
    HistoryRow,
    PublishRow,
    RunRow,
    StatusRow,
    SubscribeRow,
    SuspensionRow,
    UnsubscribeRow,
)
from ramify.overlay.histories.verdict import (
    DOUBLED,
    FORFEITED,
    LOST,
    REORDERED,
    UNEXPECTED,
    UNTOLD,
    HistoryVerdict,
)

LOW: Condition = ((("x", "<", 5),),)
RUN = RunRow("r", 0.0, ordered=True, patience_s=10.0)


def published(
    id: str, at: float, x: int = 1, outcome: Any = "acknowledged", client: str = "p"
) -> PublishRow:
    return PublishRow(client, at, ((id, {"x": x}),), outcome, None if outcome == "unknown" else at + 0.1)


def came(*ids: str, at: float, x: int = 1, to: str = "s", number: int = 1) -> DeliveryRow:
    return DeliveryRow("c", at, (to,), tuple((id, digest({"x": x})) for id in ids), number)


def active(
    at: float = 1.0, answered: float = 2.0, condition: Condition = LOW, id: str = "s"
) -> SubscribeRow:
    return SubscribeRow("c", id, condition, at, "active", answered)


def ended(at: float, answered: float | None = None) -> UnsubscribeRow:
    return UnsubscribeRow("c", "s", at, "unknown" if answered is None else "ended", answered)


def verdict(*rows: HistoryRow, end: float = 100.0, run: RunRow = RUN) -> HistoryVerdict:
    return judge([run, *rows, EndRow(end)])


def only(found: HistoryVerdict, kind: str, count: int = 1) -> str:
    """The story of the only breach."""
    assert dict(found.counts) == {kind: count}, found.text()
    assert found.is_kept == (kind == FORFEITED)
    return str(found.breaches[0])


# ------------------------------------------------------------------------------------- made by hand


def test_what_is_due_came_once() -> None:
    found = verdict(active(), published("a", 3), came("a", at=4), published("b", 5, x=9))
    assert found.is_kept
    assert (found.due, found.delivered, found.acknowledged) == (1, 1, 2)
    assert "was kept" in found.text()


def test_an_acknowledged_event_that_never_came_is_lost_and_its_story_is_short() -> None:
    fault = FaultRow("kill", 3.5, target="v1")
    found = verdict(active(), published("a", 3), fault, published("b", 50), came("b", at=51), end=52)
    assert LOST in found.counts
    story = next(each.story for each in found.breaches if each.kind == LOST)
    assert len(story) == 3
    assert "c subscribes s" in story[0]
    assert "p publishes a" in story[1]
    assert "kill v1" in story[2]


@pytest.mark.parametrize(
    "row",
    [published("a", 3, outcome="unknown"), published("a", 3, outcome="refused"), published("a", 1.5)],
    ids=["unknown", "refused", "before the subscription was active"],
)
def test_what_was_not_promised_is_not_lost(row: PublishRow) -> None:
    assert verdict(active(), row, end=12).is_kept


def test_a_partial_subscription_is_promised_nothing_until_it_is_active() -> None:
    partial = SubscribeRow("c", "s", LOW, 1.0, "partial", 2.0)
    assert verdict(partial, published("a", 3), end=12).is_kept
    assert verdict(partial, published("a", 3), active(4, 5), published("b", 6), end=12).counts[LOST] == 1


def test_what_came_twice_is_doubled() -> None:
    found = verdict(active(), published("a", 3), came("a", at=4), came("a", at=5, number=2))
    assert "a comes to s" in only(found, DOUBLED)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([came("ghost", at=4)], "nobody published"),
        ([published("a", 3, x=7), came("a", at=4, x=7)], "does not hold"),
        ([published("a", 3), came("a", at=4, x=2)], "attributes are not those"),
        ([published("a", 3, outcome="refused"), came("a", at=4)], "refused"),
        ([published("a", 6), came("a", at=5)], "before it was published"),
        ([ended(3, 4), published("a", 5), came("a", at=6)], "after the end"),
        ([published("a", 3), came("a", at=4), came("a", at=4, to="other")], "never subscribed"),
    ],
)
def test_what_must_not_come_is_unexpected(rows: Sequence[HistoryRow], why: str) -> None:
    assert why in only(verdict(active(), *rows), UNEXPECTED)


def test_what_comes_while_a_subscription_begins_or_ends_is_neither_due_nor_unexpected() -> None:
    early = [published("a", 0.5), came("a", at=1.5)]
    late = [published("b", 5), ended(5.05, 9), came("b", at=6)]
    assert verdict(active(), *early, *late).is_kept
    assert verdict(active(), *early, *late[:2]).is_kept


def test_an_end_without_an_answer_lets_events_come_for_ever() -> None:
    assert verdict(active(), ended(3), published("a", 50), came("a", at=51)).is_kept


def test_what_a_suspended_client_does_not_get_is_not_lost() -> None:
    assert verdict(active(), published("a", 3), SuspensionRow("c", 4, "quota"), end=12).is_kept


def test_a_later_event_of_the_same_publisher_first_is_out_of_order() -> None:
    rows = [active(), published("a", 3), published("b", 4), came("b", at=5), came("a", at=6, number=2)]
    assert "after b" in only(verdict(*rows), REORDERED)
    unjudged = verdict(*rows, run=msgspec.structs.replace(RUN, ordered=False))
    assert unjudged.is_kept
    assert "order is not judged" in unjudged.text()
    assert unjudged.figures()["out_of_order"] is None
    assert verdict(*rows, FaultRow("switch", 4.5, 4.6, reorders=True)).is_kept
    assert not verdict(*rows, FaultRow("switch", 2, 2.5, reorders=True)).is_kept
    concurrent = PublishRow("p", 3.0, (("a", {"x": 1}),), "acknowledged", 4.05)
    assert verdict(*[concurrent if row == rows[1] else row for row in rows]).is_kept


def test_events_of_one_publish_are_in_order() -> None:
    both = PublishRow("p", 3.0, (("a", {"x": 1}), ("b", {"x": 1})), "acknowledged", 3.1)
    assert verdict(active(), both, came("a", "b", at=4)).is_kept
    only(verdict(active(), both, came("b", "a", at=4)), REORDERED)


def test_what_was_overtaken_is_lost_also_to_a_subscription_that_ended() -> None:
    rows = [active(), published("a", 3), published("b", 4), came("b", at=5), ended(6, 7)]
    only(verdict(*rows), LOST)
    assert verdict(*rows, FaultRow("switch", 4.5, reorders=True)).is_kept


def looks(begin: int, end: int, *tells: str) -> list[StatusRow]:
    return [StatusRow(float(at), at + 0.1, tells) for at in range(begin, end)]


def test_an_event_that_waits_while_the_status_says_nothing_is_in_an_untold_stall() -> None:
    rows = [active(), published("a", 3), came("a", at=40)]
    assert "said nothing" in only(verdict(*rows, *looks(0, 50)), UNTOLD)
    assert verdict(*rows, *looks(0, 50, "v1: catching up")).is_kept
    assert verdict(*rows, *looks(0, 10), *looks(10, 40, "v1: lag 3"), *looks(40, 50)).is_kept
    assert verdict(active(), published("a", 3), came("a", at=9), *looks(0, 50)).is_kept
    # nobody looked: nothing is known
    assert verdict(*rows, *looks(0, 5), *looks(39, 50)).is_kept


def test_what_a_fault_destroyed_is_forfeited_only_if_an_alarm_says_so() -> None:
    fault = FaultRow("wiped", 5.0, 6.0, target="v1", forfeits=True)
    alarm = StatusRow(8.0, 8.1, alarms=("v1: hole 3 to 9",))
    only(verdict(active(), published("a", 3), fault, alarm, end=12), FORFEITED)
    only(verdict(active(), published("a", 3), fault, end=12), LOST)
    only(verdict(active(), published("a", 6.5), fault, alarm, end=15), LOST)


def test_recovery_is_the_longest_wait_after_a_single_kill() -> None:
    kill = FaultRow("kill", 10.0, target="v1", is_single=True)
    found = verdict(
        active(),
        published("a", 9),
        kill,
        published("b", 11),
        came("a", at=14),
        came("b", at=14.5, number=2),
    )
    assert found.recoveries == [("kill", 4.0)]


def test_a_history_that_contradicts_itself_or_has_no_end_is_refused() -> None:
    with pytest.raises(InputError, match="no end row"):
        judge([RUN, active()])
    with pytest.raises(InputError, match="begins with its run row"):
        judge([EndRow(1.0)])
    with pytest.raises(InputError, match="published twice"):
        verdict(published("a", 3), published("a", 4))
    with pytest.raises(InputError, match="is two"):
        verdict(active(), active(condition=((("x", "<", 6),),)))
    with pytest.raises(InputError, match="never asked for"):
        verdict(ended(3, 4))


# ----------------------------------------------------------------------------------- drawn at random


def valid(rng: random.Random) -> list[HistoryRow]:
    """What clients of a perfect overlay see: every event comes at once, in order, to all that want it."""
    rows: list[HistoryRow] = []
    now = 1.0
    live: dict[str, tuple[str, Condition]] = {}
    for k in range(rng.randrange(4, 9)):
        condition: Condition = ((("x", rng.choice(["<", ">=", "="]), rng.randrange(4)),),)
        live[f"s{k}"] = f"c{k % 3}", condition
        rows.append(SubscribeRow(f"c{k % 3}", f"s{k}", condition, now, "active", now + 0.5))
        now += 1
    for k in range(rng.randrange(20, 60)):
        now += rng.uniform(0.2, 2)
        if live and rng.random() < 0.05:
            id = rng.choice(sorted(live))
            client, _ = live.pop(id)
            rows.append(UnsubscribeRow(client, id, now, "ended", now + 0.1))
            continue
        events = tuple((f"e{k}.{i}", {"x": rng.randrange(4)}) for i in range(rng.randrange(1, 4)))
        outcome = rng.choices(["acknowledged", "unknown", "refused"], [20, 1, 1])[0]
        answered = None if outcome == "unknown" else now + 0.1
        rows.append(PublishRow(f"p{k % 2}", now, events, outcome, answered))  # type: ignore[arg-type]
        for id, (client, condition) in live.items():
            wanted = tuple((e, digest(v)) for e, v in events if holds(condition, v))
            if wanted and outcome != "refused":
                rows.append(DeliveryRow(client, now + rng.uniform(0.2, 0.9), (id,), wanted, k))
                now += 0.01
    return [RUN, *rows, EndRow(now + 30)]


def due(rows: Sequence[HistoryRow], row: HistoryRow) -> bool:
    """Whether what a delivery has is due, to a subscription that lives to the end."""
    if not isinstance(row, DeliveryRow):
        return False
    ended = {each.subscription for each in rows if isinstance(each, UnsubscribeRow)}
    outcome = {e: p.outcome for p in rows if isinstance(p, PublishRow) for e, _ in p.events}
    return not ended & set(row.subscriptions) and all(outcome[e] == "acknowledged" for e, _ in row.events)


def drop(rows: list[HistoryRow], at: int) -> str:
    del rows[at]
    return LOST


def repeat(rows: list[HistoryRow], at: int) -> str:
    rows.insert(at + 1, rows[at])
    return DOUBLED


def change(rows: list[HistoryRow], at: int) -> str:
    row = rows[at]
    assert isinstance(row, DeliveryRow)
    rows[at] = msgspec.structs.replace(row, events=((row.events[0][0], "changed"), *row.events[1:]))
    return UNEXPECTED


def invent(rows: list[HistoryRow], at: int) -> str:
    row = rows[at]
    assert isinstance(row, DeliveryRow)
    rows[at] = msgspec.structs.replace(row, events=(*row.events, ("nobody", "12345678")))
    return UNEXPECTED


def delay(rows: list[HistoryRow], at: int) -> str:
    """To the end, without a word of the status."""
    row = rows.pop(at)
    last = rows[-1]
    assert isinstance(row, DeliveryRow)
    assert isinstance(last, EndRow)
    now = last.at + 100
    rows[-1:] = [
        *(StatusRow(float(t), t + 0.1) for t in range(int(row.at), int(now))),
        msgspec.structs.replace(row, at=now),
        EndRow(now + 1),
    ]
    return UNTOLD


@given(st.integers(0, 1 << 32))
def test_a_valid_history_passes(seed: int) -> None:
    found = judge(valid(random.Random(seed)))
    assert found.is_kept, found.text()


@pytest.mark.parametrize("mutation", [drop, repeat, change, invent, delay])
@given(seed=st.integers(0, 1 << 32))
def test_a_change_of_a_valid_history_is_found(
    mutation: Callable[[list[HistoryRow], int], str], seed: int
) -> None:
    rng = random.Random(seed)
    rows = valid(rng)
    places = [at for at, row in enumerate(rows) if due(rows, row)]
    if places:
        kind = mutation(rows, rng.choice(places))
        found = judge(rows)
        assert found.counts[kind] >= 1, found.text()
        assert any(breach.kind == kind and breach.story for breach in found.breaches)


@given(seed=st.integers(0, 1 << 32))
def test_two_deliveries_in_turn_are_found(seed: int) -> None:
    rng = random.Random(seed)
    rows = valid(rng)
    publishers = {e: p.client for p in rows if isinstance(p, PublishRow) for e, _ in p.events}
    places = [at for at, row in enumerate(rows) if due(rows, row)]
    pairs = []
    for i, first in enumerate(places):
        for second in places[i + 1 :]:
            a, b = rows[first], rows[second]
            assert isinstance(a, DeliveryRow)
            assert isinstance(b, DeliveryRow)
            same = publishers[a.events[0][0]] == publishers[b.events[0][0]]
            if a.subscriptions == b.subscriptions and same:
                pairs.append((first, second, a, b))
                break
    if pairs:
        first, second, a, b = rng.choice(pairs)
        # both came late, the later event first
        rows[second : second + 1] = [b, msgspec.structs.replace(a, at=b.at)]
        del rows[first]
        assert judge(rows).counts[REORDERED] >= 1
