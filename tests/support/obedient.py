"""A broker that keeps to the contract of `epochs` and routes nothing: for tests of coordinators."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import msgspec
import nats.errors
from nats.aio.client import Client as Nats

from ramify.errors import LiveError
from ramify.overlay.control.epochs import Ask, BrokerReport, Epochs, Flip, Install, Retire
from ramify.overlay.control.names import COORDINATE, token
from ramify.overlay.control.records import (
    STATE,
    Answer,
    ControlState,
    ForwardedRequest,
    LiveEpoch,
    Request,
    decode,
    encode,
)
from ramify.overlay.control.registry import applied
from ramify.overlay.control.revisions import PlanChanges
from ramify.overlay.live.host.server import Server
from ramify.overlay.live.wire.security import ControlRole, CoordinatorRole, accounts_config, new_user
from ramify.overlay.live.wire.store import INITIAL, Lease, Store
from ramify.overlay.live.wire.streams import Endpoint, connect
from ramify.overlay.live.wire.tasks import end_tasks, together
from ramify.planning.plans.files import decode_plan
from ramify.planning.plans.plan import Plan

USERS = {name: new_user() for name in ("brokers", "k0", "k1", "k2", "test")}
ACCOUNTS = accounts_config(
    new_user().public, {}, {}, {CoordinatorRole(n): p.public for n, p in USERS.items()}
)


def endpoint(server: Server, name: str) -> Endpoint:
    return Endpoint(server.url, USERS[name].seed, ControlRole(name).inbox_prefix, name)


class Shelf:
    """Plans that were read and redone, shared by brokers of a process. Counts what was read."""

    def __init__(self) -> None:
        self.plans: dict[tuple[int, int], Plan] = {}
        self.read_plans = 0
        self._lock = asyncio.Lock()

    async def plan(self, store: Store, live: LiveEpoch, revision: int) -> Plan:
        async with self._lock:
            made = self.plans.get((live.epoch, revision))
            if made is not None:
                return made
            held = [r for epoch, r in self.plans if epoch == live.epoch and live.base <= r < revision]
            if held:
                at = max(held)
                plan = self.plans[live.epoch, at]
            else:
                while (found := await store.get_large(live.plan_key)) is None:
                    await asyncio.sleep(0.01)
                plan, at = decode_plan(found[0]), live.base
                self.read_plans += 1
            for number, key in live.changes:
                if at < number <= revision:
                    value = await store.get(key)
                    assert value is not None
                    plan = applied(plan, decode(value[0], PlanChanges).changes)
            self.plans[live.epoch, revision] = plan
            return plan


class Obedient:
    """Takes its lease, does what the state says, reports. `deaf` stops it from doing anything
    new, `silent` from reporting in rounds."""

    def __init__(self, name: str, store: Store, shelf: Shelf, lease_s: int = 5) -> None:
        self.name = name
        self.plans: dict[int, tuple[int, Plan]] = {}
        self.flipped = self.turn = self.round = 0
        self.deaf = False
        self.silent = False
        self.states = 0
        self.shelf, self._store = shelf, store
        self._lease = Lease(store, f"brokers.{token(name)}", name, lease_s)
        self._number = 0
        self._dead = False

    async def run(self) -> None:
        await together(self._keep(), self._obey())

    async def die(self) -> None:
        """Renew no lease and do nothing more."""
        self._dead = self.deaf = True

    async def _keep(self) -> None:
        while True:
            with contextlib.suppress(LiveError):
                if not self._dead:
                    await self._lease.take()
            await asyncio.sleep(0.3 * self._lease.ttl_s)

    async def _obey(self) -> None:
        async for change in self._store.watch(STATE):
            if change is not INITIAL and change.value is not None:
                self.states += 1
                while self.deaf:
                    await asyncio.sleep(0.02)
                state = decode(change.value, ControlState)
                while not await self._follows(state):
                    await asyncio.sleep(0.05)

    async def _follows(self, state: ControlState) -> bool:
        try:
            await self._follow(state)
        except LiveError:
            return False
        return True

    async def _follow(self, state: ControlState) -> None:
        epochs = Epochs.from_json(bytes(state.epochs))
        if epochs.session(self.name) != self._lease.session:
            return
        live = {each.epoch: each for each in state.live}
        for action in epochs.actions():
            if self.name not in action.to:
                continue
            match action:
                case Install(epoch, _, revision, _):
                    if self.plans.get(epoch, (-1, None))[0] < revision:
                        plan = await self.shelf.plan(self._store, live[epoch], revision)
                        self.plans[epoch] = revision, plan
                case Flip(epoch, turn, _):
                    if turn > self.turn:
                        assert epoch in self.plans
                        self.flipped, self.turn = epoch, turn
                case Retire(epoch, _):
                    assert epoch != self.flipped
                    self.plans.pop(epoch, None)
                case Ask(number, _):
                    if not self.silent:
                        self.round = max(self.round, number)
        self._number += 1
        installed = frozenset((epoch, revision) for epoch, (revision, _) in self.plans.items())
        report = BrokerReport(
            self.name, self._lease.session, self._number, installed, self.flipped, self.turn, self.round
        )
        await self._store.put(f"reports.{token(self.name)}", report.to_json(), force=True)


class Asker:
    """Asks the leader as brokers do, until somebody answers."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._nats: Nats | None = None

    async def __call__(self, broker: str, client: str, request: Request, reason: str = "") -> Answer:
        if self._nats is None:
            self._nats = await connect(endpoint(self._server, "test"))
        until_ = time.monotonic() + request.wait_s
        while True:
            # in slices: a leader that dies takes what it was asked with it
            slice_s = min(2.0, max(0.0, until_ - time.monotonic()))
            asked = msgspec.structs.replace(request, wait_s=slice_s)
            data = encode(ForwardedRequest(broker, client, asked, reason))
            try:
                told = await self._nats.request(f"{COORDINATE}.{token(broker)}", data, timeout=slice_s + 1)
            except (nats.errors.Error, TimeoutError, OSError):
                await asyncio.sleep(0.1)
                continue
            answer = decode(told.data, Answer)
            if answer.error is not None and answer.error.code == "unavailable":
                continue
            if not answer.missing or time.monotonic() >= until_:
                return answer

    async def close(self) -> None:
        if self._nats is not None:
            await self._nats.close()


@contextlib.asynccontextmanager
async def obeying(server: Server, names: list[str], lease_s: int = 5) -> AsyncIterator[dict[str, Obedient]]:
    """Brokers with one connection each that end with the block."""
    shelf, stores = Shelf(), list[Store]()
    made: dict[str, Obedient] = {}
    for name in names:
        stores.append(await Store.connect(endpoint(server, "brokers")))
        made[name] = Obedient(name, stores[-1], shelf, lease_s)
    tasks = [asyncio.create_task(broker.run()) for broker in made.values()]
    try:
        yield made
        for task in tasks:
            if task.done():
                task.result()
    finally:
        await end_tasks(tasks)
        for store in stores:
            await store.close()


async def until(true: Callable[[], object]) -> None:
    while not true():
        await asyncio.sleep(0.02)
