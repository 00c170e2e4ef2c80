"""The workloads by name, and how a command line asks for one.

A spec is a name, then any presets of that workload, then any parameters, apart by colons or commas:
`demo`, `majumder:x=15`, `kyra:zipf:interest=10`, `semcast:disjoint:clients=7000,events=50000`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ramify.errors import InputError
from ramify.network.graphs.overlay import Overlay
from ramify.workloads import demo, kyra, majumder, matchmaker, semcast, zhao_wu
from ramify.workloads.parameters import Params, describe, parse
from ramify.workloads.workload import Workload

__all__ = ["WORKLOADS", "Model", "workload_from"]


@dataclass(frozen=True, slots=True)
class Model:
    """A kind of workload.

    `presets` are words that set parameters, such as a paper's named data sets; `short` are other names of
    parameters.
    """

    summary: str
    params: type[Params]
    generate: Callable[[Overlay, Any, int], Workload]
    presets: Mapping[str, Mapping[str, int | float | str]] = field(default_factory=dict)
    short: Mapping[str, str] = field(default_factory=dict)


WORKLOADS: dict[str, Model] = {
    "demo": Model(
        "orders, shipments and alerts of a shop in many regions; all three filter languages",
        demo.DemoModel,
        demo.generate,
    ),
    "majumder": Model(
        "keyword subscriptions that are local to a neighbourhood",
        majumder.MajumderModel,
        majumder.generate,
        presets={
            "localized1": {"x_percent": 2.0},
            "localized2": {"x_percent": 15.0},
            "uniform": {"x_percent": 100.0},
        },
        short={"x": "x_percent", "documents": "events"},
    ),
    "kyra": Model(
        "ranges of one attribute; uniform, zipf, multimodal or regional",
        kyra.KyraModel,
        kyra.generate,
        presets={name: {"distribution": name} for name in kyra.DISTRIBUTIONS},
        short={"interest": "interest_percent", "alpha": "zipf_alpha"},
    ),
    "semcast": Model(
        "clients that pick from a limited set of profiles; partial overlap or disjoint",
        semcast.SemcastModel,
        semcast.generate,
        presets={name: {"overlap": name} for name in ("partial", "disjoint")},
        short={"selectivity": "selectivity_factor", "matching": "matching_probability"},
    ),
    "zhao_wu": Model(
        "users with quadratic generating functions, prices and capacities",
        zhao_wu.ZhaoWuModel,
        zhao_wu.generate,
        short={"ratio": "access_to_core_ratio"},
    ),
    "matchmaker": Model(
        "heavy-tailed numbers of advertisements and subscriptions",
        matchmaker.MatchmakerModel,
        matchmaker.generate,
        short={"k": "pareto_k", "p": "pareto_p", "alpha": "pareto_alpha"},
    ),
}


def workload_from(spec: str, overlay: Overlay, seed: int) -> Workload:
    """The workload that a spec asks for.

    Raises
    ------
    InputError
        For an unknown name, preset or parameter, with the choices; for a value that is not allowed, with
        what is.
    """
    name, *parts = [part.strip() for part in spec.replace(",", ":").split(":")]
    if name not in WORKLOADS:
        raise InputError(f"unknown workload {name!r}. Choose one of: {', '.join(WORKLOADS)}.")
    model = WORKLOADS[name]
    given: dict[str, int | float | str] = {}
    for part in parts:
        given |= _setting(name, model, part)
    return model.generate(overlay, model.params(**given), seed)  # type: ignore[arg-type]  # checked when made


def _setting(name: str, model: Model, part: str) -> Mapping[str, int | float | str]:
    key, equals, text = part.partition("=")
    if not equals:
        if part in model.presets:
            return model.presets[part]
        choices = f"Presets: {', '.join(model.presets)}. " if model.presets else ""
        raise InputError(f"unknown preset {part!r} of workload {name}. {choices}{_parameters(model)}")
    known = [parameter.name for parameter in describe(model.params)]
    parameter = model.short.get(key.strip(), key.strip())
    if parameter not in known:
        raise InputError(f"unknown parameter {key!r} of workload {name}. {_parameters(model)}")
    return {parameter: parse(model.params, parameter, text.strip())}


def _parameters(model: Model) -> str:
    short = {full: f" (or {brief})" for brief, full in model.short.items()}
    names = [parameter.name + short.get(parameter.name, "") for parameter in describe(model.params)]
    return f"Parameters: {', '.join(names)}."
