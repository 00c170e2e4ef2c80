"""Clients that ask for very much are refused, or served in parts; the leader outlives them all."""

import asyncio
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from obedient import ACCOUNTS, Asker, endpoint, obeying
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError, LimitError
from ramify.overlay.control import registry
from ramify.overlay.control.records import (
    ClientRecord,
    FilterText,
    ForwardedRequest,
    Refusal,
    Request,
    encode,
)
from ramify.overlay.control.registry import MOST_CHANGES_BYTES
from ramify.overlay.control.requests import MOST_RECORD_BYTES, RequestLimits, ask
from ramify.overlay.control.revisions import PlanChange
from ramify.overlay.live.broker.client_requests import check_request
from ramify.overlay.live.coordinator import term
from ramify.overlay.live.coordinator.coordinator import Coordinator, CoordinatorConfig
from ramify.overlay.live.host.server import Server, ServerConfig
from ramify.overlay.live.wire.store import Store
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end
from ramify.planning.plans.files import encode_plan
from ramify.planning.schemes.catalog import make_plan
from running import seeded_world

WORLD = seeded_world(5, 6, 12, 60)
BROKERS = list(WORLD.overlay.brokers)
AT = BROKERS[3]


def large(kind: str, id_: str, size: int) -> Request:
    return Request(kind, id_, FilterText(f"word = '{id_}{'a' * size}'"), wait_s=30.0)


def rules(most_bytes: int) -> RequestLimits:
    return RequestLimits(frozenset({"v"}), {}, {}, lambda _: None, most_bytes=most_bytes)


ASKS = st.tuples(
    st.sampled_from(["subscribe"] * 2 + ["advertise", "unsubscribe", "unadvertise", "suspend", "resume"]),
    st.sampled_from("abcdef"),
    st.integers(0, 900),
)


@given(st.lists(ASKS, max_size=30))
@settings(max_examples=60)
def test_no_request_makes_a_record_longer_than_it_may_be(asked: list[tuple[str, str, int]]) -> None:
    most, record = 2_000, ClientRecord("c", "v")
    longest = most + 6 * len(',"suspended":"quota"')
    for op, id_, size in asked:
        request = large(op, id_, size)
        done = ask(record, ForwardedRequest("v", "c", request, "quota"), rules(most))
        if done.problem is not None and done.problem.code == "limit":
            assert op in ("subscribe", "advertise")
            assert done.record == record
        if op in ("unsubscribe", "unadvertise", "resume"):
            assert done.problem is None or done.problem.code == "unknown"
        if done.problem is None:
            record = done.record
        assert len(encode(record)) <= longest


def test_a_request_that_is_made_again_is_not_refused_for_its_size() -> None:
    record = ask(None, ForwardedRequest("v", "c", large("subscribe", "a", 500)), rules(10_000)).record
    again = ask(record, ForwardedRequest("v", "c", large("subscribe", "a", 500)), rules(10))
    assert again.problem is None


@pytest.mark.parametrize("number", [0, -1, 1 << 60, 10**300])
def test_numbers_that_no_record_should_have_are_refused(number: int) -> None:
    request = msgspec.structs.replace(large("subscribe", "a", 1), quota_bytes=number)
    checked = check_request(msgspec.json.encode(request), "c", "v", {})
    assert isinstance(checked, Refusal)
    assert checked.code == "bad_request"
    found = ask(None, ForwardedRequest("v", "c", request), rules(10_000))
    assert found.problem is not None
    assert found.problem.code == "bad_request"


def test_a_filter_beyond_a_limit_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(self: Subscription, schema: object = None) -> None:
        raise LimitError("too much of it")

    monkeypatch.setattr(Subscription, "parse", parse)
    found = ask(None, ForwardedRequest("v", "c", large("subscribe", "a", 1)), rules(10_000))
    assert found.problem == Refusal("too_complex", "too much of it")


@given(st.lists(st.integers(0, 3 * MOST_CHANGES_BYTES // 2), max_size=8))
@settings(max_examples=30)
def test_changes_are_cut_into_parts_that_a_server_takes(sizes: list[int]) -> None:
    changes = [PlanChange({"sql": "x" * size}, k) for k, size in enumerate(sizes)]
    parts = registry._parts(changes)
    assert [change for part in parts for change in part] == changes
    for part in parts:
        assert len(part) <= 1 or sum(len(encode(c)) for c in part) <= MOST_CHANGES_BYTES
    whole = sum(len(encode(change)) for change in changes)
    assert len(parts) <= 1 + 2 * whole // MOST_CHANGES_BYTES


def play(directory: Path, scenario, *, max_payload: int = 8 << 20) -> None:  # type: ignore[no-untyped-def]
    async def bounded() -> None:
        config = ServerConfig("control", directory / "control", ACCOUNTS, max_payload=max_payload)
        server = Server(config)
        plan = make_plan("mst", WORLD.problem)
        await server.start()
        coordinator = Coordinator(CoordinatorConfig("k0", endpoint(server, "k0"), plan))
        ask_ = Asker(server)
        running = asyncio.create_task(coordinator.run())
        try:
            async with asyncio.timeout(600), obeying(server, BROKERS) as brokers:
                await scenario(coordinator, ask_, brokers)
                assert coordinator.terms == 1
        finally:
            await end_tasks([running])
            await ask_.close()
            await server.stop()

    run_to_end(bounded())


def test_a_client_whose_record_would_be_too_long_is_refused_and_the_leader_stays(tmp_path: Path) -> None:
    async def scenario(coordinator: Coordinator, ask_: Asker, brokers: object) -> None:
        size = 10_000
        room = (1 << 18) // 2 // (size + 200)
        for k in range(room):
            assert (await ask_(AT, "new", large("subscribe", f"s{k}", size))).ok
        for op in ("subscribe", "advertise", "subscribe"):
            told = await ask_(AT, "new", large(op, "more", size))
            assert told.error is not None
            assert told.error.code == "limit"
        listed = await ask_(AT, "new", Request("list"))
        assert listed.client is not None
        assert len(listed.client.subscriptions) == room
        assert (await ask_(AT, "new", Request("suspend"), "quota")).ok
        assert (await ask_(AT, "new", Request("resume"))).ok
        assert (await ask_(AT, "new", Request("unsubscribe", "s0"))).ok
        assert (await ask_(AT, "new", large("subscribe", "more", size))).ok

    play(tmp_path, scenario, max_payload=1 << 18)


def test_a_revision_of_more_than_a_message_is_written_in_parts(tmp_path: Path) -> None:
    async def scenario(coordinator: Coordinator, ask_: Asker, brokers) -> None:  # type: ignore[no-untyped-def]
        assert (await ask_(AT, "first", large("subscribe", "s", 10))).ok
        requests = [(f"n{k}", large("subscribe", "s", 10_000)) for k in range(150)]
        answers = await asyncio.gather(*(ask_(AT, client, request) for client, request in requests))
        assert all(answer.ok and not answer.missing for answer in answers)
        assert coordinator.term is not None
        book = coordinator.term.book
        revisions = [revision for revision, _ in book.head.changes]
        assert len(revisions) > len(set(revisions)), "the test asks for too little at once"
        for epoch, live in book.live.items():
            for broker in brokers.values():
                assert encode_plan(broker.plans[epoch][1]) == encode_plan(live.plan)

    play(tmp_path, scenario, max_payload=1 << 20)


def test_a_request_that_trips_over_a_fault_of_ours_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trips(record: object, passed: ForwardedRequest, rules: RequestLimits):  # type: ignore[no-untyped-def]
        if passed.client == "bad":
            raise ZeroDivisionError("ours")
        return ask(record, passed, rules)  # type: ignore[arg-type]

    monkeypatch.setattr(term, "ask", trips)

    async def scenario(coordinator: Coordinator, ask_: Asker, brokers: object) -> None:
        told = await ask_(AT, "bad", large("subscribe", "s", 10))
        assert told.error is not None
        assert told.error.code == "bad_request"
        assert "ours" in told.error.reason
        assert (await ask_(AT, "good", large("subscribe", "s", 10))).ok

    play(tmp_path, scenario)


def test_a_first_plan_with_a_record_that_no_server_takes_is_an_error(tmp_path: Path) -> None:
    plan = make_plan("mst", WORLD.problem)
    classes = plan.classes
    many = [
        replace(row, id=f"{row.id}-{k}-{'i' * 200}") for row in classes.members[0][:1] for k in range(600)
    ]
    members = ((*classes.members[0], *many), *classes.members[1:])
    plan = replace(plan, classes=replace(classes, members=members))

    async def bounded() -> None:
        config = ServerConfig("control", tmp_path / "control", ACCOUNTS, max_payload=1 << 16)
        server = Server(config)
        await server.start()
        try:
            async with asyncio.timeout(240):
                with pytest.raises(InputError, match="the control server takes"):
                    await Coordinator(CoordinatorConfig("k0", endpoint(server, "k0"), plan)).run()
                store = await Store.connect(endpoint(server, "test"))
                assert await store.get("state") is None
                await store.close()
        finally:
            await server.stop()

    run_to_end(bounded())


def test_the_limit_leaves_room_in_a_message_of_the_default_size() -> None:
    assert ServerConfig("s", Path("/s"), "").max_payload // 2 >= MOST_RECORD_BYTES
