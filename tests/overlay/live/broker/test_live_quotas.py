"""Clients that do not read are suspended, told so, and served again when they ask; nobody else notices."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_live_controlled import ask

from overseeing import Overseen, overseen
from ramify.content.filters.subscriptions import Subscription
from ramify.overlay.control.names import DELIVER, token
from ramify.overlay.control.records import (
    Answer,
    ClientRecord,
    ClientSubscription,
    FilterText,
    Refusal,
    Request,
    encode,
)
from ramify.overlay.live.broker.quotas import Allowance, UnreadBytes, lane_bytes, overdue
from ramify.overlay.live.wire.streams import api
from ramify.overlay.live.wire.tasks import run_to_end
from ramify.planning.schemes.catalog import make_plan
from running import seeded_world
from worlds import World

MERGED = 64 << 10

# ------------------------------------------------------------------------------------------ unread bytes


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("wrote"), st.sampled_from("ab"), st.integers(1, 50_000)),
            st.tuples(st.just("read"), st.sampled_from("ab"), st.integers(0, 60)),
        ),
        max_size=60,
    )
)
def test_unread_bytes_are_never_too_low_and_hardly_too_high(steps: list[tuple[str, str, int]]) -> None:
    unread, sequence, floors = UnreadBytes(), 0, {"a": 0, "b": 0}
    written: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
    for kind, lane, number in steps:
        if kind == "wrote":
            sequence += 1
            written[lane].append((sequence, number))
            unread.wrote(lane, sequence, number)
        else:
            floors[lane] = max(floors[lane], number)
            unread.read(lane, number)
        for each, rows in written.items():
            exact = sum(size for at, size in rows if at > floors[each])
            if floors[each] > sequence:
                continue  # a reader cannot have what is not there
            assert exact <= unread.size(each) <= exact + MERGED
    assert all(size > 0 for size in unread.sizes().values())


names = st.sampled_from("abcdef")


@given(
    st.dictionaries(names, st.integers(0, 1000)),
    st.dictionaries(names, st.floats(0, 100)),
    st.dictionaries(names, st.builds(Allowance, st.integers(1, 1000), st.floats(1, 100))),
    st.integers(0, 2000),
)
def test_whom_it_is_time_for(
    unread: dict[str, int], silent: dict[str, float], allowed: dict[str, Allowance], other: int
) -> None:
    most = 2000
    log = min(most, sum(unread.values()) + other)
    found = overdue(unread, silent, allowed, log, most)
    late = {
        c for c, a in allowed.items() if unread.get(c, 0) > a.quota_bytes or silent.get(c, 0.0) > a.lease_s
    }
    assert late <= found.keys()
    extra = found.keys() - late
    left = {c: n for c, n in unread.items() if c not in found}
    used = log - sum(unread.get(c, 0) for c in found)
    if extra:
        # no more than needed: without the last of them it was nearly full
        least = min(extra, key=lambda c: unread[c])
        assert used + unread[least] > most * 7 / 8
        assert all(unread[c] >= n for c in extra for n in left.values())
    if used > most * 7 / 8:
        assert sum(left.values()) <= most / 4, "it is full of something else"


def test_an_allowance_is_the_largest_of_the_subscriptions() -> None:
    held = {
        "a": ClientSubscription(FilterText(sql="x=1"), 10, 99),
        "b": ClientSubscription(FilterText(sql="x=2"), 20, 5),
    }
    assert Allowance.of(ClientRecord("c", "v", held)) == Allowance(20, 99)
    assert Allowance.of(None) == Allowance.of(ClientRecord("c", "v")) == Allowance()


# ------------------------------------------------------------------------------------------------ on lanes

BASE = seeded_world(13, brokers=2, subscriptions=1, events=40)
ALL = {"sql": "topic = 'a' OR topic = 'b' OR topic = 'c'"}
ROWS = (Subscription("s0", "c0", "v0", **ALL), Subscription("s1", "c1", "v0", **ALL))  # type: ignore[arg-type]
WORLD = World(BASE.overlay, ROWS, {"c0": "v0", "c1": "v0", "p0": "v0", "p1": "v1"}, BASE.events)


def play(directory: Path, record: ClientRecord, scenario: Callable[[Overseen], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with overseen(WORLD, directory) as live:
            await live.leader.store.put(f"clients.{token(record.client)}", encode(record))
            live.wires.read(["c1"])
            await live.routing(await live.leader.propose(make_plan("mult", WORLD.problem, 1)))
            await scenario(live)

    run_to_end(bounded())


async def lane(live: Overseen) -> tuple[int, dict[str, str]]:
    """How many messages the lane of c0 has, and the headers of the last."""
    broker = live.brokers["v0"].broker
    body = {"subjects_filter": f"{DELIVER}.c0"}
    told = await api(broker.connection, "STREAM.INFO.OUT", body)
    found = (told["state"].get("subjects") or {}).get(f"{DELIVER}.c0", 0)
    return found, await broker.last_headers(f"{DELIVER}.c0")


RECORD = ClientRecord("c0", "v0", {"s0": ClientSubscription(FilterText(sql=ALL["sql"]), 3_000, 3600)})


def test_past_its_quota_a_client_is_suspended_and_others_go_on(tmp_path: Path) -> None:
    async def scenario(live: Overseen) -> None:
        guard = live.brokers["v0"].guard
        await live.lead()
        await live.wires.publish(WORLD, "/1", size=4)
        await live.until(lambda: guard.suspended == {"c0": "quota"})
        await live.until(lambda: any(p.request.op == "suspend" for p in live.leader.asked))
        told = next(p for p in live.leader.asked if p.request.op == "suspend")
        assert (told.broker, told.client, told.reason) == ("v0", "c0", "quota")
        async with asyncio.timeout(240):
            while (await lane(live))[0] != 1:
                await asyncio.sleep(0.05)
        count, headers = await lane(live)
        assert (count, headers["X"]) == (1, "quota")
        await live.wires.publish(WORLD, "/2", size=4)
        await live.wires.until(2 * len(WORLD.events))
        assert (await lane(live))[1]["L"] == headers["L"], "nothing follows the last word"
        assert live.brokers["v0"].broker.counters.dropped >= len(WORLD.events)
        assert live.brokers["v0"].status().suspended == {"c0": "quota"}
        # it asks for more, and may have more
        wider = ClientRecord(
            "c0", "v0", {"s0": ClientSubscription(FilterText(sql=ALL["sql"]), 1 << 20, 3600)}
        )
        await live.leader.store.put("clients.c0", encode(wider), force=True)
        assert (await ask(live, "c0", encode(Request("resume")))).ok
        assert (await lane(live))[1]["X"] == ""
        assert not guard.suspended
        await live.wires.publish(WORLD, "/3", size=40)
        await live.wires.until(3 * len(WORLD.events))
        after = (await lane(live))[1]
        assert "X" not in after
        assert int(after["L"]) > int(headers["L"]) + 1

    play(tmp_path, RECORD, scenario)


def test_a_suspension_survives_the_broker_and_is_told_until_the_leader_answers(tmp_path: Path) -> None:
    async def scenario(live: Overseen) -> None:
        await live.wires.publish(WORLD, "/1", size=4)
        await live.until(lambda: live.brokers["v0"].guard.suspended == {"c0": "quota"})
        await live.end_broker("v0")
        live.start_broker("v0")
        await live.until(lambda: live.brokers["v0"].guard.suspended == {"c0": "quota"})
        assert live.brokers["v0"].node.muted == {"c0"}
        refusals = iter([Refusal("unavailable", "busy"), Refusal("no_coordinator", "none")])
        live.leader.answer = lambda _: (
            Answer(error=problem) if (problem := next(refusals, None)) else Answer(ok=True)
        )
        await live.lead()
        await live.until(lambda: len([p for p in live.leader.asked if p.request.op == "suspend"]) == 3)
        await live.routing(1)
        await live.wires.publish(WORLD, "/2", size=4)
        await live.wires.until(2 * len(WORLD.events))
        assert (await lane(live))[1]["X"] == "quota"

    play(tmp_path, RECORD, scenario)


@pytest.mark.parametrize("reads", [False, True])
def test_a_lease_is_renewed_by_reading(tmp_path: Path, reads: bool) -> None:
    record = ClientRecord("c0", "v0", {"s0": ClientSubscription(FilterText(sql=ALL["sql"]), 1 << 30, 5)})

    async def scenario(live: Overseen) -> None:
        guard = live.brokers["v0"].guard
        if reads:
            live.wires.read(["c0"])
            await live.wires.publish(WORLD, "/1")
            # twice as long as the lease
            await asyncio.sleep(10.0)
            assert not guard.suspended
        else:
            await live.until(lambda: guard.suspended == {"c0": "lease"})
            assert (await lane(live))[1]["X"] == "lease"

    play(tmp_path, record, scenario)


def test_what_was_unread_before_a_restart_counts(tmp_path: Path) -> None:
    record = ClientRecord("c0", "v0", {"s0": ClientSubscription(FilterText(sql=ALL["sql"]), 1 << 30, 3600)})

    async def scenario(live: Overseen) -> None:
        first = live.brokers["v0"].guard
        await live.wires.publish(WORLD, "/1", size=4)
        await live.wires.until(len(WORLD.events))
        before = first._unread.size("c0")
        _, size = await lane_bytes(live.brokers["v0"].broker.connection, f"{DELIVER}.c0", 0)
        assert abs(size - before) <= 0.2 * size
        await live.end_broker("v0")
        again = live.start_broker("v0").guard
        await live.until(lambda: again._unread.size("c0") > 0)
        assert again._unread.size("c0") == size

    play(tmp_path, record, scenario)
