"""What runs and how it fares: for `ramify status` and for tests.

Owns the view. It only reads. From the control server it is as old as the brokers' last report of
themselves, about two seconds; brokers that make matches have none, and are asked one by one.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import nats.errors

from ramify.errors import InputError, LiveError
from ramify.overlay.control.epochs import BrokerReport, Epochs
from ramify.overlay.control.health import HealthFigures, health
from ramify.overlay.control.names import STATUS, name_of
from ramify.overlay.control.records import LEADER, RULES, STATE, ControlState, LiveEpoch, Status, decode
from ramify.overlay.live.host.directory import Directory, RunningFile
from ramify.overlay.live.wire.security import RouterRole
from ramify.overlay.live.wire.store import Lease, Store
from ramify.overlay.live.wire.streams import Endpoint, connect, disconnect

__all__ = ["BrokerView", "EpochView", "Look", "Overview", "ask_brokers", "look", "looking", "looking_here"]

DECISIONS_SHOWN = 5
ANSWER_S = 3.0
"""A broker that has not answered by then is lost."""


@dataclass(frozen=True, slots=True)
class EpochView:
    """A live epoch. `waiting`: the brokers that it waits for at its stage, and why."""

    epoch: int
    state: str
    revision: int
    plan_key: str
    waiting: dict[str, str]


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A broker: `state` is the word of `health`, as it says itself or as it is seen from here, and `why`
    its reason; `status` is all that it says of itself, if anything."""

    name: str
    state: str
    status: Status | None
    age_s: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Overview:
    """All of it. `leader` is None when no coordinator decides now. With `matchmaking`, the trees that
    matches are made over, there is none, and there are no epochs."""

    leader: str | None
    epochs: list[EpochView] = field(default_factory=list)
    brokers: list[BrokerView] = field(default_factory=list)
    clients: int = 0
    decisions: list[dict[str, object]] = field(default_factory=list)
    matchmaking: str = ""
    rules: dict[str, object] | None = None
    """The record of rules; None where there is none. `unusable` says what is wrong with a damaged one."""

    @property
    def routing(self) -> bool:
        """Whether every broker routes."""
        return bool(self.brokers) and all(broker.state == "routing" for broker in self.brokers)

    def behind(self, since: float) -> list[str]:
        """The brokers that do not route by the newest epoch, or have not begun since a moment.

        What a process has said of itself outlives it for a while.
        """
        newest = max((each.epoch for each in self.epochs), default=0 if self.matchmaking else 1)
        return [
            broker.name
            for broker in self.brokers
            if broker.state != "routing"
            or broker.status is None
            or broker.status.started < since
            or broker.status.epoch < newest
        ]


Look = Callable[[], Awaitable[Overview]]


@contextlib.asynccontextmanager
async def looking(
    control: Endpoint, failed: Callable[[Exception], None] = lambda error: None
) -> AsyncIterator[Look]:
    """Looks at a control server. Waits until it is there; `failed` hears of attempts."""
    store = await Store.join(control, failed=failed)
    try:
        yield lambda: look(store)
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def looking_here(
    directory: Directory, running: RunningFile, failed: Callable[[Exception], None] = lambda error: None
) -> AsyncIterator[Look]:
    """Looks at what runs from a directory of this machine."""
    if not running.matchmaking:
        async with looking(directory.viewer(running.control_url), failed) as here:
            yield here
        return
    roles = {RouterRole(name): url for name, url in running.servers.items()}
    routers = {
        role.name: Endpoint(url, directory.ring.pair(role).seed, role.inbox_prefix, "status")
        for role, url in roles.items()
    }
    yield lambda: ask_brokers(routers, running.matchmaking)


async def ask_brokers(routers: Mapping[str, Endpoint], trees: str) -> Overview:
    """Ask every broker that makes matches. Those that do not answer in time are lost."""
    found = await asyncio.gather(*(_asked(name, router) for name, router in sorted(routers.items())))
    clients = sum(each.status.clients for each in found if each.status is not None)
    return Overview(None, brokers=list(found), clients=clients, matchmaking=trees)


async def _asked(name: str, router: Endpoint) -> BrokerView:
    try:
        async with asyncio.timeout(ANSWER_S):
            connection = await connect(router)
            try:
                status = decode((await connection.request(STATUS, b"", timeout=ANSWER_S)).data, Status)
            finally:
                await disconnect(connection)
    except (LiveError, nats.errors.Error, TimeoutError, OSError):
        return BrokerView(name, "lost", None, None)
    return BrokerView(name, status.health, status, 0.0, status.why)


async def look(store: Store) -> Overview:
    """Read everything once. Raises `LiveError` when the control server does not answer."""
    lease = await store.get(LEADER)
    leader = None if lease is None else Lease.read(lease[0])[0]
    saved = await store.get(STATE)
    epochs, live = Epochs(), list[LiveEpoch]()
    if saved is not None:
        state = decode(saved[0], ControlState)
        epochs, live = Epochs.from_json(bytes(state.epochs)), state.live
    # what was saved is older than what brokers say
    for value in (await _values(store, "reports")).values():
        epochs.on_report(BrokerReport.from_json(value))
    leases = await _values(store, "brokers")
    told = {name: decode(value, Status) for name, value in (await _values(store, "status")).items()}
    names = sorted({*epochs.members, *leases, *told})
    return Overview(
        leader,
        [_epoch(epochs, each) for each in live],
        [_broker(name, epochs, leases, told.get(name)) for name in names],
        await store.count("clients"),
        await _decisions(store),
        rules=await _rules(store),
    )


def _epoch(epochs: Epochs, each: LiveEpoch) -> EpochView:
    revision = each.changes[-1][0] if each.changes else each.base
    state = epochs.state(each.epoch)
    return EpochView(each.epoch, state.value, revision, each.plan_key, epochs.waits_for(each.epoch))


def _broker(name: str, epochs: Epochs, leases: dict[str, bytes], status: Status | None) -> BrokerView:
    age = None if status is None else max(0.0, time.time() - status.at)
    known = name in leases and epochs.session(name) == Lease.read(leases[name])[1]
    said = status is not None and status.routing
    seen = health(HealthFigures(leased=name in leases, age_s=age or 0.0, caught_up=known and said))
    if status is not None and seen.word in ("routing", "catching up") and status.health != "routing":
        # it knows better why
        return BrokerView(name, status.health, status, age, status.why)
    return BrokerView(
        name, seen.word, status, age, status.why if seen.word == "routing" and status else seen.why
    )


async def _rules(store: Store) -> dict[str, object] | None:
    found = await store.get(RULES)
    try:
        return None if found is None else msgspec.json.decode(found[0], type=dict[str, object])
    except msgspec.DecodeError as error:
        return {"unusable": str(error)}


async def _decisions(store: Store) -> list[dict[str, object]]:
    found = await _values(store, "decisions", names=False)
    newest = sorted(found, key=lambda key: int(key) if key.isdigit() else 0)[-DECISIONS_SHOWN:]
    rows: list[dict[str, object]] = []
    for key in newest:
        try:
            rows.append(msgspec.json.decode(found[key], type=dict[str, object]))
        except msgspec.DecodeError as error:
            raise InputError(f"decision {key} in the store is damaged: {error}") from None
    return rows


async def _values(store: Store, prefix: str, *, names: bool = True) -> dict[str, bytes]:
    """The values below a prefix, by the last part of their keys."""
    found = ((key.removeprefix(f"{prefix}."), v) for key, v in (await store.values(prefix)).items())
    return {name_of(last) if names else last: value for last, value in found}
