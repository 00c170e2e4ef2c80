"""Budgets refill as they should, and no client waits for another's queue."""

from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.overlay.control.fairness import ClientBudgets, FairQueue, RequestRates, TokenBucket

STEPS = st.lists(st.tuples(st.floats(0, 5), st.floats(0, 2)), max_size=40)
ARRIVALS = st.lists(st.sampled_from("abc"), max_size=60)


@given(STEPS)
def test_a_bucket_gives_no_more_than_its_burst_and_its_rate(steps: list[tuple[float, float]]) -> None:
    bucket, now, spent = TokenBucket(0.5, 2.0, 0.0), 0.0, 0.0
    for pause, amount in steps:
        now += pause
        if bucket.wait_s(amount, now) == 0.0:
            bucket.charge(amount, now)
            spent += amount
        assert spent <= 2.0 + 0.5 * now + 1e-6


@given(STEPS, st.floats(0.1, 2))
def test_after_the_wait_it_is_there_and_not_much_before(
    steps: list[tuple[float, float]], asked: float
) -> None:
    bucket, now = TokenBucket(0.5, 2.0, 0.0), 0.0
    for pause, amount in steps:
        now += pause
        bucket.charge(amount, now)
    wait = bucket.wait_s(asked, now)
    if wait > 1e-3:
        assert bucket.wait_s(asked, now + wait / 2) > 0
    assert bucket.wait_s(asked, now + wait) == pytest.approx(0.0, abs=1e-6)


def test_a_client_that_took_too_much_waits_and_others_do_not() -> None:
    budgets = ClientBudgets(RequestRates(10.0, 3.0, 0.1, 1.0))
    for _ in range(3):
        assert budgets.wait_s("flood", 0.0) == 0.0
        budgets.count("flood", 0.0)
    assert budgets.wait_s("flood", 0.0) == pytest.approx(0.1)
    budgets.charge("heavy", 1.5, 0.0)
    assert budgets.wait_s("heavy", 0.0) == pytest.approx(5.0)
    assert budgets.wait_s("other", 0.0) == 0.0
    assert budgets.wait_s("heavy", 5.0) == pytest.approx(0.0)


def test_budgets_of_many_clients_are_bounded() -> None:
    budgets = ClientBudgets(RequestRates(10.0, 1.0, 0.1, 1.0), most=2)
    for client in "abc":
        budgets.count(client, 0.0)
    assert [budgets.wait_s(client, 0.0) > 0 for client in "cb"] == [True, True]
    assert len(budgets._buckets) == 2


@given(ARRIVALS, st.integers(0, 60))
def test_clients_are_served_in_turn_and_each_in_order(arrivals: list[str], early: int) -> None:
    """At most one item of each other client is served for each item of a client's own."""
    queue: FairQueue[tuple[str, int]] = FairQueue()
    put: Counter[str] = Counter()
    served: dict[str, int] = defaultdict(int)
    waits: dict[tuple[str, int], Counter[str]] = {}
    ahead: dict[tuple[str, int], int] = {}

    def serve() -> None:
        client, number = queue.take()
        assert number == served[client], "in order"
        served[client] += 1
        mine = ahead.pop((client, number)) + 2
        assert all(count <= mine for count in waits.pop((client, number)).values())
        for others in waits.values():
            others[client] += 1

    for k, client in enumerate(arrivals):
        item = client, put[client]
        ahead[item], waits[item] = queue.waiting(client), Counter()
        queue.put(client, item)
        put[client] += 1
        if k < early and k % 3 == 2:
            serve()
    while len(queue):
        serve()
    assert served == {client: count for client, count in put.items() if count}


def test_what_is_put_back_is_next() -> None:
    queue: FairQueue[str] = FairQueue()
    for client, item in (("a", "a1"), ("a", "a2"), ("b", "b1")):
        queue.put(client, item)
    assert queue.take() == "a1"
    taken = queue.take()
    assert taken == "b1"
    queue.put_back("b", taken)
    assert list(queue) == ["b1", "a2"]
    assert [queue.take(), queue.take(), len(queue)] == ["b1", "a2", 0]
