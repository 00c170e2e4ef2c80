"""A process that cannot reach the control server says so, and why, for as long as that lasts."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from obedient import ACCOUNTS, endpoint, until
from ramify.network.graphs.generators import line
from ramify.overlay.live.broker.broker import BrokerConfig
from ramify.overlay.live.broker.controlled import ControlledBroker, ControlledConfig
from ramify.overlay.live.coordinator.coordinator import Coordinator, CoordinatorConfig
from ramify.overlay.live.host.server import Server, ServerConfig, free_port
from ramify.overlay.live.wire.security import ControlRole, new_user
from ramify.overlay.live.wire.streams import Endpoint, sparing
from ramify.overlay.live.wire.tasks import end_tasks, run_to_end
from running import SMALL

LIMIT_S = 240.0


def nobody() -> Endpoint:
    return Endpoint(f"nats://127.0.0.1:{free_port()}")


def said(caplog: pytest.LogCaptureFixture, what: str) -> Callable[[], bool]:
    return lambda: what in caplog.text


def test_a_coordinator_that_cannot_connect_says_why_and_then_leads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def scenario() -> None:
        server = Server(ServerConfig("control", tmp_path / "c", ACCOUNTS, port=free_port()))
        coordinator = Coordinator(CoordinatorConfig("k0", endpoint(server, "k0"), overlay=line(2)))
        running = asyncio.create_task(coordinator.run())
        try:
            async with asyncio.timeout(LIMIT_S):
                await until(said(caplog, f"coordinator k0 cannot connect to {server.url}: "))
                assert "Connect call failed" in caplog.text
                await server.start()
                await until(lambda: coordinator.term is not None)
        finally:
            await end_tasks([running])
            await server.stop()

    run_to_end(scenario())


def test_a_coordinator_with_a_key_that_nobody_knows_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        server = Server(ServerConfig("control", tmp_path / "c", ACCOUNTS))
        await server.start()
        stranger = Endpoint(server.url, new_user().seed, ControlRole("k").inbox_prefix, "k")
        running = asyncio.create_task(Coordinator(CoordinatorConfig("k", stranger, overlay=line(2))).run())
        try:
            async with asyncio.timeout(LIMIT_S):
                await until(said(caplog, "Authorization Violation"))
        finally:
            await end_tasks([running])
            await server.stop()

    run_to_end(scenario())


def test_a_broker_that_cannot_reach_control_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        control = nobody()
        broker = ControlledBroker(ControlledConfig(BrokerConfig("v0", nobody(), {}, sizes=SMALL), control))
        reaching = asyncio.create_task(broker._reach())
        try:
            async with asyncio.timeout(LIMIT_S):
                await until(lambda: f"cannot connect to the control server {control.url}" in broker.trouble)
                assert broker.trouble in caplog.text
        finally:
            await end_tasks([reaching])

    run_to_end(scenario())


def test_the_same_reason_is_said_once_in_a_while_and_another_at_once() -> None:
    heard: list[str] = []
    failed = sparing(heard.append, every_s=1000.0)
    for error in ("a", "a", "b", "b", "a"):
        failed(OSError(error))
    failed(TimeoutError())
    assert heard == ["a (attempt 1)", "b (attempt 3)", "a (attempt 5)", "TimeoutError() (attempt 6)"]
    often: list[str] = []
    failed = sparing(often.append, every_s=0.0)
    for _ in range(3):
        failed(OSError("a"))
    assert len(often) == 3
