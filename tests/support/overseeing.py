"""Brokers under control in this process: real servers, and a leader that a test tells what to decide."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
from nats.aio.msg import Msg

from ramify.errors import LiveError
from ramify.overlay.control.epochs import BrokerReport, Epochs
from ramify.overlay.control.names import COORDINATE, name_of
from ramify.overlay.control.records import (
    STATE,
    Answer,
    ControlState,
    ForwardedRequest,
    LiveEpoch,
    decode,
    encode,
)
from ramify.overlay.control.revisions import PlanChange, PlanChanges
from ramify.overlay.live.broker.controlled import BROKER_LEASE_S, ControlledBroker, ControlledConfig
from ramify.overlay.live.broker.plan_cache import PlanCache
from ramify.overlay.live.host.server import Server, ServerConfig
from ramify.overlay.live.wire.security import (
    BrokerRole,
    ControlRole,
    CoordinatorRole,
    RouterRole,
    accounts_config,
)
from ramify.overlay.live.wire.store import INITIAL, Lease, Store
from ramify.overlay.live.wire.streams import Endpoint, connect
from ramify.overlay.live.wire.tasks import end_tasks
from ramify.planning.plans.files import encode_plan
from ramify.planning.plans.plan import Plan
from running import SMALL, Running
from worlds import World


class Overseer:
    """A leader that decides nothing by itself but what follows from reports."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.epochs = Epochs()
        self.live: list[LiveEpoch] = []
        self.asked: list[ForwardedRequest] = []
        self.answer: Callable[[ForwardedRequest], Answer] = lambda _: Answer(ok=True)
        self.reports: list[BrokerReport] = []
        self._saved = -1
        self._keys = itertools.count()
        self._lock = asyncio.Lock()

    async def propose(self, plan: Plan) -> int:
        key = f"plans.p{next(self._keys)}"
        await self.store.put_large(key, encode_plan(plan))
        epoch = self.epochs.propose(key)
        self.live.append(LiveEpoch(epoch, key, self.epochs.revision))
        await self.save()
        return epoch

    async def revise(self, changes: dict[int, list[PlanChange]]) -> int:
        # all records before the decision, which others may save at any moment
        revision, keys = self.epochs.revision + 1, {}
        for epoch, made in changes.items():
            keys[epoch] = key = f"changes.c{next(self._keys)}"
            await self.store.put(key, encode(PlanChanges(epoch, revision, made)))
        assert self.epochs.revise() == revision
        self.live = [
            msgspec.structs.replace(live, changes=[*live.changes, (revision, keys[live.epoch])])
            for live in self.live
        ]
        await self.save()
        return revision

    async def save(self) -> None:
        async with self._lock:
            if self.epochs.version != self._saved:
                self._saved = self.epochs.version
                self.live = [live for live in self.live if live.epoch in self.epochs.live]
                state = ControlState(msgspec.Raw(self.epochs.to_json()), list(self.live))
                await self.store.put(STATE, encode(state), force=True)

    async def watch_brokers(self) -> None:
        async for change in self.store.watch("brokers"):
            if change is not INITIAL:
                name = name_of(change.key.split(".", 1)[1])
                if change.value is None:
                    self.epochs.on_lost(name)
                else:
                    self.epochs.on_register(name, Lease.read(change.value)[1])
                await self._save_again()

    async def watch_reports(self) -> None:
        async for change in self.store.watch("reports"):
            if change.value is not None:
                report = BrokerReport.from_json(change.value)
                self.reports.append(report)
                self.epochs.on_report(report)
                await self._save_again()

    async def _save_again(self) -> None:
        while True:
            try:
                return await self.save()
            except LiveError:
                self._saved = -1
                await asyncio.sleep(0.1)

    async def came(self, message: Msg) -> None:
        passed = decode(message.data, ForwardedRequest)
        self.asked.append(passed)
        await message.respond(encode(self.answer(passed)))


class Overseen:
    """An overlay's servers, the control server, brokers under control, and their leader."""

    def __init__(self, world: World, directory: Path) -> None:
        self.world = world
        self.lease_s = BROKER_LEASE_S
        # its servers and clients; its own routers are not started
        self.wires = Running(world.overlay, world.attachments, directory)
        self.site = self.wires.site
        names = [*world.overlay.brokers, "leader"]
        roles = [CoordinatorRole(name) if name == "leader" else BrokerRole(name) for name in names]
        publics = {role: self.site.ring.pair(role).public for role in roles}
        accounts = accounts_config(self.site.ring.pair(RouterRole(".control")).public, {}, {}, publics)
        self.control = Server(ServerConfig(".control", directory / "control", accounts))
        self.plans = PlanCache()
        self.brokers: dict[str, ControlledBroker] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._helpers: list[asyncio.Task[None]] = []
        self.leader: Overseer
        self.probability = 0.0

    async def start(self, brokers: Sequence[str] | None = None) -> None:
        await asyncio.gather(*(s.start() for s in [*self.wires.servers.values(), self.control]))
        self._store = await Store.connect(self.control_endpoint("leader"))
        self._wire = await connect(self.control_endpoint("leader"))
        self.leader = Overseer(self._store)
        for watch in (self.leader.watch_brokers(), self.leader.watch_reports()):
            self._helpers.append(asyncio.create_task(watch))
        for name in self.world.overlay.brokers if brokers is None else brokers:
            self.start_broker(name)

    async def lead(self) -> None:
        """Answer requests from now on."""
        await self._wire.subscribe(f"{COORDINATE}.*", cb=self.leader.came)

    def control_endpoint(self, name: str) -> Endpoint:
        return self.site.endpoint(ControlRole(name), self.control.url)

    def start_broker(self, name: str) -> ControlledBroker:
        config = ControlledConfig(
            self.site.broker(name, self.wires.urls),
            self.control_endpoint(name),
            self.probability,
            lease_s=self.lease_s,
            look_every_s=0.3,
        )
        made = self.brokers[name] = ControlledBroker(config, self.plans)
        self.tasks[name] = asyncio.create_task(made.run())
        return made

    async def end_broker(self, name: str) -> None:
        await end_tasks([self.tasks.pop(name)])

    async def until(self, what: Callable[[], bool], limit_s: float = 180.0) -> None:
        async with asyncio.timeout(limit_s):
            while not what():
                for task in self.tasks.values():
                    if task.done():
                        task.result()
                await asyncio.sleep(0.02)

    async def routing(self, epoch: int) -> None:
        """Wait until every broker routes by an epoch."""
        await self.until(
            lambda: all(b.status().routing and b.node.epoch == epoch for b in self.brokers.values())
        )

    async def stop(self) -> None:
        await end_tasks([*self._helpers, *self.tasks.values()])
        with suppress(Exception):
            await self._store.close()
            await self._wire.close()
        await self.wires.stop()
        await self.control.stop()


@asynccontextmanager
async def overseen(
    world: World,
    directory: Path,
    plan: Plan | None = None,
    limit_s: float = 300.0,
    lease_s: int = BROKER_LEASE_S,
) -> AsyncIterator[Overseen]:
    """All brokers of a world under control, routing by a plan where one is given."""
    live = Overseen(world, directory)
    live.lease_s = lease_s
    try:
        async with asyncio.timeout(limit_s):
            await live.start()
            if plan is not None:
                await live.routing(await live.leader.propose(plan))
            yield live
    finally:
        await live.stop()


def expected(world: World, *suffixes: str) -> Counter[tuple[str, str]]:
    return Counter({(f"{e}{suffix}", s): 1 for suffix in suffixes for e, s in world.wanted()})


__all__ = ["SMALL", "Overseen", "Overseer", "expected", "overseen"]
