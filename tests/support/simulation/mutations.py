"""Mistakes put into the real code, one at a time: the simulation must find each.

Owns the list. A mutation replaces text in the source of one function. Text that is not there is an error,
so none is forgotten when the code changes.
"""

import contextlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from nats.aio.client import Client as Nats

from ramify.overlay.control.epochs import Epochs
from ramify.overlay.control.lanes import Inlet
from ramify.overlay.live.broker.broker import Broker
from ramify.overlay.live.broker.log import OutLog
from ramify.overlay.live.broker.retention import Keeper
from ramify.overlay.live.client.lane import LaneClient
from ramify.overlay.live.wire import streams
from ramify.overlay.live.wire.connection import SteadyConnection
from ramify.overlay.live.wire.pull import Puller
from simulation.scenario import Scenario

__all__ = ["MUTATIONS", "WAITS_FOR_ROOM", "Mutation"]


@dataclass(frozen=True)
class Mutation:
    """A mistake. It shows in runs with a coordinator, or in those without; some only where certain acts
    happen."""

    name: str
    make: Callable[[], Any]
    controlled: bool = False
    acts: frozenset[str] = frozenset()

    def may_show(self, scenario: Scenario) -> bool:
        """Whether a run could show it. A search leaves the others out."""
        return self.acts <= {act.kind for act in scenario.acts}

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for patch in self.make():
                stack.enter_context(patch)
            yield


def rewritten(owner: type, name: str, *changes: tuple[str, str]) -> Any:
    """A method with some of its text replaced."""
    method = owner.__dict__[name]
    text = textwrap.dedent(inspect.getsource(method))
    for old, new in changes:
        assert old in text, f"{owner.__name__}.{name} has no {old!r} any more: write the mutation anew"
        line = next(line for line in text.splitlines() if old.splitlines()[0] in line)
        indent = " " * (len(line) - len(line.lstrip()))
        text = text.replace(old, new.replace("\n", f"\n{indent}"))
    made: dict[str, Any] = {}
    exec(compile(text, f"<mutation of {name}>", "exec"), vars(sys.modules[owner.__module__]), made)
    return mock.patch.object(owner, name, made[name])


def _without_fence() -> list[Any]:
    return [
        rewritten(
            OutLog,
            "_write",
            ('messages[0][1]["Nats-Expected-Last-Sequence"] = str(self._last)', "pass"),
        ),
        rewritten(
            OutLog,
            "_check",
            (
                'raise FencedError(f"the log ends',
                'self._last = int(told["seq"]) - messages; f = (f"the log ends',
            ),
        ),
    ]


class _PlainConnection(Nats):
    """That of the library."""

    is_answered = SteadyConnection.is_answered

    def __init__(self, **options: Any) -> None:
        super().__init__()


def _plain_connection() -> list[Any]:
    return [mock.patch.object(streams, "SteadyConnection", _PlainConnection)]


MUTATIONS = (
    Mutation("the fence is dropped", _without_fence, acts=frozenset({"twin-writing"})),
    Mutation(
        "inputs are acknowledged before the step is written",
        lambda: [
            rewritten(
                Broker,
                "_step",
                (
                    "await self._commit(taken, done, end, epoch)",
                    "for each in taken:\n"
                    "    await each.source.puller.acknowledge(each.message.reply)\n"
                    "await self._commit(taken, done, end, epoch)",
                ),
            )
        ],
    ),
    Mutation(
        "a gap on a lane is passed over",
        lambda: [rewritten(Inlet, "verdict", ("return LaneVerdict.GAP", "pass"))],
    ),
    Mutation(
        "what came before is taken again",
        lambda: [rewritten(Inlet, "verdict", ("return LaneVerdict.OLD", "return LaneVerdict.NEXT"))],
    ),
    Mutation(
        "after a fault the inputs go on where they were",
        lambda: [rewritten(Broker, "_recover", ("source.go_to(recovered.positions)", "pass"))],
    ),
    Mutation(
        "a lane is forgotten before its reader has it",
        lambda: [
            rewritten(
                Keeper,
                "purge_lanes",
                ("if now - since < wait_s:", "had = floor = log.last\nif False:"),
            )
        ],
    ),
    Mutation(
        "a publish that is tried again has a new id",
        lambda: [
            rewritten(
                LaneClient,
                "accepted",
                (
                    "self.check_allowed()",
                    'self.check_allowed()\nheaders["Nats-Msg-Id"] = uuid.uuid4().hex',
                ),
            )
        ],
    ),
    Mutation(
        "nobody looks whether something was handed out to a reader that is gone",
        lambda: [rewritten(Puller, "_look_for_strays", ("self.strayed = True", "pass"))],
    ),
    Mutation("a header that cannot be read ends reading", _plain_connection, acts=frozenset({"garbage"})),
    Mutation(
        "a plan is retired before its last frame has arrived",
        lambda: [
            rewritten(
                Epochs,
                "_is_drained",
                ("for broker in self.members:", "return True\nfor broker in self.members:"),
            )
        ],
        controlled=True,
        acts=frozenset({"replan"}),
    ),
)

WAITS_FOR_ROOM = Mutation(
    "a broker whose log is full waits for room before it starts",
    lambda: [rewritten(Broker, "_take_over", ("except LogFullError", "except ZeroDivisionError"))],
)
"""Drawn logs are seldom full to the last record when a router is killed: a story of its own shows it."""
