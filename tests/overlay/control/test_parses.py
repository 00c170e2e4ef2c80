"""A subscription's filter is parsed once in a process, whatever the subscription passes through there."""

import pytest

from parses import counted_parses
from ramify.content.events.events import AttributeType
from ramify.network.graphs.overlay import Link, Overlay
from ramify.overlay.control.records import FilterText, ForwardedRequest, Request
from ramify.overlay.control.registry import Book, applied, revised, wanted_of
from ramify.overlay.control.requests import RequestLimits, ask
from ramify.overlay.routing.plan import RoutingPlan
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.files import decode_plan, encode_plan
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.catalog import make_plan

SCHEMA = {"x": AttributeType.INT64}


def test_from_the_request_to_the_router_a_filter_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for, taken into the registry and its plan, revised, stored, read, made ready to route."""
    overlay = Overlay.build("two", ["a", "b"], [Link("a", "b", 1.0, 1.0, 1.0)])
    problem = Problem.of(overlay, Classes.collapse([], overlay, SCHEMA), Demand.of([]))
    plan = make_plan("mst", problem)
    parsed = counted_parses(monkeypatch)
    limits = RequestLimits(frozenset("ab"), SCHEMA, {}, lambda _: None)
    request = Request("subscribe", id="s", filter=FilterText(sql="x > 1"))
    told = ask(None, ForwardedRequest(client="c", broker="a", request=request), limits)
    assert told.problem is None
    book, _ = Book.first(plan, iter("abcdef").__next__)
    book.put_records([told.record])
    assert book.revise(told.ids)
    assert list(book.head.plan.classes.class_of) == list(told.ids)
    made = revised(plan, wanted_of(told.record))
    for _ in range(2):
        assert RoutingPlan(applied(plan, made.changes)).matcher is not None
        assert decode_plan(encode_plan(made.plan)).classes.filters == made.plan.classes.filters
    assert parsed == {"x > 1": 1}


def test_a_leader_begins_without_parsing_what_the_one_before_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However hard the filters are: neither reading plans and changes nor comparing them with what is
    wanted needs them."""
    overlay = Overlay.build("two", ["a", "b"], [Link("a", "b", 1.0, 1.0, 1.0)])
    problem = Problem.of(overlay, Classes.collapse([], overlay, SCHEMA), Demand.of([]))
    names = (str(k) for k in range(1000))
    book, writes = Book.first(make_plan("mst", problem), names.__next__)
    stored = {write.key: write.value for write in writes}
    limits = RequestLimits(frozenset("ab"), SCHEMA, {}, lambda _: None)
    for k in range(20):
        request = Request("subscribe", id=f"s{k}", filter=FilterText(sql=f"x > {k} OR x < -{k}"))
        client = f"c{k % 3}"
        told = ask(book.records.get(client), ForwardedRequest("a", client, request), limits)
        writes = [*book.put_records([told.record]), *book.revise(told.ids)]
        if k == 9:
            writes += book.rebase(book.epochs.wanted or 0)
        stored |= {write.key: write.value for write in (*writes, book.state())}
    parsed = counted_parses(monkeypatch)
    clients = [value for key, value in stored.items() if key.startswith("clients.")]
    after = Book.load(stored.__getitem__, clients, names.__next__)
    assert after.revise(None) == []
    assert after.head.plan.classes.class_of == book.head.plan.classes.class_of
    assert len(after.head.plan.classes.class_of) == 20
    assert not parsed
