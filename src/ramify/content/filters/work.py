"""What the filter algebra may spend: a filter that explodes is refused instead of stalling a process.

A `Work` is a budget of steps. Whoever calls the algebra enters one. Everything inside, down to the
comparison of two globs, charges it; the step that it cannot pay raises FilterError. Steps are counted,
never timed: the same filter has the same verdict in every process.

A `WorkAllowance` is what many calls of the algebra may spend together: one newcomer is compared with
thousands of filters. What is beyond it is answered on the safe side, as where a single call takes too much.
It does not count what parsing takes: that has its own budget.
"""

from contextvars import ContextVar, Token
from types import TracebackType

from ramify.errors import FilterError

__all__ = ["ALGEBRA_STEPS", "COMPILE_STEPS", "NEWCOMER_STEPS", "Work", "WorkAllowance", "charge"]

ALGEBRA_STEPS = 100_000
"""One call of the algebra on filters that exist: up to a second."""

COMPILE_STEPS = 12_000
"""From a filter's expression to its boxes: about 60 ms. A step takes some microseconds."""


NEWCOMER_STEPS = 2 * ALGEBRA_STEPS
"""All comparisons of one newcomer with the filters of a plan: one or two seconds at most."""


class WorkAllowance:
    """What all algebra calls inside this context may still spend together."""

    def __init__(self, limit: int = NEWCOMER_STEPS) -> None:
        self.left = limit
        self._before: Token[WorkAllowance | None] | None = None

    def __enter__(self) -> "WorkAllowance":
        self._before = _ALLOWED.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._before is not None
        _ALLOWED.reset(self._before)
        self._before = None


_ALLOWED: ContextVar[WorkAllowance | None] = ContextVar("allowance", default=None)


class Work:
    """What one algebra call may still spend. As a context it is charged by all that runs inside.

    Without a limit of its own it may spend `ALGEBRA_STEPS`, or what is left of a `WorkAllowance`.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._allowance = _ALLOWED.get() if limit is None else None
        if limit is None:
            limit = ALGEBRA_STEPS if self._allowance is None else min(ALGEBRA_STEPS, self._allowance.left)
        self._limit = self.left = limit
        self._before: Token[Work | None] | None = None

    def spend(self, steps: int) -> None:
        """Take `steps` off the budget, or raise FilterError when it is used up."""
        self.left -= steps
        if self.left < 0:
            raise FilterError(
                "the filter takes too much work to bring into its normal form",
                allowed="fewer alternatives under AND and NOT: split it into several subscriptions",
            )

    def __enter__(self) -> "Work":
        self._before = _CURRENT.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._before is not None
        _CURRENT.reset(self._before)
        if self._allowance is not None:
            # the step that could not be paid was not done
            self._allowance.left -= self._limit - max(self.left, 0)
        self._before = None


_CURRENT: ContextVar[Work | None] = ContextVar("work", default=None)


def charge(steps: int) -> None:
    """Take steps off the budget that the caller entered, if any."""
    work = _CURRENT.get()
    if work is not None:
        work.spend(steps)
