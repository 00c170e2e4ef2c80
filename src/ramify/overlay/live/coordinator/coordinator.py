"""A coordinator: takes the lead when nobody has it, starts or continues an overlay, leads until it cannot.

Owns its settings, the way into and out of a term (`term.Term`), what is read from the store when one
begins, and the process that makes plans.

Several may run; one leads, by the lease `leader`. All that a leader knows is in the store. One that loses
its lease, meets another's write or cannot reach the control server ends its term, forgets what it knew and
stands by again; so does one whose write had an unknown outcome. A standby costs a look at the lease.
"""

import asyncio
import contextlib
import logging
import multiprocessing
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import nats.errors
from nats.aio.client import Client as Nats

from ramify.content.events.events import AttributeType
from ramify.errors import InputError, LiveError, PlanError
from ramify.network.graphs.overlay import Overlay
from ramify.overlay.control.epochs import EpochError
from ramify.overlay.control.fairness import DEFAULT_RATES, RequestRates
from ramify.overlay.control.records import (
    LEADER,
    OVERLAY,
    REPLACED,
    RULES,
    STATE,
    ControlState,
    RulesRecord,
    decode,
    encode,
)
from ramify.overlay.control.registry import Book, BrokenRulesError, Matching, Write
from ramify.overlay.control.rules import NO_RULES, OverlayRules
from ramify.overlay.live.coordinator.adaptation import Replanner, Settings
from ramify.overlay.live.coordinator.homes import ClientHomes
from ramify.overlay.live.coordinator.leader_store import Stores
from ramify.overlay.live.coordinator.term import Term
from ramify.overlay.live.wire.pauses import TROUBLE_PAUSE_S
from ramify.overlay.live.wire.store import INITIAL, Lease, Store
from ramify.overlay.live.wire.streams import Endpoint, connect, ensure_samples, sparing
from ramify.overlay.live.wire.tasks import together
from ramify.planning.choosing.replan import ReplanJob, ReplanResult, make_plans
from ramify.planning.demand.classes import Classes
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.check import check
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes.catalog import make_plan

__all__ = ["Coordinator", "CoordinatorConfig", "make_in_process"]

_log = logging.getLogger(__name__)

_STANDBY_S = 0.5
_READERS = 64


@dataclass(frozen=True)
class CoordinatorConfig:
    """What a coordinator is given.

    Attributes
    ----------
    name           among coordinators
    control        the control server, as a coordinator
    plan           the first plan; its subscriptions become the registry's. Later starts keep what the store
                   has, unless `replace_plan` asks for this plan as a new epoch
    replace_once   names this wish to replace: of all coordinators and starts with the same name one does,
                   so that what was planned since is not undone by a restart or a standby
    overlay        where there is no first plan: the overlay to begin with, with a plan of `scheme`
    scheme         also what makes plans where the present plan's scheme has no name here
    schema         the types of attributes that filters are read with, where there is no first plan
    attachments    client -> broker, likewise
    lease_s        after this long without a sign of life another takes the lead
    replicas       of the control server's bucket
    planning_s     the longest that making plans may take
    grace_s        how long a plan that is no longer needed stays readable for brokers that are behind
    rules          what the record of rules is to say from this start on; None: what it says already
    rules_once     names this wish, as `replace_once` does: what was changed since is not undone
    matching       says what newcomers match, where samples are at hand
    rates          the CPU time that one client's requests may take
    homes          says where clients are attached that have asked for nothing yet
    """

    name: str
    control: Endpoint
    plan: Plan | None = None
    overlay: Overlay | None = None
    scheme: str = "explicit"
    schema: Mapping[str, AttributeType] = field(default_factory=dict)
    attachments: Mapping[str, str] = field(default_factory=dict)
    replace_plan: bool = False
    replace_once: str = ""
    lease_s: int = 5
    replicas: int = 1
    planning_s: float = 120.0
    grace_s: float = 30.0
    rules: OverlayRules | None = None
    rules_once: str = ""
    matching: Matching | None = None
    rates: RequestRates = DEFAULT_RATES
    homes: ClientHomes = field(default_factory=ClientHomes)

    @property
    def settings(self) -> Settings:
        """What a term needs of it."""
        return Settings(self.scheme, self.grace_s, self.matching, self.rates, self.homes)


class Coordinator:
    """See the module. `run` ends only when it is cancelled, or for a fault that another try cannot mend."""

    def __init__(self, config: CoordinatorConfig, replanner: Replanner | None = None) -> None:
        self.config = config
        self.replanner = replanner
        self.term: Term | None = None
        """The term of this coordinator, while it leads."""
        self.terms = 0
        """How many terms it has begun."""
        self._replaced = self._ruled = False
        self._refused: BrokenRulesError | None = None

    async def run(self) -> None:
        """Stand by and lead. Raises `InputError` for a plan that cannot be used."""
        config = self.config
        while True:
            try:
                await self._connected()
            except (LiveError, nats.errors.Error, OSError) as error:
                _log.warning("coordinator %s does not lead: %s", config.name, error or repr(error))
                await asyncio.sleep(TROUBLE_PAUSE_S)

    async def _connected(self) -> None:
        who = f"coordinator {self.config.name} cannot connect to {self.config.control.url}"
        failed = sparing(lambda why: _log.warning("%s: %s", who, why))
        store = await Store.connect(self.config.control, replicas=self.config.replicas, failed=failed)
        try:
            connection = await connect(self.config.control, failed=failed)
            try:
                # brokers may write there, and not make it
                await ensure_samples(connection)
                await self._serve(store, connection)
            finally:
                with contextlib.suppress(nats.errors.Error, OSError):
                    await connection.close()
        finally:
            await store.close()

    async def _serve(self, store: Store, connection: Nats) -> None:
        """Stand by and lead until there is trouble; then the connections too are made anew."""
        config = self.config
        lease = Lease(store, LEADER, config.name, config.lease_s)
        try:
            while not await lease.take():
                await asyncio.sleep(_STANDBY_S)
            await self._lead(store, connection, lease)
        finally:
            # at once, so that a standby need not wait; also when cancelled
            with contextlib.suppress(LiveError):
                await lease.release()

    async def _lead(self, store: Store, connection: Nats, lease: Lease) -> None:
        stores = Stores(store, lease)
        try:
            await together(_keep(lease), self._run_term(stores, connection))
        finally:
            self.term = None

    async def _run_term(self, stores: Stores, connection: Nats) -> None:
        book = await self._begin(stores)
        self.terms += 1
        _log.info("coordinator %s leads, revision %d", self.config.name, book.epochs.revision)
        self.term = Term(self.config.settings, self.replanner, stores, connection, book, self._make)
        self.term.plans.refused, self._refused = self._refused, None
        await self.term.run()

    async def _make(self, job: ReplanJob) -> ReplanResult:
        return await make_in_process(job, self.config.planning_s)

    async def _begin(self, stores: Stores) -> Book:
        """The book of the store; of a new overlay when the store has none."""
        clients = await _clients(stores)
        found = await stores.store.get(STATE)
        if found is None:
            book = await self._first(stores, clients)
            if self.config.replace_once:
                await stores.store.put(REPLACED, self.config.replace_once.encode(), force=True)
        else:
            stores.revisions[STATE] = found[1]
            book = await _load(stores, found[0], clients)
            rules = await self._rules(stores, book.head.plan)
            book.obey(rules.rules, rules.unusable)
            if self.config.replace_plan and self.config.plan is not None and not self._replaced:
                await self._replace_once(stores, book, self.config.plan)
        self._replaced = True
        return book

    async def _rules(self, stores: Stores, plan: Plan) -> OverlayRules:
        """The rules of the record, which says what this start was given unless it has said so before.

        Raises `InputError` for given rules that do not go with the overlay and the schema of a plan. Rules
        of the record that do not are `unusable`: they must not end the leader.
        """
        found, config = await stores.store.get(RULES), self.config
        try:
            known = None if found is None else decode(found[0], RulesRecord)
        except InputError as error:
            _log.warning("the record of rules is damaged: %s", error)
            known = None
        wanted = None if self._ruled else config.rules
        wish = config.rules_once or ("" if wanted is None else encode(wanted.record(0, "", 0.0)).decode())
        if wanted is not None and (known is None or known.wish != wish):
            wanted.checked(plan.overlay, plan.classes.schema)
            record = wanted.record(1 if known is None else known.revision + 1, wish, time.time())
            await stores.store.put(RULES, encode(record), 0 if found is None else found[1])
            self._ruled = True
            return OverlayRules.read(encode(record))
        self._ruled = True
        if found is None:
            return NO_RULES
        return OverlayRules.stored(found[0], plan.overlay, plan.classes.schema)

    async def _first(self, stores: Stores, clients: Mapping[str, bytes]) -> Book:
        plan = await asyncio.to_thread(self._first_plan)
        rules = await self._rules(stores, plan)
        if rules.unusable:
            raise LiveError(f"no plan is installed: the record of rules cannot be used: {rules.unusable}")
        book, writes = await asyncio.to_thread(Book.first, plan, _fresh, rules.rules)
        _check_sizes(writes, stores.store.most_value_bytes)
        # left by a first start that did not come to its end
        for key in clients.keys() - {write.key for write in writes}:
            await stores.delete(key)
        await stores.write(writes)
        return book

    def _first_plan(self) -> Plan:
        config = self.config
        if config.plan is not None:
            return _checked(config.plan)
        if config.overlay is None:
            raise InputError("the store has no overlay yet: give a plan, or an overlay and a scheme")
        classes = Classes.collapse([], config.overlay, config.schema)
        problem = Problem.of(config.overlay, classes, Demand.of([]), config.attachments)
        return check(make_plan(config.scheme, problem), problem)

    async def _replace_once(self, stores: Stores, book: Book, plan: Plan) -> None:
        wish = self.config.replace_once.encode()
        found = await stores.store.get(REPLACED)
        if wish and found is not None and found[0] == wish:
            return
        if await self._replace(stores, book, plan) and wish:
            await stores.store.put(REPLACED, wish, force=True)

    async def _replace(self, stores: Stores, book: Book, plan: Plan) -> bool:
        """Propose the plan that was given, with what clients want now, unless it is the head already.

        Whether it is the head now.
        """
        if plan.overlay != book.overlay:
            raise InputError(
                "the plan to begin with was made for another overlay than the store has. "
                "Plan for that one, or begin with an empty control server."
            )
        if await asyncio.to_thread(book.is_head, _checked(plan)):
            return True
        try:
            epoch, writes = await asyncio.to_thread(book.propose, plan)
        except (EpochError, PlanError) as error:
            _log.warning("the given plan is not installed, the present one stays: %s", error)
            self._refused = error if isinstance(error, BrokenRulesError) else None
            return False
        await stores.write([*writes, book.state()])
        _log.info("epoch %d: the given plan %s replaces the one in the store", epoch, plan.scheme)
        return True


def _check_sizes(writes: Sequence[Write], most: int) -> None:
    for write in writes:
        if not write.large and len(write.value) > most:
            raise InputError(
                f"{write.key} has {len(write.value)} bytes, the control server takes {most}: give clients "
                "of the plan fewer subscriptions each, or the server a larger max_payload"
            )


def _fresh() -> str:
    return uuid.uuid4().hex


def _checked(plan: Plan) -> Plan:
    problem = Problem.of(plan.overlay, plan.classes, Demand.of([]), plan.attachments, grid=plan.grid)
    return check(plan, problem)


async def _keep(lease: Lease) -> None:
    """Renew the lease until it is no longer ours."""
    while True:
        await asyncio.sleep(0.25 * lease.ttl_s if lease.held else 0)
        try:
            ours = await lease.renew()
        except LiveError as error:
            if not lease.held:
                raise LiveError(f"the lease of the leader lapsed: {error}") from error
            await asyncio.sleep(0.1)
            continue
        if not ours:
            raise LiveError("another coordinator has the lead")


async def _clients(stores: Stores) -> dict[str, bytes]:
    """The records of clients by key; their revisions are noted."""
    found: dict[str, bytes] = {}
    async with contextlib.aclosing(stores.store.watch("clients")) as changes:
        async for change in changes:
            if change is INITIAL:
                return found
            if change.value is not None:
                found[change.key] = change.value
                stores.revisions[change.key] = change.revision
    raise LiveError("the control server did not list the clients: try again")


async def _load(stores: Stores, state: bytes, clients: Mapping[str, bytes]) -> Book:
    """The book of the store. Costs all plans and changes that are live."""
    values = {STATE: state}
    turns = asyncio.Semaphore(_READERS)

    async def read(key: str, *, large: bool) -> None:
        async with turns:
            found = await (stores.store.get_large(key) if large else stores.store.get(key))
        if found is None:
            raise LiveError(
                f"the state names {key}, and the store has no such key: another leader is at work"
            )
        values[key] = found[0]

    live = decode(state, ControlState).live
    large = [OVERLAY, *(epoch.plan_key for epoch in live)]
    small = [key for epoch in live for _, key in epoch.changes]
    await asyncio.gather(*(read(k, large=True) for k in large), *(read(k, large=False) for k in small))
    book = await asyncio.to_thread(Book.load, values.__getitem__, clients.values(), _fresh)
    held = [key for prefix in ("plans", "changes") for key in await stores.store.keys(prefix)]
    # written by a leader that was then deposed
    book.dropped = sorted(set(held) - book.referred())
    return book


# ------------------------------------------------------------------------------------- making of plans


async def make_in_process(job: ReplanJob, limit_s: float) -> ReplanResult:
    """Do a job in a process of its own, so that this one renews its leases and answers meanwhile.

    Only bytes pass between them. The process ends with the job, when this is cancelled, and after
    `limit_s`: then `LiveError`.
    """
    data = await asyncio.to_thread(job.encode)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(theirs,), daemon=True, name="ramify plans")
    try:
        await asyncio.to_thread(_begun, child, ours, theirs, data)
        async with asyncio.timeout(limit_s):
            while not ours.poll() and child.is_alive():
                await asyncio.sleep(0.02)
            if not ours.poll():
                raise LiveError(f"the process that makes plans died with code {child.exitcode}")
            made = await asyncio.to_thread(ours.recv_bytes)
    except TimeoutError:
        raise LiveError(f"making plans took more than {limit_s:g} s: try fewer schemes") from None
    except (OSError, EOFError) as error:
        raise LiveError(f"the process that makes plans is gone: {error!r}") from error
    finally:
        ours.close()
        if child.is_alive():
            child.kill()
    return await asyncio.to_thread(ReplanResult.decode, made)


def _begun(child: Any, ours: Any, theirs: Any, data: bytes) -> None:
    child.start()
    theirs.close()
    ours.send_bytes(data)


def _child(connection: Any) -> None:
    connection.send_bytes(make_plans(connection.recv_bytes()))
    connection.close()
