"""Brokers under control: they route what was decided, and only while they may."""

import asyncio
import json
import os
import urllib.request
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from overseeing import Overseen, expected, overseen
from ramify.content.events.events import Event, EventSchema, events_to_batch
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import LiveError
from ramify.overlay.control.epochs import Epochs, EpochStage
from ramify.overlay.control.frames import encode_events
from ramify.overlay.control.intake import ClientMessage
from ramify.overlay.control.names import LINK, token
from ramify.overlay.control.records import (
    Answer,
    FilterText,
    ForwardedRequest,
    LiveEpoch,
    Refusal,
    Request,
    decode,
    encode,
)
from ramify.overlay.control.revisions import PlanChange, PlanChanges
from ramify.overlay.control.steps import Node
from ramify.overlay.live.broker.broker import BrokerConfig
from ramify.overlay.live.broker.client_requests import check_request
from ramify.overlay.live.broker.controlled import ControlledBroker, ControlledConfig
from ramify.overlay.live.broker.log import SupersededError
from ramify.overlay.live.broker.plan_cache import PlanCache
from ramify.overlay.live.host.metrics import BrokerMetrics, metrics_text, serve_metrics
from ramify.overlay.live.wire.security import ClientRole
from ramify.overlay.live.wire.streams import Endpoint, connect
from ramify.overlay.live.wire.tasks import run_to_end
from ramify.overlay.routing.router import Router, RoutingPlan
from ramify.planning.choosing.revise import add_subscription
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.files import encode_plan
from ramify.planning.schemes.catalog import make_plan
from running import crossings, seeded_world
from worlds import World

WORLD = seeded_world(11, brokers=4, subscriptions=10, events=80)


def readers(world: World) -> list[str]:
    return sorted({row.client for row in world.subscriptions})


def test_plans_are_switched_under_load_drained_and_retired(tmp_path: Path) -> None:
    plans = [make_plan(spec, WORLD.problem, 1) for spec in ("mult", "explicit", "unicast", "mirror-all")]

    async def scenario() -> None:
        async with overseen(WORLD, tmp_path, plans[0]) as live:
            live.wires.read(readers(WORLD))
            rounds = []
            for i, plan in enumerate(plans[1:], 2):
                rounds.append(f"/{i}")
                load = asyncio.create_task(live.wires.publish(WORLD, f"/{i}", size=3))
                epoch = await live.leader.propose(plan)
                await live.routing(epoch)
                await load
                epochs = live.leader.epochs
                await live.until(lambda e=epoch, s=epochs: s.live == (e,))  # type: ignore[misc]
                await live.until(lambda e=epoch: all(set(b.held) == {e} for b in live.brokers.values()))  # type: ignore[misc]
            await live.wires.until(len(WORLD.wanted()) * len(rounds))
            assert live.wires.delivered == expected(WORLD, *rounds)
            assert live.leader.epochs.state(1) is EpochStage.RETIRED
            assert live.plans.read == len(plans), "brokers of a process share what they read"

    run_to_end(scenario())


def test_counts_by_epoch_are_those_of_the_simulator(tmp_path: Path) -> None:
    plans = [make_plan(spec, WORLD.problem, 1) for spec in ("explicit", "unicast")]

    async def scenario() -> None:
        async with overseen(WORLD, tmp_path) as live:
            live.wires.read(readers(WORLD))
            for epoch, plan in enumerate(plans, 1):
                await live.routing(await live.leader.propose(plan))
                await live.wires.publish(WORLD, f"/{epoch}")
                await live.wires.until(len(WORLD.wanted()) * epoch)
            for epoch, plan in enumerate(plans, 1):
                said = [broker.status() for broker in live.brokers.values()]
                sent = Counter(
                    {(s.broker, to): n.messages for s in said for to, n in s.sent.get(epoch, {}).items()}
                )
                assert sent == crossings(plan, WORLD)
                entered = [s.entered.get(epoch, (0, 0)) for s in said]
                assert sum(n for n, _ in entered) == len(WORLD.events)
                assert sum(size for _, size in entered) == sum(s.published_bytes for s in said) // 2 > 0
            page = metrics_text(BrokerMetrics(live.brokers.values()))
            for s in said:
                assert f'ramify_epoch{{broker="{s.broker}"}} 2.0' in page
                assert f'ramify_deliveries_total{{broker="{s.broker}"}} {float(s.deliveries)}' in page
                for to, n in s.links.items():
                    line = f'ramify_link_wire_bytes_total{{broker="{s.broker}",neighbour="{to}"}}'
                    assert f"{line} {float(n.wire_bytes)}" in page
            port = serve_metrics(BrokerMetrics(live.brokers.values()))
            url = f"http://127.0.0.1:{port}/metrics"
            fetched = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=240).read())
            assert b"ramify_frames_total" in fetched

    run_to_end(scenario())


def test_without_the_control_server_nothing_is_routed_and_nothing_is_lost(tmp_path: Path) -> None:
    plan = make_plan("mult", WORLD.problem, 1)

    async def scenario() -> None:
        async with overseen(WORLD, tmp_path, plan) as live:
            live.wires.read(readers(WORLD))
            live.control.kill()
            await live.until(lambda: not any(b.may_route() for b in live.brokers.values()))
            before = sum(b.broker.counters.steps for b in live.brokers.values())
            await live.wires.publish(WORLD, "/dark")
            await asyncio.sleep(2.0)
            assert sum(b.broker.counters.steps for b in live.brokers.values()) == before
            await live.control.start()
            await live.routing(1)
            await live.wires.until(len(WORLD.wanted()))
            assert live.wires.delivered == expected(WORLD, "/dark")
            await live.until(lambda: live.leader.epochs.registered == set(live.brokers))

    run_to_end(scenario())


def test_while_their_lease_lasts_brokers_route_on_without_the_control_server(tmp_path: Path) -> None:
    """With the default lease they would have to stop meanwhile: the server is away until all has come."""

    async def scenario() -> None:
        plan = make_plan("mult", WORLD.problem, 1)
        async with overseen(WORLD, tmp_path, plan, lease_s=240) as live:
            live.wires.read(readers(WORLD))
            sessions = {name: broker._session for name, broker in live.brokers.items()}
            live.control.kill()
            await live.wires.publish(WORLD, "/dark")
            await live.wires.until(len(WORLD.wanted()), limit_s=170)
            assert live.wires.delivered == expected(WORLD, "/dark")
            assert all(broker.may_route() for broker in live.brokers.values())
            await live.control.start()
            await live.until(lambda: live.leader.epochs.registered == set(live.brokers))
            # nobody had to begin anew, and what comes later is routed too
            await live.wires.publish(WORLD, "/light")
            await live.wires.until(2 * len(WORLD.wanted()))
            assert live.wires.delivered == expected(WORLD, "/dark", "/light")
            assert sessions == {name: broker._session for name, broker in live.brokers.items()}

    run_to_end(scenario())


def test_a_broker_cut_off_from_control_alone_stops_before_a_change_is_confirmed_without_it(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        plan = make_plan("mult", WORLD.problem, 1)
        async with overseen(WORLD, tmp_path, plan, lease_s=4) as live:
            live.wires.read(readers(WORLD))
            name = WORLD.overlay.brokers[0]
            broker, epochs = live.brokers[name], live.leader.epochs
            assert broker._lease is not None
            broker._lease._hold = _unheard  # type: ignore[method-assign]
            # the leader waits for it as long as it may route, and not longer
            while name in epochs.registered:
                may_route = broker.may_route()
                await asyncio.sleep(0.02)
                assert may_route or not broker.may_route()
            assert not broker.may_route()
            await live.wires.publish(WORLD, "/cut")
            del broker._lease._hold  # type: ignore[method-assign]
            await live.wires.until(len(WORLD.wanted()))
            assert live.wires.delivered == expected(WORLD, "/cut")

    run_to_end(scenario())


async def _unheard(expected: int) -> bool:
    """What a request comes to that the control server does not get."""
    raise LiveError("cut off")


def test_a_lease_that_was_lost_is_taken_in_a_new_session_that_must_catch_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with overseen(WORLD, tmp_path, make_plan("mult", WORLD.problem, 1)) as live:
            live.wires.read(readers(WORLD))
            name = WORLD.overlay.brokers[0]
            broker, epochs = live.brokers[name], live.leader.epochs
            before = epochs.session(name)
            saving = live.leader._lock
            async with saving:  # the leader cannot say that it knows the new session
                await live.leader.store.delete(f"brokers.{token(name)}")
                await live.until(lambda: broker._session != before and broker._lease.held)  # type: ignore[union-attr]
                assert not broker.may_route()
                steps = broker.broker.counters.steps
                await live.wires.publish(WORLD, "/x")
                await asyncio.sleep(1.0)
                assert broker.broker.counters.steps == steps
                assert not broker.may_route()
            await live.routing(1)
            assert epochs.session(name) == broker._session
            await live.wires.until(len(WORLD.wanted()))
            assert live.wires.delivered == expected(WORLD, "/x")

    run_to_end(scenario())


def test_a_broker_that_missed_changes_routes_only_after_them(tmp_path: Path) -> None:
    """It comes back while the plan has moved on: what it then routes is the present plan."""
    plans = [make_plan(spec, WORLD.problem, 1) for spec in ("mult", "explicit")]

    async def scenario() -> None:
        async with overseen(WORLD, tmp_path, plans[0]) as live:
            live.wires.read(readers(WORLD))
            away = WORLD.overlay.brokers[0]
            await live.end_broker(away)
            del live.brokers[away]
            await live.until(lambda: away in live.leader.epochs.lost)
            await live.routing(await live.leader.propose(plans[1]))
            await live.wires.publish(WORLD, "/away")
            assert live.leader.epochs.live == (1, 2), "a lost broker keeps its epochs from being retired"
            back = live.start_broker(away)
            await live.routing(2)
            ends = {
                n: await back.broker._out.number(f"{LINK}.{token(n)}")
                for n in back.config.broker.neighbours
            }
            assert all(number <= ends[n] for (n, _), number in back.broker.sent([1, 2]).items())
            await live.wires.until(len(WORLD.wanted()))
            assert live.wires.delivered == expected(WORLD, "/away")
            await live.until(lambda: live.leader.epochs.live == (2,))

    run_to_end(scenario())


def test_what_was_sent_is_never_reported_too_low_after_a_restart(tmp_path: Path) -> None:
    plan = make_plan("mirror-all", WORLD.problem, 1)

    async def scenario() -> None:
        async with overseen(WORLD, tmp_path, plan) as live:
            live.wires.read(readers(WORLD))
            await live.wires.publish(WORLD, "/1")
            await live.wires.until(len(WORLD.wanted()))
            name = max(live.brokers, key=lambda n: sum(live.brokers[n].broker.counters.messages.values()))
            before = live.brokers[name].broker.sent([1])
            assert any(before.values())
            await live.end_broker(name)
            live.leader.reports.clear()
            live.start_broker(name)
            await live.until(lambda: any(r.broker == name and r.round for r in live.leader.reports))
            report = next(r for r in live.leader.reports if r.broker == name and r.round)
            assert {key: report.sent[key] for key in before} == before

    run_to_end(scenario())


def test_a_second_router_of_a_broker_takes_over_and_the_first_ends(tmp_path: Path) -> None:
    plan = make_plan("mult", WORLD.problem, 1)

    async def scenario() -> None:
        async with overseen(WORLD, tmp_path, plan) as live:
            live.wires.read(readers(WORLD))
            name = WORLD.overlay.brokers[1]
            first = live.tasks.pop(name)
            live.start_broker(name)
            # without anything to route: it finds out when it looks for its lease
            with pytest.raises(SupersededError):
                async with asyncio.timeout(240):
                    await first
            await live.routing(1)
            await live.wires.publish(WORLD, "/x")
            await live.wires.until(len(WORLD.wanted()))
            assert live.wires.delivered == expected(WORLD, "/x")

    run_to_end(scenario())


def test_a_change_of_the_plan_counts_once_it_is_confirmed(tmp_path: Path) -> None:
    plan = make_plan("mult", WORLD.problem, 1)
    at = WORLD.subscriptions[0]
    row = Subscription("late", at.client, at.broker, sql="x >= 0 AND x < 7")
    none = Demand.of([])
    change = add_subscription(plan, row, none)
    joined = PlanChange(json.loads(row.to_json()), change.class_id, list(change.channels))
    more = seeded_world(11, brokers=4, subscriptions=10, events=80)
    wanted = World(more.overlay, (*more.subscriptions, row), more.attachments, more.events)

    async def scenario() -> None:
        async with overseen(WORLD, tmp_path, plan) as live:
            live.wires.read(readers(WORLD))

            async def confirmed(changes: list[PlanChange]) -> None:
                revision = await live.leader.revise({1: changes})
                epochs = live.leader.epochs
                await live.until(lambda: epochs.active_at(revision)[0] == set(live.brokers))

            await confirmed([joined])
            await live.wires.publish(WORLD, "/with")
            await live.wires.until(len(wanted.wanted()))
            assert live.wires.delivered == expected(wanted, "/with")
            live.wires.delivered.clear()
            await confirmed([PlanChange(removed="late")])
            # many at once
            await confirmed([joined, PlanChange(removed="late"), joined, PlanChange(removed="late")])
            await live.wires.publish(WORLD, "/without")
            await live.wires.until(len(WORLD.wanted()))
            assert live.wires.delivered == expected(WORLD, "/without")
            assert live.plans.read == 1, "a revision does not read the plan again"

    run_to_end(scenario())


def test_a_later_base_of_an_epoch_is_read_only_where_the_epoch_is_not_held() -> None:
    plan = make_plan("mult", WORLD.problem, 1)
    at = WORLD.subscriptions[0]
    values: dict[str, bytes] = {"plans.old": encode_plan(plan)}
    keys: list[tuple[int, str]] = []
    for i in range(6):
        row = Subscription(f"n{i}", at.client, at.broker, sql=f"x = {i} AND topic = 'a'")
        change = add_subscription(plan, row, Demand.of([]))
        plan = change.plan
        one = PlanChange(json.loads(row.to_json()), change.class_id, list(change.channels))
        values[f"changes.{i}"] = encode(PlanChanges(1, i + 1, [one]))
        keys.append((i + 1, f"changes.{i}"))
        if i == 3:
            values["plans.new"] = encode_plan(plan)

    class Stub:
        async def get(self, key: str) -> tuple[bytes, int] | None:
            return (values[key], 1) if key in values else None

        get_large = get

    def same(routing: RoutingPlan) -> bool:
        batch, here = WORLD.batch, routing.plan.overlay.index[at.broker]
        other = RoutingPlan(plan)
        found = [dict(Router(r, here).patterns(batch)) for r in (routing, other)]
        return found[0] == found[1] and routing.clients_at(here) == other.clients_at(here)

    async def scenario() -> None:
        store: Any = Stub()
        cache, fresh = PlanCache(), PlanCache()
        await cache.routing(store, LiveEpoch(1, "plans.old", 0, keys[:5]))
        later = LiveEpoch(1, "plans.new", 4, keys[4:])
        assert same(await cache.routing(store, later))
        assert (cache.read, cache.revised) == (1, 2), "five changes at once, then one"
        assert same(await fresh.routing(store, later))
        # clients that ask at once get one and the same
        many = await asyncio.gather(*(PlanCache.routing(fresh, store, later) for _ in range(5)))
        assert len({id(each) for each in many}) == 1
        assert fresh.read == 1

    run_to_end(scenario())


def test_lanes_are_reported_only_with_no_step_begun_and_unfinished() -> None:
    config = BrokerConfig("v0", Endpoint("nats://127.0.0.1:1"), {"v1": Endpoint("nats://127.0.0.1:1")})

    async def scenario() -> None:
        governed = ControlledBroker(ControlledConfig(config, Endpoint("nats://127.0.0.1:1")))
        broker: Any = governed.broker
        broker._log = SimpleNamespace(positions={"v1": 4})
        broker._ends, broker._counted = {"v1": 9}, {("v1", 3): 12}
        governed._held = {2: 0, 3: 0}
        broker._begun = {"v1": 5}
        assert not await governed._take_lanes(Epochs())
        assert governed._lanes is None
        broker._begun = None
        async with broker._between:  # a step is under way
            assert not await governed._take_lanes(Epochs())
        assert governed._lanes is None
        assert await governed._take_lanes(Epochs())
        assert governed._lanes is not None
        assert governed._lanes.sent == {("v1", 2): 9, ("v1", 3): 12}
        assert governed._lanes.committed == {("v1", 2): 4, ("v1", 3): 4}

    run_to_end(scenario())


# ----------------------------------------------------------------------------------------------- requests


async def ask(live: Overseen, client: str, body: bytes) -> Answer:
    url = live.wires.urls[live.site.clients[client]]
    connection = await connect(live.site.endpoint(ClientRole(client), url))
    try:
        told = await connection.request(f"ramify.control.{token(client)}", body, timeout=240)
        return decode(told.data, Answer)
    finally:
        await connection.close()


def test_requests_are_checked_passed_on_and_answered(tmp_path: Path) -> None:
    client = WORLD.subscriptions[0].client
    broker = WORLD.subscriptions[0].broker
    wish = Request("subscribe", "mine", FilterText(sql="x = 1"), wait_s=0.5)

    async def scenario() -> None:
        async with overseen(WORLD, tmp_path, make_plan("mult", WORLD.problem, 1)) as live:
            assert (await ask(live, client, encode(wish))).error == Refusal(
                "no_coordinator", "no coordinator decides now (tried for 0.5 s). Ask again later."
            )
            await live.lead()
            live.leader.answer = lambda _: Answer(ok=True, revision=7, missing={"v9": "lost"})
            assert await ask(live, client, encode(wish)) == Answer(
                ok=True, revision=7, missing={"v9": "lost"}
            )
            passed = live.leader.asked[-1]
            assert 0 <= passed.request.wait_s <= wish.wait_s, "it is asked in turns"
            whole = msgspec.structs.replace(passed.request, wait_s=wish.wait_s)
            assert msgspec.structs.replace(passed, request=whole) == ForwardedRequest(broker, client, wish)
            count = len(live.leader.asked)
            refused = await ask(live, client, encode(Request("subscribe", "mine", FilterText(sql="x =="))))
            assert refused.error is not None
            assert refused.error.code == "bad_filter"
            assert len(live.leader.asked) == count, "nonsense stays here"
            assert live.brokers[broker].status().routing

    run_to_end(scenario())


WIDE = " AND ".join(f"(a{i} = 1 OR b{i} = 2)" for i in range(16))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "bad_request"),
        (b"\xff\xfe", "bad_request"),
        (b'{"op": "subscribe"}', "bad_request"),
        (b'{"op": "steal", "id": "a"}', "bad_request"),
        (b'{"op": "subscribe", "id": "a", "filter": {}}', "bad_request"),
        (b'{"op": "subscribe", "id": "a", "filter": {"sql": "x =="}}', "bad_filter"),
        (b'{"op": "subscribe", "id": "a", "filter": {"sql": "x = 1", "keywords": ["k"]}}', "bad_request"),
        (b'{"op": "list", "other": 1}', "bad_request"),
        (b'{"op": "list", "quota_bytes": 0}', "bad_request"),
        (b'{"op": "unsubscribe", "id": "' + b"x" * 300 + b'"}', "bad_request"),
        (b'{"op": "list", "id": "' + b"x" * (200 << 10) + b'"}', "limit"),
        (encode(Request("subscribe", "a", FilterText(sql=WIDE))), "too_complex"),
        (b"[" * 100_000, "bad_request"),
    ],
)
def test_a_bad_request_is_refused_with_its_code(data: bytes, code: str) -> None:
    found = check_request(data, "c", "v0", {})
    assert isinstance(found, Refusal)
    assert found.code == code, found


def test_a_wait_is_brought_into_bounds() -> None:
    found = check_request(encode(Request("list", wait_s=1e9)), "c", "v0", {})
    assert isinstance(found, Request)
    assert found.wait_s == 60.0


# ------------------------------------------------------------------------------------------ large events


def test_an_event_that_no_message_can_hold_is_rejected_and_the_others_proceed() -> None:
    plan = make_plan("mirror-all", WORLD.problem, 1)
    node = Node("v0")
    node.install(0, RoutingPlan(plan))
    node.flip(0)
    node.most_bytes = 96 << 10
    noise = os.urandom(60_000)
    events = [
        Event(id=id_, publisher="p0", attributes={"x": 1}, body=body)
        for id_, body in (("small", b"a"), ("huge", noise), ("last", b"b"))
    ]
    batch = events_to_batch(events, EventSchema({"x": "int64"}))  # type: ignore[dict-item]
    done = node.step(
        [ClientMessage("p0", encode_events(batch), "application/vnd.apache.arrow.stream", "m", 1)], []
    )
    assert {(r.event_id, r.reason) for r in done.rejected} == {("huge", "too_large")}
    assert done.outputs
    assert all(len(output.payload) < node.most_bytes for output in done.outputs)
