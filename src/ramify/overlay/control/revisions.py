"""How the plan of an epoch is revised: changes that every broker makes alike. Pure."""

from typing import Any

import msgspec

from ramify.content.filters.subscriptions import JSON_SPELLINGS, Subscription
from ramify.errors import InputError
from ramify.planning.plans.growth import NO_GROWTH, Growth

__all__ = ["PlanChange", "PlanChanges", "recorded_subscription"]


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


def recorded_subscription(row: dict[str, Any]) -> Subscription:
    """The subscription of a change. Its filter is not parsed: who recorded it has done that.

    Raises `InputError` for what is none.
    """
    fields = dict(row)
    for name in JSON_SPELLINGS:
        if fields.get(name) is not None and not isinstance(fields[name], str):
            fields[name] = msgspec.json.encode(fields[name]).decode()
    if fields.get("keywords") is not None:
        fields["keywords"] = tuple(tuple(w) if isinstance(w, list) else w for w in fields["keywords"])
    try:
        return Subscription(**fields)
    except TypeError as error:
        raise InputError(f"a change adds something that is not a subscription: {error}") from None
