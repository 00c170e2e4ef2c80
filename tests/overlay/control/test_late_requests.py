"""Live subscriptions with a latency bound: a revision where plans bound latency, or refused, with why."""

from itertools import count

import pytest

from ramify.content.filters.subscriptions import Subscription
from ramify.network.graphs.overlay import Link, Overlay
from ramify.overlay.control.records import FilterText, ForwardedRequest, Request
from ramify.overlay.control.registry import Book
from ramify.overlay.control.requests import RequestLimits, RequestOutcome, ask
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.check import check
from ramify.planning.plans.lateness import late_subscriptions
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.catalog import make_plan
from worlds import SCHEMA


def line() -> Overlay:
    """v0 - v1 - v2, 5 ms each: nothing gets from v0 to v2 in less than 10."""
    links = [Link.symmetric(f"v{i}", f"v{i + 1}", 1.0, latency_ms=5.0) for i in range(2)]
    return Overlay.build("line", ["v0", "v1", "v2"], links)


def book_of(spec: str) -> Book:
    overlay = line()
    rows = [Subscription("s", "s", "v1", sql="x >= 0")]
    problem = Problem.of(overlay, Classes.collapse(rows, overlay, SCHEMA.attributes), Demand.of([]))
    names = count()
    book, _ = Book.first(check(make_plan(spec, problem, 0), problem), lambda: f"k{next(names)}")
    return book


def asked(book: Book, latency_ms: float | None, sql: str = "x = 1") -> RequestOutcome:
    request = Request("subscribe", "n", FilterText(sql), latency_ms=latency_ms)
    plan = book.head.plan
    rules = RequestLimits(
        frozenset(book.overlay.index),
        plan.classes.schema,
        plan.attachments,
        book.owner.get,
        too_late=book.too_late,
    )
    return ask(book.records.get("c"), ForwardedRequest("v2", "c", request), rules)


def revised(book: Book, told: RequestOutcome) -> None:
    assert told.problem is None
    book.put_records([told.record])
    assert book.revise(told.ids)


def test_a_bound_that_can_be_kept_is_a_revision() -> None:
    for spec in ("semcast-delay", "semcast-delay:late=refuse"):
        book = book_of(spec)
        revised(book, asked(book, 10.0))
        assert not book.head.lacks
        assert book.head.plan.classes.class_of.keys() == {"s", "c/n"}
        assert book.head.plan.classes.latency_ms.tolist()[-1] == 10.0
        assert late_subscriptions(book.head.plan) == ()


def test_a_bound_that_cannot_be_kept_is_refused_with_what_can_be() -> None:
    book = book_of("semcast-delay:late=refuse")
    told = asked(book, 9.0)
    assert told.problem is not None
    assert told.problem.code == "too_late"
    assert "'c/n' at v2 allows 9 ms, and 10 ms can be kept" in told.problem.reason
    assert not told.ids


def test_a_plan_that_does_not_refuse_serves_late() -> None:
    book = book_of("semcast-delay")
    revised(book, asked(book, 9.0))
    (late,) = late_subscriptions(book.head.plan)
    assert (late.id, late.bound_ms) == ("c/n", 9.0)
    assert late.ms >= 10.0
    other = book_of("semcast")
    revised(other, asked(other, 9.0))
    assert late_subscriptions(other.head.plan) == ()  # its trees know no bounds


def test_asking_again_keeps_the_bound_or_changes_it() -> None:
    book = book_of("semcast-delay:late=refuse")
    revised(book, asked(book, 20.0))
    again = asked(book, None)
    assert again.record.subscriptions["c/n"].latency_ms == 20.0
    assert asked(book, 20.0).record.subscriptions["c/n"].latency_ms == 20.0
    stricter = asked(book, 2.0)
    assert stricter.problem is not None
    revised(book, asked(book, 12.0))
    rows = {row.id: row for members in book.head.plan.classes.members for row in members}
    assert rows["c/n"].latency_ms == 12.0


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_bound_is_refused(bad: float) -> None:
    told = asked(book_of("semcast"), bad)
    assert told.problem is not None
    assert told.problem.code == "bad_request"
