"""Order per publisher, through live brokers, for a client whose subscriptions overlap."""

import asyncio
from pathlib import Path

from machines import machine_of, small_line, started
from ramify.content.events.events import Event
from ramify.overlay.live.client.client import Client, LiveSubscription
from ramify.overlay.live.wire.tasks import run_to_end

EVENTS = 240


def test_overlapping_subscriptions_of_a_client_get_each_publishers_events_in_order(tmp_path: Path) -> None:
    """Events 0, 2, 4, ... are for both subscriptions of the reader, 1, 3, 5, ... for one."""
    clients = {"reader": "v1", "near": "v1", "far": "v0"}

    async def publish(writer: Client, size: int) -> None:
        made = [Event(f"{writer.name}-{i}", attributes={"n": i, "even": i % 2 == 0}) for i in range(EVENTS)]
        # several publishes are acknowledged while the broker works on one step
        for at in range(0, EVENTS, size):
            await writer.publish(made[at : at + size])

    async def read(subscription: LiveSubscription, count: int) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        async with asyncio.timeout(240):
            for _ in range(count):
                event = await anext(subscription)
                found.setdefault(str(event.publisher), []).append(int(event.id.rpartition("-")[2]))
        return found

    async def run() -> None:
        async with (
            started(machine_of(tmp_path, small_line(2), clients)),
            Client.at(tmp_path, "reader") as reader,
            Client.at(tmp_path, "near") as near,
            Client.at(tmp_path, "far") as far,
        ):
            everything = await reader.subscribe("n >= 0", id="everything")
            even = await reader.subscribe("even", id="even")
            await asyncio.gather(publish(near, 3), publish(far, 40))
            got, half = await asyncio.gather(read(everything, 2 * EVENTS), read(even, EVENTS))
            assert got == {name: list(range(EVENTS)) for name in ("near", "far")}
            assert half == {name: list(range(0, EVENTS, 2)) for name in ("near", "far")}

    run_to_end(run())
