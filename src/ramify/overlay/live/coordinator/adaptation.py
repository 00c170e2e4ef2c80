"""A leader looks after its plans: mends what they lack, weighs new ones, takes back bad ones.

Owns what is being made and tried, and the record of every decision (`decisions.<n>`, the last hundred).
Plans are made beside the loop (`coordinator.make_in_process`); they are proposed within it, brought up to
what is wanted by then.

A re-plan is on trial until enough was published with it: when the measured cost of a published GB rose by
more than the tolerance, the plan before is flipped back to, or proposed again (unless that breaks a rule),
and plans are not weighed for a while, longer each time. It is held against what the plan before cost of
late: since the last weighing after which enough was published with it, not for all that it ever carried.
Trials are not stored: the next leader keeps what it finds.

The rules and weights of the overlay are those of its record. A plan that breaks a rule is never installed;
one that runs when the rules change is replaced by the next weighing, although that may save nothing.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ramify.content.filters.subscriptions import Subscription
from ramify.errors import PlanError, RamifyError
from ramify.overlay.control.epochs import EpochError
from ramify.overlay.control.epochs import EpochStage as Life
from ramify.overlay.control.fairness import DEFAULT_RATES, RequestRates
from ramify.overlay.control.records import encode
from ramify.overlay.control.registry import UNUSABLE, Book, BrokenRulesError, Matching
from ramify.overlay.control.replan import CostMeter, EpochCost, PlanDecision, measured_row, takes_back
from ramify.overlay.control.rules import NO_RULES, OverlayRules
from ramify.overlay.live.coordinator.homes import ClientHomes
from ramify.overlay.live.coordinator.leader_store import Stores
from ramify.overlay.live.wire.tasks import end_tasks
from ramify.planning.choosing.replan import ReplanJob, ReplanResult, grown, spec_of
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.plan import Plan
from ramify.planning.pricing.rules import Rules
from ramify.planning.schemes.catalog import drift

__all__ = ["Adapter", "DemandSource", "Make", "Replanner", "Settings"]

_log = logging.getLogger(__name__)

_MOST_DECISIONS = 100
_LACK_RETRY_S, _LACK_LONGEST_S = 5.0, 320.0
_PROPOSE_AGAIN_S = 0.3
_FIRST_REST, _LONGEST_REST = 4, 64
_MARKS = 16

DemandSource = Callable[[Plan, Rules], Awaitable[Demand | None]]
"""The demand of late, with the classes of a plan and the tags of rules; None where nothing is known."""

Make = Callable[[ReplanJob], Awaitable[ReplanResult]]

_LackKey = tuple[int | None, tuple[int, str], frozenset[str]]
"""The head, the rules, and the subscriptions that the head lacks."""


@dataclass(frozen=True, slots=True)
class Settings:
    """See `CoordinatorConfig`."""

    scheme: str = "explicit"
    grace_s: float = 30.0
    matching: Matching | None = None
    rates: RequestRates = DEFAULT_RATES
    homes: ClientHomes = field(default_factory=ClientHomes)


@dataclass(frozen=True)
class Replanner:
    """When plans are weighed anew, and taken back.

    Attributes
    ----------
    source          gives the demand
    period_s        between two weighings
    specs           the schemes to try
    threshold       the share of the predicted cost that a new plan must save
    tolerance       the share that the measured cost per published GB may rise with it
    enough_events   published with the new plan before its cost is compared; or after `enough_s`
    least_events    in the demand; plans that are made for fewer are not worth weighing
    """

    source: DemandSource
    period_s: float = 60.0
    specs: Sequence[str] = ("explicit", "portfolio", "mult")
    threshold: float = 0.05
    tolerance: float = 0.05
    enough_events: int = 1_000
    enough_s: float = 30.0
    least_events: int = 1
    seed: int = 0


@dataclass(frozen=True, slots=True)
class _Trial:
    """A re-plan whose measured cost is to be compared with that of the epoch before.

    `marks` is what that had cost at the weighings while it was the head, the latest last.
    """

    new: int
    old: int
    old_plan: Plan
    since: float
    marks: tuple[EpochCost, ...]


@dataclass(slots=True)
class _Attempt:
    """Plans that are being made: `for_lack` because the head lacks something, else by period."""

    task: asyncio.Task[tuple[ReplanResult | None, Demand | None]]
    for_lack: bool
    began_with: int
    rules: OverlayRules


class Adapter:
    """See the module. `step` is called in each turn of the leader's loop, which alone changes the book."""

    def __init__(
        self,
        settings: Settings,
        replanner: Replanner | None,
        stores: Stores,
        book: Book,
        make: Make,
        wake: Callable[[], None],
    ) -> None:
        self.measured = CostMeter()
        self.last: PlanDecision | None = None
        """The latest decision of this term."""
        self._settings, self._replanner, self._stores, self._book = settings, replanner, stores, book
        self._make_plans, self._wake = make, wake
        self._making: _Attempt | None = None
        self._trial: _Trial | None = None
        # the head and its cost at the last weighings
        self._marks: tuple[tuple[int, EpochCost], ...] = ()
        # a plan that must be installed as soon as fewer than three epochs live
        self._pending: tuple[Plan, Demand | None] | None = None
        self._lack_again_at = self._propose_at = 0.0
        # what no plan could be made for, and how long it rests
        self._lack_of: _LackKey | None = None
        self._lack_pause_s = _LACK_RETRY_S
        # why there was no plan the last time, for a lack and by period; and of the rules
        self._given_up: dict[bool, str] = {}
        self._told_unusable = ""
        self._weigh_at = time.monotonic() + (replanner.period_s if replanner else 0.0)
        # periods to let pass, and how many the next rollback costs
        self._resting, self._rest = 0, _FIRST_REST
        self._decided = 0
        self._changed = False
        self._rules = NO_RULES
        self.refused: BrokenRulesError | None = None
        """Why the plan that this start was given is not installed."""
        book.matching = None if settings.matching is None else self._matching

    async def begin(self) -> None:
        """Go on counting decisions where the leader before stopped."""
        held = [int(key.partition(".")[2]) for key in await self._stores.store.keys("decisions")]
        self._decided = max(held, default=0)
        if self.refused is not None:
            await self._decide("keep", str(self.refused), self._book.head.plan, broken=self.refused.faults)

    def obey(self, rules: OverlayRules) -> None:
        """Take the rules and weights of the record. Others than before are weighed by at once."""
        if (rules.revision, rules.unusable) != (self._rules.revision, self._rules.unusable):
            self._weigh_at = self._lack_again_at = 0.0
            self._resting, self._trial, self._pending = 0, None, None
        self._rules = rules
        self._book.obey(rules.rules, rules.unusable)

    def _matching(
        self, plan: Plan, row: Subscription, rules: Rules
    ) -> tuple[Demand, npt.NDArray[np.bool_]] | None:
        """The samples that a newcomer is held against, standing for all that was published."""
        assert self._settings.matching is not None
        found = self._settings.matching(plan, row, rules)
        return None if found is None else (self._scaled(found[0]), found[1])

    def _scaled(self, demand: Demand) -> Demand:
        return replace(demand, factor=demand.factor / self.measured.sampled_share)

    async def end(self) -> None:
        """Stop what is being made."""
        if self._making is not None:
            await end_tasks([self._making.task])

    async def step(self) -> bool:
        """Look after the plans; whether anything was decided that brokers must know."""
        self._changed = False
        if self._rules.unusable != self._told_unusable:
            await self._tell_unusable()
        making = self._making
        if making is not None and making.task.done():
            self._making = None
            await self._made(making)
        if self._pending is not None and time.monotonic() >= self._propose_at:
            await self._propose_pending()
        if self._trial is not None:
            await self._judge(self._trial)
        if self._making is None and self._pending is None:
            self._begin_what_is_due()
        return self._changed

    async def _tell_unusable(self) -> None:
        self._told_unusable = why = self._rules.unusable
        if why:
            reason = f"no plan is installed: the record of rules cannot be used: {why}"
            await self._decide("keep", reason, self._book.head.plan, broken=[f"{UNUSABLE}: {why}"])

    def _begin_what_is_due(self) -> None:
        if self._rules.unusable:
            return
        now, head = time.monotonic(), self._book.head
        lacking = frozenset(id_ for id_, lack in head.lacks.items() if lack.replan)
        key = self._book.epochs.wanted, (self._rules.revision, self._rules.unusable), lacking
        if key != self._lack_of:
            # something changed, so that a plan may be had now
            self._lack_of, self._lack_again_at, self._lack_pause_s = key, 0.0, _LACK_RETRY_S
        if lacking and now >= self._lack_again_at:
            self._begin(self._for_lack(head.plan, head.demand), for_lack=True)
        elif self._replanner is not None and now >= self._weigh_at:
            self._weigh_at = now + self._replanner.period_s
            if self._resting:
                self._resting -= 1
            elif self._trial is None and self._is_settled():
                self._mark()
                self._begin(self._weigh(self._replanner, head.plan), for_lack=False)

    async def _give_up(
        self,
        reason: str,
        made: ReplanResult | None = None,
        *,
        for_lack: bool = True,
        broken: Sequence[str] = (),
    ) -> None:
        """No plan can be had. Say it once; for what the head lacks try again later, and later each time."""
        if for_lack:
            self._lack_again_at = time.monotonic() + self._lack_pause_s
            self._lack_pause_s = min(_LACK_LONGEST_S, 2 * self._lack_pause_s)
        if reason == self._given_up.get(for_lack):
            _log.debug("still no plan: %s", reason)
            return
        self._given_up[for_lack] = reason
        await self._decide("give_up", reason, self._book.head.plan, made, broken=broken)

    def _mark(self) -> None:
        head = self._book.epochs.wanted or 0
        self._marks = (*self._marks[1 - _MARKS :], (head, self.measured.cost(head, self._book.overlay)))

    def _begin(self, work: Awaitable[tuple[ReplanResult | None, Demand | None]], *, for_lack: bool) -> None:
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._wake())
        self._making = _Attempt(task, for_lack, self._book.epochs.wanted or 0, self._rules)

    def _is_settled(self) -> bool:
        epochs = self._book.epochs
        return epochs.wanted is not None and epochs.state(epochs.wanted) is Life.FLIPPED

    async def _for_lack(
        self, plan: Plan, demand: Demand | None
    ) -> tuple[ReplanResult | None, Demand | None]:
        """A plan of the head's scheme that has everything that is wanted."""
        wanted = self._book.served_at(self._book.head.at)
        bare = await asyncio.to_thread(grown, plan, wanted)
        own, rules = spec_of(plan, self._settings.scheme), self._rules.rules
        # another scheme only where the plan's own breaks a rule
        more = self._replanner.specs if rules and self._replanner is not None else ()
        specs = [own, *(spec for spec in more if spec != own)]
        return await self._make_plans(ReplanJob(bare, specs, demand, rules=rules)), demand

    async def _weigh(self, with_: Replanner, plan: Plan) -> tuple[ReplanResult | None, Demand | None]:
        rules, weights = self._rules.rules, self._rules.weights
        demand = await with_.source(plan, rules)
        if demand is None or demand.events < max(1, with_.least_events):
            return None, None
        demand = self._scaled(demand)
        job = ReplanJob(plan, with_.specs, demand, with_.threshold, with_.seed, rules, weights)
        return await self._make_plans(job), demand

    async def _made(self, making: _Attempt) -> None:
        """Plans were made, or could not be."""
        head = self._book.head
        try:
            made, demand = making.task.result()
        except Exception as error:
            # also what a source of demand raises: plans can wait, leading cannot
            reason = str(error) if isinstance(error, RamifyError) else repr(error)
            await self._give_up(reason, for_lack=making.for_lack)
            return
        if made is None:
            _log.info("plans are not weighed: there are too few recent samples")
            return
        if making.rules != self._rules:
            _log.info("the rules changed while plans were made, so they are made again")
            self._weigh_at = 0.0
            return
        if making.for_lack:
            if made.plan is None:
                await self._give_up(_why_none(made), made)
                return
            self._pending = made.plan, demand
            return
        self._given_up.pop(False, None)
        head.demand = demand
        if made.plan is None:
            await self._decide("keep", _why_kept(made), head.plan, made)
        elif making.began_with == self._book.epochs.wanted:
            await self._install(made, made.plan, demand)

    async def _propose(self, plan: Plan, demand: Demand | None) -> int:
        epoch, writes = await asyncio.to_thread(self._book.propose, plan, demand)
        self._changed = True
        await self._stores.write(writes)
        return epoch

    async def _propose_pending(self) -> None:
        """Install a plan that the head's lack made necessary; wait while three epochs live."""
        assert self._pending is not None
        before, plan = self._book.head.plan, self._pending[0]
        try:
            epoch = await self._propose(*self._pending)
        except EpochError as error:
            self._book.blocked = error.waiting
            self._propose_at = time.monotonic() + _PROPOSE_AGAIN_S
            return
        except BrokenRulesError as error:
            self._pending = None
            await self._give_up(str(error), broken=error.faults)
            return
        except PlanError:
            # subscriptions that came meanwhile: make it again with them
            self._pending = None
            return
        self._pending = self._trial = None
        self._given_up.pop(True, None)
        self._book.blocked = {}
        moves = await asyncio.to_thread(drift, before, plan)
        reason = "subscriptions that the plan before cannot take" + (f"; {moves}" if moves else "")
        await self._decide("install", reason, before, epoch=epoch)

    async def _install(self, made: ReplanResult, plan: Plan, demand: Demand | None) -> None:
        old, before = self._book.epochs.wanted, self._book.head.plan
        try:
            epoch = await self._propose(plan, demand)
        except (EpochError, PlanError) as error:
            broken = error.faults if isinstance(error, BrokenRulesError) else ()
            await self._decide("keep", str(error), before, made, broken=broken)
            return
        if old is not None:
            marks = tuple(cost for head, cost in self._marks if head == old)
            self._trial = _Trial(epoch, old, before, time.monotonic(), marks)
        saving = 0.0 if made.saving is None else made.saving
        reason = f"saves {saving:.1%} of the predicted cost"
        if made.broken:
            reason = f"keeps rules that the plan before breaks ({'; '.join(made.broken)}); it {reason}"
        reason += _refused(made) + (f"; {made.moves}" if made.moves else "")
        await self._decide("install", reason, before, made, epoch=epoch)

    async def _judge(self, trial: _Trial) -> None:
        """Once enough was published with a new plan: keep it, or take it back."""
        with_, epochs, now = self._replanner, self._book.epochs, time.monotonic()
        if with_ is None or epochs.wanted != trial.new:
            self._trial = None
            return
        if epochs.target != trial.new:
            self._trial = replace(trial, since=now)
            return
        after = self.measured.cost(trial.new, self._book.overlay)
        waited = now - trial.since >= with_.enough_s and after.events > 0
        if after.events < with_.enough_events and not waited:
            return
        self._trial = None
        before = self.measured.cost(trial.old, self._book.overlay)
        late = (before.since(mark) for mark in reversed(trial.marks))
        # of little that was published the cost says little
        before = next((cost for cost in late if cost.events >= with_.enough_events), before)
        now_row = measured_row(self._book.head.plan, after)
        if takes_back(now_row, measured_row(trial.old_plan, before), with_.tolerance):
            broken = await asyncio.to_thread(self._book.faults, trial.old_plan, self._book.head.demand)
            told = [str(fault) for fault in broken]
            kept = takes_back(now_row, measured_row(trial.old_plan, before, told), with_.tolerance)
            await self._roll_back(trial, before, after, () if kept else told)
        else:
            self._rest = _FIRST_REST
        self.measured.forget(epochs.live)

    async def _roll_back(
        self, trial: _Trial, before: EpochCost, after: EpochCost, broken: Sequence[str]
    ) -> None:
        """Bring back the plan before, unless it breaks rules."""
        costs = before.per_gb or 0.0, after.per_gb or 0.0
        reason = f"measured cost rose from {costs[0]:.6g} to {costs[1]:.6g} per published GB"
        bad, epoch = self._book.head.plan, trial.old
        self._resting, self._rest = self._rest, min(_LONGEST_REST, 2 * self._rest)
        if broken:
            why = f"{reason}, but the plan before breaks {'; '.join(broken)}"
            await self._decide("keep", why, bad, broken=broken)
            return
        try:
            if self._book.can_roll_back_to(trial.old):
                self._book.epochs.rollback(trial.old)
                self._changed = True
            else:
                epoch = await self._propose(trial.old_plan, None)
        except (EpochError, PlanError) as error:
            await self._decide("give_up", f"{reason}, but the plan before cannot be had: {error}", bad)
            return
        made = ReplanResult((), trial.old_plan, costs[0], costs[1])
        await self._decide("rollback", reason, bad, made, epoch=epoch)

    async def _decide(
        self,
        action: str,
        reason: str,
        old: Plan,
        made: ReplanResult | None = None,
        *,
        epoch: int = 0,
        broken: Sequence[str] = (),
    ) -> None:
        """Log a decision and keep it in the store, the last `_MOST_DECISIONS` of them."""
        new = "" if made is None or made.plan is None else made.plan.scheme
        costs = (None, None, None) if made is None else (made.old_cost, made.new_cost, made.saving)
        tried = [] if made is None else list(made.tried)
        told = [*broken, *(() if made is None else made.broken)]
        decided = PlanDecision(
            time.time(),
            action,
            reason,
            old.scheme,
            new,
            epoch,
            *costs,
            tried,
            told,
            self._rules.revision,
        )
        self._decided += 1
        _log.info("%s: %s (%s -> %s, cost %s -> %s)", action, reason, old.scheme, new or "-", *costs[:2])
        await self._stores.store.put(f"decisions.{self._decided}", encode(decided), force=True)
        self.last = decided
        if self._decided > _MOST_DECISIONS:
            await self._stores.delete(f"decisions.{self._decided - _MOST_DECISIONS}")


def _why_kept(made: ReplanResult) -> str:
    if made.broken:
        kept = f"the plan breaks {'; '.join(made.broken)}, and no other plan keeps every rule"
        return kept + _refused(made)
    if made.saving is not None:
        kept = f"the best plan saves {made.saving:.1%} of the predicted cost, which is too little"
        return kept + _refused(made)
    return _why_none(made)


def _why_none(made: ReplanResult) -> str:
    told = (f"{t.spec}: {t.reason or 'breaks ' + '; '.join(t.broken)}" for t in made.tried)
    return "no scheme made a plan that may be installed: " + "; ".join(told)


def _refused(made: ReplanResult) -> str:
    """The schemes whose plans would break rules."""
    told = [f"{t.spec} breaks {'; '.join(t.broken)}" for t in made.tried if t.broken]
    return f"; refused: {', '.join(told)}" if told else ""
