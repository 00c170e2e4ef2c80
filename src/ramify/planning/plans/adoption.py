"""Taking up a plan that was made before: the same channels, on the problem as it is now.

Owns the translation of a plan, such as one read from a file, to the numbers and prices of a present
problem. Class numbers depend on the order in which subscriptions were listed, and prices change; neither is
a reason to plan again. Another broker, link or subscription is, and so is a subscription that moved.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ramify.errors import PlanError
from ramify.planning.plans.plan import All, Channel, Expression, Holds, Match, Negation, Plan, Serves, Some
from ramify.planning.plans.problem import Problem

__all__ = ["adopt"]


def adopt(plan: Plan, problem: Problem) -> Plan:
    """The plan with the problem's classes, overlay prices and attachments.

    `PlanError` when brokers, links, subscriptions, their filters or their brokers are others. The result
    routes as the plan did; `check` proves that it serves the problem.
    """
    wrong = [] if plan.overlay.brokers == problem.overlay.brokers else ["its overlay has other brokers"]
    if not wrong and not np.array_equal(plan.overlay.ends, problem.overlay.ends):
        wrong = ["its overlay has other links"]
    number = _numbers(plan, problem, wrong)
    if wrong:
        raise PlanError(f"plan {plan.scheme} was made for something else:", wrong)
    return replace(
        plan,
        overlay=problem.overlay,
        classes=problem.classes,
        attachments=problem.attachments,
        channels=tuple(_renumbered(channel, number) for channel in plan.channels),
    )


def _numbers(plan: Plan, problem: Problem, wrong: list[str]) -> npt.NDArray[np.int32]:
    """The present number of each class of the plan; -1 for those that are vacant. Adds what is wrong."""
    number = np.full(len(plan.classes), -1, dtype=np.int32)
    mine, theirs = plan.classes.class_of, problem.classes.class_of
    wrong += [
        f"it serves subscription {id_!r}, which is unknown" for id_ in sorted(mine.keys() - theirs.keys())
    ]
    wrong += [f"it does not know subscription {id_!r}" for id_ in sorted(theirs.keys() - mine.keys())]
    for id_ in sorted(mine.keys() & theirs.keys()):
        j, k = mine[id_], theirs[id_]
        if plan.classes.filters[j].key != problem.classes.filters[k].key:
            wrong.append(f"subscription {id_!r} has another filter now")
        elif (
            plan.overlay.brokers[plan.classes.broker[j]]
            != problem.overlay.brokers[problem.classes.broker[k]]
        ):
            wrong.append(f"subscription {id_!r} is at another broker now")
        number[j] = k
    return number


def _renumbered(channel: Channel, number: npt.NDArray[np.int32]) -> Channel:
    serves = channel.serves
    live = np.flatnonzero(number[serves.classes] >= 0)
    order = live[np.argsort(number[serves.classes[live]], kind="stable")]
    moved = Serves(number[serves.classes[order]], serves.at[order], serves.region[order])
    content = channel.admits.content
    if isinstance(content, Holds):
        content = Holds(_expression(content.expression, number))
    return replace(channel, serves=moved, admits=replace(channel.admits, content=content))


def _expression(expression: Expression, number: npt.NDArray[np.int32]) -> Expression:
    match expression:
        case Match(classes):
            return Match(tuple(sorted(int(number[k]) for k in classes if number[k] >= 0)))
        case All(parts):
            return All(tuple(_expression(part, number) for part in parts))
        case Some(parts):
            return Some(tuple(_expression(part, number) for part in parts))
        case Negation(part):
            return Negation(_expression(part, number))
