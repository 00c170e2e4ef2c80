"""How the plan of an epoch is revised: changes that every broker makes alike. Pure."""

from typing import Any

import msgspec

from ramify.planning.plans.growth import NO_GROWTH, Growth

__all__ = ["PlanChange", "PlanChanges"]


class PlanChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change of a plan, to be done the same by everyone (`planning.choosing.revise.redo`).

    With a subscription it is added: to class `class_id`, a new one if the plan has fewer classes, and the
    class to `channels`. Else the subscription `removed` is deleted. Channels grow for it or are pruned by
    `growth`.
    """

    subscription: dict[str, Any] | None = None
    class_id: int = -1
    channels: list[int] = []
    removed: str = ""
    growth: Growth = NO_GROWTH


class PlanChanges(msgspec.Struct, frozen=True, omit_defaults=True):
    """The changes of one revision of one epoch, in order."""

    epoch: int
    revision: int
    changes: list[PlanChange]
