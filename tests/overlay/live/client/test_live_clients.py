"""The client: what it publishes is stored once, what comes is taken once, and what goes wrong is said."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramify
from lane_server import LaneServer, lane_server
from overseeing import overseen
from project import EXAMPLES
from ramify.content.events.events import Event, batch_to_events, events_to_batch
from ramify.content.events.others import OTHERS_TYPE, with_others
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import FilterError, InputError, LimitError, LiveError
from ramify.overlay.control.frames import Limits, decode_events, encode_events
from ramify.overlay.control.intake import ARROW_TYPE, BATCH_TYPE, EVENT_TYPE, ClientMessage, take_in
from ramify.overlay.control.records import Answer, Refusal
from ramify.overlay.live.client import inbox, lane
from ramify.overlay.live.client.blocking import BlockingClient
from ramify.overlay.live.client.client import (
    Client,
    ClientAddress,
    ExistsError,
    LiveSubscription,
    LostPositionError,
    NotEverywhereError,
    RefusedFilterError,
    SuspendedError,
    UnavailableError,
    UnknownSubscriptionError,
    place_of,
    spelled,
)
from ramify.overlay.live.client.lane import LaneClient, LaneReader
from ramify.overlay.live.client.outbox import outgoing
from ramify.overlay.live.wire.pull import PulledMessage
from ramify.overlay.live.wire.security import ClientRole, new_user, read_seed
from ramify.overlay.live.wire.tasks import run_to_end
from ramify.planning.schemes.catalog import make_plan
from running import seeded_world

CLOUDEVENT = {"specversion": "1.0", "id": "1", "source": "shop", "type": "order", "data": {"x": 1}}


ITEM = {"path": "x", "list": False, "kind": 9, "number": 0, "text": None, "place": None}
MALFORMED = with_others(events_to_batch([Event("1")]), pa.array([[ITEM]], OTHERS_TYPE))


def on_server(directory: Path, scenario: Callable[[LaneServer], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(480), lane_server(directory) as at:
            await scenario(at)

    run_to_end(run())


async def take(subscription: object, count: int) -> list[str]:
    """The ids of the next events."""
    async with asyncio.timeout(240):
        return [(await anext(subscription)).id for _ in range(count)]  # type: ignore[call-overload]


# --------------------------------------------------------------------------------------------- publishing

names = st.text(min_size=1, max_size=8)
events = st.builds(
    lambda id, x, body: Event(id, attributes={"source": "s", "x": x}, body=body),
    names.filter(lambda text: text.strip() == text and text.isprintable()),
    st.integers(0, 9),
    st.none() | st.binary(max_size=3000),
)


@given(st.lists(events, max_size=30, unique_by=lambda event: event.id), st.integers(1, 7))
@settings(max_examples=40)
def test_whatever_is_published_is_cut_into_messages_that_a_broker_takes(
    made: list[Event], rows: int
) -> None:
    limits = Limits(max_batch_events=rows)
    messages = outgoing(made, b"secret", max_payload=16 << 10, limits=limits)
    assert [m.id for m in messages] == [
        m.id for m in outgoing(made, b"secret", max_payload=16 << 10, limits=limits)
    ]
    assert len({m.id for m in messages}) == len(messages)
    assert (
        not messages
        or messages[0].id != outgoing(made, b"other", max_payload=16 << 10, limits=limits)[0].id
    )
    got: list[Event] = []
    for message in messages:
        assert len(message.payload) <= 12 << 10
        batch, rejected = take_in([ClientMessage("c", message.payload, message.content_type)], limits)
        assert not rejected
        assert batch is not None
        assert batch.num_rows == message.events
        got += batch_to_events(batch)
    assert [(e.id, e.attributes["x"], e.body) for e in got] == [
        (e.id, e.attributes["x"], e.body) for e in made
    ]


@pytest.mark.parametrize(
    "data",
    [
        {"x": 2**70},
        {"x": 10**400},
        {"a.b": 1, "a": {"b": 2}},
        {"_nulls": 1, "": None},
        {"x": ["a", 1, None, []]},
    ],
)
def test_any_data_is_published_as_it_is(data: dict[str, object]) -> None:
    (message,) = outgoing({**CLOUDEVENT, "data": data}, b"s")
    batch, rejected = take_in([ClientMessage("c", message.payload, message.content_type)])
    assert rejected == []
    assert batch is not None
    assert json.loads(batch_to_events(batch)[0].body or b"") == data


def test_events_with_more_attributes_than_columns_are_published() -> None:
    event = Event("e", attributes={f"a{k:04}": k for k in range(1500)})
    (message,) = outgoing(event, b"s")
    batch, rejected = take_in([ClientMessage("c", message.payload, message.content_type)])
    assert rejected == []
    assert batch is not None
    assert batch_to_events(batch)[0].attributes == event.attributes


@given(st.integers(1, 40), st.integers(1, 7), st.integers(0, 1500))
@settings(max_examples=25)
def test_cloudevents_are_cut_likewise(count: int, rows: int, size: int) -> None:
    made = [{**CLOUDEVENT, "id": str(k), "data": "x" * (size * (k % 3))} for k in range(count)]
    messages = outgoing(made, b"s", max_payload=12 << 10, limits=Limits(max_batch_events=rows))
    assert [event for m in messages for event in json.loads(m.payload)] == made
    assert {m.content_type for m in messages} == {BATCH_TYPE}
    assert max(len(m.payload) for m in messages) <= 8 << 10


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"id": "1"}, "specversion"),
        ({**CLOUDEVENT, "Bad": 1}, "a-z"),
        ([CLOUDEVENT, {**CLOUDEVENT, "id": "2", "type": 3}], "'2'"),
        ({**CLOUDEVENT, "data": object()}, "JSON"),
        ([CLOUDEVENT, Event("e")], "several kinds"),
        ("text", "not an event"),
        (7, "not an event"),
        ({**CLOUDEVENT, "data": {"x": float("nan")}}, "nan is no number of JSON"),
        ({**CLOUDEVENT, "data": [{"x": float("inf"), "y": None}]}, "inf is no number of JSON"),
        ({**CLOUDEVENT, "id": ""}, "empty id"),
        ({**CLOUDEVENT, "time": "soon"}, "RFC 3339"),
        ([CLOUDEVENT, CLOUDEVENT], "same source and id"),
        (Event("1", attributes={"source": "s"}, body=b"{", body_is_json=True), "JSON"),
        (MALFORMED, "kind"),
    ],
)
def test_what_is_no_event_is_refused_before_it_is_sent(bad: object, says: str) -> None:
    with pytest.raises(InputError, match=says):
        outgoing(bad, b"s")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "large",
    [
        {**CLOUDEVENT, "data": "x" * (1 << 20)},
        Event("1", attributes={"source": "s"}, body=os.urandom((1 << 20) + 1)),
        [Event("0"), Event("1", body=b"x" * ((1 << 20) + 1))],
    ],
)
def test_an_event_that_is_too_large_is_named_before_anything_is_sent(large: object) -> None:
    with pytest.raises(LimitError, match=r"'1' has \d+ bytes"):
        outgoing(large, b"s")  # type: ignore[arg-type]


def test_publishing_is_durable_in_every_form_and_again_is_not_doubled(tmp_path: Path) -> None:
    async def scenario(at: LaneServer) -> None:
        batch = events_to_batch([Event(f"b{k}", attributes={"x": k}) for k in range(3)])
        forms: list[object] = [
            Event("e"),
            CLOUDEVENT,
            batch,
            [Event("l1"), Event("l2")],
            [CLOUDEVENT | {"id": "2"}],
        ]
        async with at.client() as client:
            places = [await client.publish(form) for form in forms]  # type: ignore[arg-type]
            assert places == [1, 2, 3, 4, 5]
            assert [await client.publish(form) for form in forms] == places  # type: ignore[arg-type]
            assert await client.publish([]) == 0
            # another event under the id of one that was published is the same to the server
            assert await client.publish(Event("other"), id="x") == await client.publish(
                Event("more"), id="x"
            )
        async with at.client("bob") as other:  # ids are each client's own
            assert await other.publish(CLOUDEVENT) == 7
        stored = await at.published()
        assert [subject for subject, _, _ in stored] == ["ramify.publish.alice"] * 6 + [
            "ramify.publish.bob"
        ]
        assert decode_events(stored[2][1]).equals(batch)
        assert stored[2][2]["Content-Type"] == ARROW_TYPE
        assert json.loads(stored[1][1]) == CLOUDEVENT

    on_server(tmp_path, scenario)


def test_a_publish_survives_an_outage_of_the_server(tmp_path: Path) -> None:
    async def scenario(at: LaneServer) -> None:
        async with at.client() as client:
            await client.publish(Event("before"))
            at.server.kill()
            waiting = asyncio.create_task(client.publish(Event("during")))
            await asyncio.sleep(1.0)
            assert not waiting.done()
            await at.server.start()
            assert await waiting == 2
            at.server.kill()
            with pytest.raises(lane.OutcomeUnknownError, match="again"):
                await client.publish(Event("never"), give_up_s=1.0)
            await at.server.start()

    on_server(tmp_path, scenario)


def test_a_connection_that_breaks_while_it_is_closed_is_closed(tmp_path: Path) -> None:
    async def scenario(at: LaneServer) -> None:
        client = await at.client()
        wire = client._wires.home.connection
        before = wire._transport.drain
        broken: list[int] = []

        async def drain() -> None:
            broken.append(1)
            wire._transport.drain = before
            raise ConnectionResetError("Connection lost")

        # what waits to be sent when it is closed, and the line that it cannot be sent over
        close = wire._flush_pending

        async def flush(*_: object, **__: object) -> None:
            wire._flush_pending = close
            wire._pending, wire._pending_data_size = [b"PING\r\n"], 6
            wire._transport.drain = drain

        wire._flush_pending = flush
        await client.close()
        assert broken
        assert wire.is_closed
        assert wire._transport._io_writer.is_closing()

    on_server(tmp_path, scenario)


# -------------------------------------------------------------------------------------------- subscribing


def test_events_come_by_subscription_and_are_acknowledged_when_dealt_with(tmp_path: Path) -> None:
    async def scenario(at: LaneServer) -> None:
        async with at.client() as client:
            one, two = client.subscribe("x = 1", id="one"), await client.subscribe({"x": [1]}, id="two")
            await at.deliver(["alice/one"], "a", "b")
            await at.deliver(["alice/one", "alice/two"], "c")
            await at.deliver(["alice/two"], "d")
            assert await take(one, 3) == ["a", "b", "c"]
            # the first delivery is dealt with, the second is not: c may still be in use
            await at.until(lambda info: info["num_ack_pending"] == 2)
            assert await take(two, 1) == ["c"]
            assert (await at.consumer())["num_ack_pending"] == 2
            last = await anext(two)
            assert (last.id, last.number, last.attributes) == ("d", 3, {"x": 1})
            assert await one.get(0.1) is None  # asked for the next: c is dealt with
            await at.until(lambda info: info["num_ack_pending"] == 1)
            last.done()
            await at.until(lambda info: info["num_ack_pending"] == 0)

    on_server(tmp_path, scenario)


def test_a_process_that_comes_back_goes_on_after_what_was_dealt_with(tmp_path: Path) -> None:
    async def scenario(at: LaneServer) -> None:
        async with at.client() as client:
            subscription = client.subscribe("x = 1", id="s")
            await at.deliver(["alice/s"], "a")
            await at.deliver(["alice/s"], "b")
            await at.deliver(["alice/s"], "c")
            assert await take(subscription, 2) == ["a", "b"]
        async with at.client() as client:  # b was not known to be dealt with
            subscription = client.subscribe("x = 1", id="s")
            assert await take(subscription, 2) == ["b", "c"]
            assert await subscription.get(0.1) is None

    on_server(tmp_path, scenario)


def test_an_event_for_a_subscription_that_is_made_later_waits_for_it(tmp_path: Path) -> None:
    async def scenario(at: LaneServer) -> None:
        async with at.client() as client:
            await at.deliver(["alice/early"], "a")
            await at.deliver(["alice/late", "plan-id"], "b")
            assert await take(client.subscribe("x = 1", id="early"), 1) == ["a"]
            assert await take(client.subscribe("x = 2", id="late"), 1) == ["b"]
            assert await take(client.subscribe("x = 2", id="plan-id"), 1) == ["b"]

    on_server(tmp_path, scenario)


def test_a_full_window_of_what_nobody_reads_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "WINDOW_MESSAGES", 3)
    monkeypatch.setattr(inbox, "_STALL_S", 0.3)

    async def scenario(at: LaneServer) -> None:
        async with at.client() as client:
            read = client.subscribe("x = 1", id="read")
            for k in range(5):
                await at.deliver(["alice/forgotten"], f"f{k}")
            await at.deliver(["alice/read"], "a")
            with pytest.raises(LiveError, match="forgotten"):
                await take(read, 1)
            at.records["alice"].subscriptions["alice/forgotten"] = at.records["alice"].subscriptions[
                "alice/read"
            ]
            await client.unsubscribe("forgotten")
            assert await take(read, 1) == ["a"]

    on_server(tmp_path, scenario)


def test_nothing_is_lost_or_doubled_through_kills_of_the_server(tmp_path: Path) -> None:
    async def scenario(at: LaneServer) -> None:
        async with at.client() as client:
            subscription = client.subscribe("x = 1", id="s")
            got: list[str] = []
            for round_ in range(4):
                for k in range(40):
                    await at.deliver(["alice/s"], f"{round_}-{k}")
                got += await take(subscription, 17)
                at.server.kill()
                await asyncio.sleep(0.2)
                await at.server.start()
                async with asyncio.timeout(240):
                    while True:
                        try:
                            await at.log.load()
                            break
                        except LiveError:
                            await asyncio.sleep(0.05)
            got += await take(subscription, 160 - len(got))
            assert got == [f"{r}-{k}" for r in range(4) for k in range(40)]
            assert await subscription.get(4.0) is None  # longer than it takes to look for strays

    on_server(tmp_path, scenario)


def test_with_the_position_stored_deliveries_come_exactly_once(tmp_path: Path) -> None:
    async def scenario(at: LaneServer) -> None:
        for k in range(12):
            await at.deliver(["alice/s", "other"], f"e{k}")
        effects: list[tuple[int, str]] = []
        position = None
        for _ in range(4):  # each a process that ends anywhere after storing
            async with at.client() as client:
                async for delivered in client.deliveries(after=position):
                    assert delivered.subscriptions == ("s", "other")
                    effects.append((delivered.number, delivered.events.column("id")[0].as_py()))
                    position = delivered.number
                    if delivered.number % 3 == 0:
                        break
        assert effects == [(k + 1, f"e{k}") for k in range(12)]

    on_server(tmp_path, scenario)


def test_a_position_behind_what_was_acknowledged_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "_GONE_S", 1.5)

    async def scenario(at: LaneServer) -> None:
        for k in range(4):
            await at.deliver(["alice/s"], f"e{k}")
        async with at.client() as client:
            async for delivered in client.deliveries():
                if delivered.number == 3:
                    break
        async with at.client() as client:
            with pytest.raises(LiveError, match="go on after 2"):
                await anext(client.deliveries(after=1))

    on_server(tmp_path, scenario)


def test_a_position_beyond_the_end_of_the_lane_is_an_error_and_nothing_is_lost(tmp_path: Path) -> None:
    async def scenario(at: LaneServer) -> None:
        with pytest.raises(LostPositionError, match="ends at 0, before the position 7"):
            async with at.client() as client:
                await anext(client.deliveries(after=7))
        for k in range(5):
            await at.deliver(["alice/s"], f"e{k}")
        async with at.client() as client:
            with pytest.raises(LostPositionError, match="ends at 5, before the position 1000") as raised:
                await anext(client.deliveries(after=1000))
            assert (raised.value.position, raised.value.last) == (1000, 5)
        async with at.client(after=6) as client:
            with pytest.raises(LostPositionError):
                await anext(client.subscribe("x = 1", id="s"))
        async with at.client() as client:
            found = []
            async for delivered in client.deliveries():
                found.append(delivered.number)
                if delivered.number == 5:
                    break
            assert found == [1, 2, 3, 4, 5]
        async with at.client() as client:
            lane = client.deliveries(after=5)
            waiting = asyncio.ensure_future(anext(lane))
            await at.deliver(["alice/s"], "e5")
            assert (await waiting).number == 6

    on_server(tmp_path, scenario)


def test_a_server_that_comes_back_with_less_is_noticed_by_a_reader(tmp_path: Path) -> None:
    async def scenario(at: LaneServer) -> None:
        for k in range(3):
            await at.deliver(["alice/s"], f"e{k}")
        async with at.client() as client:
            lane = client.deliveries()
            for _ in range(3):
                await anext(lane)
            waiting = asyncio.ensure_future(anext(lane))
            await at.own.close()
            await at.server.stop()
            shutil.rmtree(at.server.config.store / "jetstream")
            await at.start()
            await at.deliver(["alice/s"], "new")
            # the reader may look before the new one is there
            with pytest.raises(LostPositionError, match=r"ends at [01], before the position 3"):
                await waiting
        assert (await at.consumer())["ack_floor"]["stream_seq"] == 0  # type: ignore[index]

    on_server(tmp_path, scenario)


class Scrambled:
    """A puller whose first messages come in any order, some never; after a reset all come, in order."""

    def __init__(self, first: list[int], last: int) -> None:
        self.strayed = False
        self.acknowledged = 0
        self.last = last
        self.buffer = deque(map(self._message, first))
        self.resets = 0

    def _message(self, number: int) -> PulledMessage:
        batch = events_to_batch([Event(f"e{number}")])
        return PulledMessage(
            number, "", {"L": str(number), "F": '["s"]'}, encode_events(batch), str(number)
        )

    async def start(self) -> None: ...

    def take(self) -> PulledMessage:
        return self.buffer.popleft()

    async def reset(self) -> None:
        self.resets += 1
        self.strayed = False
        self.buffer = deque(map(self._message, range(self.acknowledged + 1, self.last + 1)))

    async def acknowledge(self, reply: str) -> None:
        self.acknowledged = max(self.acknowledged, int(reply))


@given(st.lists(st.integers(1, 6), max_size=12), st.integers(0, 5))
@settings(max_examples=30)
def test_whatever_comes_first_each_number_is_taken_once_and_in_order(first: list[int], held: int) -> None:
    """At most `held` deliveries are unacknowledged at any time; never one that was not taken is."""

    async def scenario() -> None:
        wire = SimpleNamespace(stats={"reconnects": 0}, is_closed=False, request=_end_at(6))
        reader = LaneReader(LaneClient("c", wire), after=0)  # type: ignore[arg-type]
        puller = Scrambled(first, last=6)
        reader._puller = puller  # type: ignore[assignment]
        taken: list[int] = []
        asyncio.get_running_loop().call_later(0.05, setattr, puller, "strayed", True)  # nothing came
        reader._has_strayed = _yes  # type: ignore[method-assign]
        async with asyncio.timeout(240):
            while len(taken) < 6:
                taken.append((await reader.take()).number)
                await reader.acknowledge(taken[-1] - held)
                assert puller.acknowledged <= max(0, taken[-1] - held)
        assert taken == [1, 2, 3, 4, 5, 6]
        await reader.acknowledge(6)
        assert puller.acknowledged == 6 or puller.resets

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane, "LANE_GAP_S", 0.01)
        run_to_end(scenario())


async def _yes() -> bool:
    return True


def _end_at(number: int) -> Callable[..., Awaitable[object]]:
    """What the server says of a lane that ends there."""

    async def request(subject: str, data: bytes, timeout: float) -> object:
        return SimpleNamespace(headers={"L": str(number)})

    return request


def test_a_gap_is_closed_by_a_reset_alone() -> None:
    async def scenario() -> None:
        wire = SimpleNamespace(stats={"reconnects": 0}, is_closed=False, request=_end_at(3))
        reader = LaneReader(LaneClient("c", wire), after=0)  # type: ignore[arg-type]
        puller = Scrambled([2, 3], last=3)
        reader._puller = puller  # type: ignore[assignment]
        async with asyncio.timeout(240):
            assert [(await reader.take()).number for _ in range(3)] == [1, 2, 3]
        assert puller.resets == 1

    run_to_end(scenario())


# -------------------------------------------------------------------------------------------- suspension


def test_a_suspension_is_raised_until_the_client_resumes(tmp_path: Path) -> None:
    async def scenario(at: LaneServer) -> None:
        await at.deliver(["alice/s"], "a")
        async with at.client() as client:
            subscription = client.subscribe("x = 1", id="s")
            assert await take(subscription, 1) == ["a"]
            await at.suspend(reason="quota")
            for _ in range(2):
                with pytest.raises(SuspendedError, match="quota") as caught:
                    await take(subscription, 1)
                assert (caught.value.reason, caught.value.number, caught.value.code) == (
                    "quota",
                    2,
                    "suspended",
                )
        async with at.client() as client:  # it is still so
            with pytest.raises(SuspendedError, match="resume"):
                await anext(client.deliveries())
            await client.resume()
            await at.write("alice", b"", {"X": "", "R": "1"})
            await at.deliver(["alice/s"], "b")
            lane = client.deliveries()
            found = [await anext(lane), await anext(lane)]
            assert [(d.number, d.events.num_rows) for d in found] == [(3, 0), (4, 1)]
            await lane.aclose()
        assert at.asked[-1].op == "resume"

    on_server(tmp_path, scenario)


def test_unread_deliveries_that_a_suspension_purged_stop_nobody(tmp_path: Path) -> None:
    async def scenario(at: LaneServer) -> None:
        for k in range(5):
            await at.deliver(["alice/s"], f"e{k}")
        await at.suspend(reason="lease")
        async with at.client(after=2) as client:
            subscription = client.subscribe("x = 1", id="s")
            with pytest.raises(SuspendedError, match="lease"):
                await take(subscription, 1)
            await at.write("alice", b"", {"X": "", "R": "1"})
            await at.deliver(["alice/s"], "new")
            await client.subscribe("x = 2", id="t")  # ends it as resume does
            assert await take(subscription, 1) == ["new"]
            assert await subscription.get(0.1) is None
            await at.until(lambda info: info["num_ack_pending"] == 0)

    on_server(tmp_path, scenario)


def test_a_suspension_that_is_over_is_told_once_to_a_client_without_a_position(tmp_path: Path) -> None:
    async def scenario(at: LaneServer) -> None:
        await at.deliver(["alice/s"], "lost")
        await at.suspend()
        await at.write("alice", b"", {"X": "", "R": "1"})
        await at.deliver(["alice/s"], "new")
        async with at.client() as client:
            with pytest.raises(SuspendedError):
                await take(client.subscribe("x = 1", id="s"), 1)
        async with at.client() as client:
            assert await take(client.subscribe("x = 1", id="s"), 1) == ["new"]

    on_server(tmp_path, scenario)


# ---------------------------------------------------------------------------------------------- requests


def test_requests_say_what_was_asked_and_errors_what_was_answered(tmp_path: Path) -> None:
    async def scenario(at: LaneServer) -> None:
        async with at.client() as client:
            await client.subscribe("x = 1", id="s", quota_bytes=5, lease_s=6, wait_s=1.0)
            await client.subscribe("x = 1", id="s", quota_bytes=5, lease_s=6)  # the same again
            unnamed = await client.subscribe(keywords=["news"])
            assert (await client.subscribe(["news"])).id == unnamed.id
            rule = {"s": {"x|contains": "a"}, "condition": "not s"}
            await client.subscribe(sigma=rule, id="rule")
            held = await client.subscriptions()
            assert set(held) == {"s", unnamed.id, "rule"}
            assert held["rule"].filter.sigma == rule
            assert (held["s"].filter.sql, held["s"].quota_bytes, held["s"].lease_s) == ("x = 1", 5, 6)
            advertised = await client.advertise(sql="x < 5")
            assert set(await client.advertisements()) == {advertised}
            await client.unadvertise(advertised)
            assert await client.advertisements() == {}
            with pytest.raises(ExistsError, match="another filter") as exists:
                await client.subscribe("x = 2", id="s")
            assert exists.value.code == "exists"
            await client.unsubscribe("s")
            with pytest.raises(UnknownSubscriptionError):
                await client.unsubscribe("s")
            for code, kind in [
                ("too_complex", RefusedFilterError),
                ("suspended", SuspendedError),
                ("new_code", LiveError),
            ]:
                at.instead = [Answer(error=Refusal(code, "because"))]
                with pytest.raises(kind, match="because") as refused:
                    await client.resume()
                assert getattr(refused.value, "code") == code  # noqa: B009

    on_server(tmp_path, scenario)


@pytest.mark.parametrize("op", ["subscribe", "unsubscribe"])
def test_an_answer_that_may_be_another_a_moment_later_is_asked_for_again(tmp_path: Path, op: str) -> None:
    """Under the same name, so that what was done is not done twice."""

    async def scenario(at: LaneServer) -> None:
        async with at.client() as client:
            await client.subscribe("x = 1", id="s")
            at.asked.clear()
            codes = ("no_coordinator", "unavailable", "busy")
            at.instead = [Answer(error=Refusal(code, "because", retry_s=0.01)) for code in codes]
            if op == "subscribe":
                await client.subscribe("x = 1", id="s")
            else:
                await client.unsubscribe("s")
            names = [request.request for request in at.asked if request.op == op]
            assert len(names) == 4
            assert len(set(names)) == 1
            assert names[0]
            await client.subscribe("x = 1", id="s")
            assert at.asked[-1].request not in names
        async with at.client(timeout_s=2.0) as client:
            at.instead = [Answer(error=Refusal("busy", "it asks too much", retry_s=600.0))]
            with pytest.raises(UnavailableError, match="asks too much") as caught:
                await client.resume(wait_s=0.1)
            assert caught.value.code == "busy"

    on_server(tmp_path, scenario)


def test_where_it_is_not_active_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(at: LaneServer) -> None:
        at.missing = {"v7": "it is cut off"}
        async with at.client() as client:
            subscription = await client.subscribe("x = 1")
            assert subscription.missing == {"v7": "it is cut off"}
            assert "v7" in caplog.text
            with pytest.raises(NotEverywhereError, match="v7: it is cut off"):
                await client.subscribe("x = 2", raise_if_missing=True)
            at.missing = {}
            assert not await client.resume()

    on_server(tmp_path, scenario)


def test_a_request_without_an_answer_is_made_again_until_the_time_is_over(tmp_path: Path) -> None:
    async def scenario(at: LaneServer) -> None:
        async with at.client(timeout_s=60.0) as client:
            at.instead = [None]
            waiting = asyncio.create_task(client.subscribe("x = 1", id="s", wait_s=0.1)._active())
            while not at.asked:
                await asyncio.sleep(0.01)
            at.server.kill()
            await at.server.start()
            await waiting
            assert [request.id for request in at.asked] == ["s", "s"]
        async with at.client(timeout_s=0.5) as client:
            at.instead = [None] * 9
            with pytest.raises(UnavailableError, match="did not answer") as caught:
                await client.resume(wait_s=0.1)
            assert caught.value.code == "unreachable"

    on_server(tmp_path, scenario)


def test_a_subscription_that_ends_ends_its_iteration(tmp_path: Path) -> None:
    async def scenario(at: LaneServer) -> None:
        async with at.client() as client:
            subscription = await client.subscribe("x = 1", id="s")
            other = await client.subscribe("x = 2", id="o")
            await at.deliver(["alice/s", "alice/o"], "a", "b")
            assert await take(subscription, 1) == ["a"]
            waiting = asyncio.create_task(anext(other))
            assert (await waiting).id == "a"
            await subscription.unsubscribe()
            async with asyncio.timeout(240):
                assert [event.id async for event in subscription] == []
            await at.deliver(["alice/s"], "late")
            assert await take(other, 1) == ["b"]
            assert await other.get(0.1) is None
            await at.until(lambda info: info["num_ack_pending"] == 0)

    on_server(tmp_path, scenario)


# -------------------------------------------------------------------------------------------- connecting


def test_a_stranger_and_a_wrong_name_are_told_so(tmp_path: Path) -> None:
    async def scenario(at: LaneServer) -> None:
        url = at.server.url
        with pytest.raises(LiveError, match="cannot connect"):
            await Client.connect("alice", url, seed=new_user().seed, timeout_s=1.0)
        with pytest.raises(LiveError, match="cannot connect"):
            await Client.connect("alice", "nats://127.0.0.1:1", seed=at.seed("alice"), timeout_s=0.5)
        async with Client.connect("bob", url, seed=at.seed("alice")) as client:
            with pytest.raises(LiveError, match="not that of client 'bob'"):
                await client.publish(Event("e"), give_up_s=20.0)

    on_server(tmp_path, scenario)


def test_a_client_of_a_directory_is_found_by_its_name(tmp_path: Path) -> None:
    key = tmp_path / "a.nk"
    key.write_text(new_user().seed + "\n")
    key.chmod(0o600)
    (tmp_path / "clients").mkdir()
    found = {"client": "a b", "broker": "v0", "url": "nats://h:1", "seed_file": str(key)}
    (tmp_path / "clients" / "a=20b.json").write_text(json.dumps(found))
    place = place_of(tmp_path, "a b")
    assert place == ClientAddress("a b", "v0", "nats://h:1", key)
    assert read_seed(place.seed_file).seed.startswith("SU")
    with pytest.raises(InputError, match="no client 'c'"):
        place_of(tmp_path, "c")
    (tmp_path / "clients" / "d.json").write_text('{"client": "d"}')
    with pytest.raises(InputError, match="broker"):
        place_of(tmp_path, "d")
    key.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        read_seed(key)


def test_a_filter_is_checked_before_it_is_sent() -> None:
    assert spelled("x = 1").sql == "x = 1"
    assert spelled(pattern={"x": [1]}).pattern == {"x": [1]}
    assert spelled([["a", "b"], ["c"]]).keywords == [["a", "b"], ["c"]]
    rule = {"s": {"x|contains": "a"}, "condition": "s"}
    assert spelled(sigma=rule).sigma == rule
    with pytest.raises(FilterError, match="position"):
        spelled("x <")
    with pytest.raises(FilterError, match="no selection"):
        spelled(sigma={"s": {"x": 1}, "condition": "t"})
    for bad in (
        {"filter": None},
        {"filter": "x = 1", "sql": "x = 1"},
        {"filter": 7},
        {"sql": ["x"]},
        {"keywords": "x"},
        {"sigma": "x = 1"},
        {"sql": "x = 1", "sigma": rule},
    ):
        with pytest.raises(InputError):
            spelled(**bad)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------- the blocking form


def test_the_blocking_form_does_the_same(tmp_path: Path) -> None:
    async def scenario(at: LaneServer) -> None:
        for k in range(4):
            await at.deliver(["alice/s"], f"e{k}")

        def program() -> None:
            with BlockingClient.connect("alice", at.server.url, seed=at.seed("alice")) as client:
                assert client.publish(CLOUDEVENT) == 1
                subscription = client.subscribe("x = 1", id="s")
                assert set(client.subscriptions()) == {"s"}
                got = []
                for event in subscription:
                    got.append(event.id)
                    event.done()
                    if len(got) == 3:
                        break
                assert got == ["e0", "e1", "e2"]
                with pytest.raises(ExistsError):
                    client.subscribe("x = 2", id="s")
            with BlockingClient.connect("alice", at.server.url, seed=at.seed("alice")) as client:
                found = [d.number for d in client.deliveries(timeout_s=2.0)]
                assert found == [4]
            with pytest.raises(LiveError, match="closed"):
                client.publish(CLOUDEVENT)

        await asyncio.to_thread(program)

    on_server(tmp_path, scenario)


def test_an_event_that_was_not_handed_over_is_put_back(tmp_path: Path) -> None:
    async def scenario(at: LaneServer) -> None:
        async with at.client() as client:
            subscription = client.subscribe("x = 1", id="s")
            await at.deliver(["alice/s"], "a", "b")
            first = await anext(subscription)
            client._incoming.put_back(first)
            assert await take(subscription, 2) == ["a", "b"]
            second = await subscription.get(0.05)
            assert second is None

    on_server(tmp_path, scenario)


def test_the_package_offers_the_clients_without_loading_them() -> None:
    code = (
        "import sys, ramify\n"
        "assert not {'nats', 'pyarrow', 'asyncio'} & set(sys.modules)\n"
        "assert 'Client' in dir(ramify) and ramify.Client.__name__ == 'Client'\n"
        "assert ramify.BlockingClient.__name__ == 'BlockingClient'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
    assert ramify.Client is Client
    with pytest.raises(AttributeError):
        ramify.Nothing  # type: ignore[attr-defined]  # noqa: B018


# ------------------------------------------------------------------------------------------- end to end


def test_what_is_acknowledged_is_delivered_whatever_the_types(tmp_path: Path) -> None:
    """Attributes of three types, published at once: a broker takes many of them in together."""
    world = seeded_world(4, brokers=3, subscriptions=1, events=1)
    asked = Subscription("tasks", "c0", world.attachments["c0"], sql="type = 'task'")
    world = replace(world, subscriptions=(asked,))
    plan = make_plan("mst", world.problem, 1)
    tasks = ["7", 7, [{"id": 7}, {"id": "x"}]]
    made = [
        {**CLOUDEVENT, "id": str(k), "type": "task", "data": {"task": tasks[k % 3], "k": k}}
        for k in range(300)
    ]
    got: dict[str, bytes | None] = {}

    async def scenario() -> None:
        async with overseen(world, tmp_path, plan) as live, AsyncExitStack() as opened:
            await live.lead()
            clients = {}
            for name in ("c0", "p0"):
                seed = live.site.ring.pair(ClientRole(name)).seed
                url = live.wires.urls[world.attachments[name]]
                clients[name] = await opened.enter_async_context(Client.connect(name, url, seed=seed))
            subscription = await clients["c0"].subscribe(sql=asked.sql, id=asked.id)
            await asyncio.gather(*(clients["p0"].publish(event) for event in made))
            async for event in subscription:
                assert event.id not in got
                got[event.id] = event.body
                if len(got) == len(made):
                    break

    async def run() -> None:
        async with asyncio.timeout(480):
            await scenario()

    run_to_end(run())
    assert got == {event["id"]: json.dumps(event["data"], separators=(",", ":")).encode() for event in made}


def test_over_real_brokers_every_subscription_gets_what_it_wants_once(tmp_path: Path) -> None:
    world = seeded_world(4, brokers=3, subscriptions=9, events=60)
    rule = '{"s": {"topic": ["A", "b"]}, "small": {"x|lt": 3}, "condition": "s and not small"}'
    one = replace(world.subscriptions[0], id="rule", sql=None, pattern=None, keywords=None, sigma=rule)
    world = replace(world, subscriptions=(*world.subscriptions, one))
    plan = make_plan("mult", world.problem, 1)
    wanted = world.wanted()
    assert any(id_ == "rule" for _, id_ in wanted)
    got: Counter[tuple[str, str]] = Counter()

    async def read(subscription: LiveSubscription) -> None:
        async for event in subscription:
            got[event.id, subscription.id] += 1

    async def scenario() -> None:
        async with overseen(world, tmp_path, plan) as live, AsyncExitStack() as opened:
            await live.lead()
            clients: dict[str, Client] = {}
            for name, broker in world.attachments.items():
                seed = live.site.ring.pair(ClientRole(name)).seed
                url = live.wires.urls[broker]
                clients[name] = await opened.enter_async_context(Client.connect(name, url, seed=seed))
            readers = []
            for row in world.subscriptions:
                pattern = None if row.pattern is None else json.loads(row.pattern)
                sigma = None if row.sigma is None else json.loads(row.sigma)
                made = clients[row.client].subscribe(
                    sql=row.sql, pattern=pattern, keywords=row.keywords, sigma=sigma, id=row.id
                )
                readers.append(asyncio.create_task(read(await made)))
            await asyncio.gather(*(clients[event.publisher or ""].publish(event) for event in world.events))
            while got.total() < len(wanted):
                assert not any(reader.done() for reader in readers), readers
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.3)
            assert got == Counter(wanted)
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    async def run() -> None:
        async with asyncio.timeout(480):
            await scenario()

    run_to_end(run())


def test_the_client_that_uses_nothing_of_ours_publishes_and_reads(tmp_path: Path) -> None:
    example = EXAMPLES / "any_language_client.py"
    assert not re.findall(r"^(?:import|from) ramify", example.read_text(), re.MULTILINE)

    async def scenario(at: LaneServer) -> None:
        key = tmp_path / "alice.nk"
        key.write_text(at.seed("alice"))
        await at.deliver(["alice/example"], "purged")
        await at.suspend()
        words = [str(example), at.server.url, "alice", str(key), "type = 'order.created'"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            while not (stored := await at.published()):
                await asyncio.sleep(0.05)
            ((subject, data, headers),) = stored
            assert subject == "ramify.publish.alice"
            assert headers["Content-Type"] == EVENT_TYPE
            while [request.op for request in at.asked] != ["subscribe", "resume"]:
                await asyncio.sleep(0.05)
            await at.write("alice", b"", {"X": "", "R": "1"})
            await at.deliver(["alice/example"], "first", "second")
            await at.deliver(["alice/example"], json.loads(data)["id"])
            out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, err.decode()
        lines = [json.loads(line) for line in out.splitlines()]
        assert [(line["number"], line["event"]["id"]) for line in lines] == [
            (4, "first"), (4, "second"), (5, json.loads(data)["id"]),
        ]  # fmt: skip
        assert {tuple(line["subscriptions"]) for line in lines} == {("example",)}
        await at.until(lambda info: info["num_ack_pending"] == 0)

    on_server(tmp_path / "site", scenario)
