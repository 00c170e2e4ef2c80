"""The schemes by name, and how a command line asks for one.

A spec is a name, then any parameters, apart by commas: `mst`, `portfolio:trees=16,seconds=5`. Where a
scheme has one parameter that matters most, its value may follow the name: `hub=aws-us-east-1` is
`hub:site=aws-us-east-1`.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from ramify.errors import InputError
from ramify.planning.demand.demand import Demand
from ramify.planning.plans.plan import Plan
from ramify.planning.plans.problem import Problem
from ramify.planning.schemes import baselines, explicit, outside, portfolio, today, zhao_wu
from ramify.planning.schemes.kyra import fbr, mbr
from ramify.planning.schemes.kyra import schemes as kyra
from ramify.planning.schemes.kyra.drift import HOOKS as KYRA
from ramify.planning.schemes.majumder import hybrid, mult, mult2, single
from ramify.planning.schemes.outside import PlanFunction
from ramify.planning.schemes.scheme import NO_HOOKS, Hooks, Progress, Scheme, silent
from ramify.planning.schemes.semcast import schemes as semcast
from ramify.planning.schemes.semcast.hooks import HOOKS as SEMCAST

__all__ = [
    "MAIN",
    "SCHEMES",
    "all_schemes",
    "drift",
    "hooks_of",
    "make_plan",
    "parameters",
    "register_scheme",
    "scheme_from",
    "scheme_origin",
]


def _semcast(summary: str, *, slow: bool = False, **preset: Any) -> Scheme:
    form = semcast.SemcastParams, semcast.plan
    return Scheme(summary, *form, preset, slow=slow, overlap=True, hooks=SEMCAST)


SCHEMES: dict[str, Scheme] = {
    "unicast": Scheme("a copy per destination broker, never merged", baselines.NoParams, baselines.unicast),
    "broadcast": Scheme("everything floods a spanning tree", baselines.NoParams, baselines.broadcast),
    "mst": Scheme("a minimum spanning tree, filtered", baselines.NoParams, baselines.mst),
    "spt": Scheme(
        "a shortest-path tree of a random or given root, filtered",
        baselines.SptParams,
        baselines.spt,
        {"pruned": True},
    ),
    "spt-best": Scheme(
        "the shortest-path tree of the best root, filtered",
        baselines.SptParams,
        baselines.spt,
        {"root": "best", "pruned": True},
    ),
    "spt-unpruned": Scheme(
        "a shortest-path tree of a random or given root, flooded",
        baselines.SptParams,
        baselines.spt,
        {"pruned": False},
    ),
    "spt-best-unpruned": Scheme(
        "the shortest-path tree of the best root, flooded",
        baselines.SptParams,
        baselines.spt,
        {"root": "best", "pruned": False},
    ),
    "per-source": Scheme(
        "a shortest-path tree per publisher's broker, filtered", baselines.NoParams, baselines.per_source
    ),
    "single": Scheme("one low-stretch tree for all (Majumder et al.)", single.SingleParams, single.plan),
    "single-swap": Scheme("one tree improved by swaps", single.SingleParams, single.plan, {"tree": "swap"}),
    "mult": Scheme("groups by document overlap (Majumder et al.)", mult.MultParams, mult.plan),
    "mult-swap": Scheme(
        "groups by document overlap, trees improved by swaps", mult.MultParams, mult.plan, {"tree": "swap"}
    ),
    "mult2": Scheme("groups by gain (Majumder et al.)", mult2.Mult2Params, mult2.plan, slow=True),
    "mult2-swap": Scheme(
        "groups by gain, trees improved by swaps",
        mult2.Mult2Params,
        mult2.plan,
        {"tree": "swap"},
        slow=True,
    ),
    "hybrid": Scheme(
        "groups by overlap, then by gain (Majumder et al.)", hybrid.HybridParams, hybrid.plan, slow=True
    ),
    "hybrid-swap": Scheme(
        "groups by overlap, then by gain, trees improved by swaps",
        hybrid.HybridParams,
        hybrid.plan,
        {"tree": "swap"},
        slow=True,
    ),
    "portfolio": Scheme(
        "a few trees; the publisher's broker picks one per event",
        portfolio.PortfolioParams,
        portfolio.plan,
    ),
    "explicit": Scheme(
        "a tree per event, in its header", explicit.ExplicitParams, explicit.plan, {"lists": False}
    ),
    "explicit-list": Scheme(
        "destinations in the header, split at every hop",
        explicit.ExplicitParams,
        explicit.plan,
        {"lists": True},
    ),
    "fbr": Scheme("filters on a minimum spanning tree by latency (Siena-like)", fbr.FbrParams, fbr.plan),
    "mbr": Scheme(
        "multicast groups of cells, flooded (Riabov et al.)", mbr.MbrParams, mbr.plan, cells=True
    ),
    "kyra": Scheme(
        "cliques, zones and moved subscriptions (Cao and Singh)",
        kyra.KyraParams,
        kyra.plan,
        cells=True,
        hooks=KYRA,
    ),
    "kyra-balanced": Scheme(
        "the same on trees of lower degree",
        kyra.KyraParams,
        kyra.plan,
        {"balance": 100},
        cells=True,
        hooks=KYRA,
    ),
    "kyra-mbr": Scheme(
        "moved subscriptions with multicast groups",
        kyra.KyraParams,
        kyra.groups_plan,
        cells=True,
        hooks=KYRA,
    ),
    "zhao-wu": Scheme(
        "trees per publisher's broker and sub-channel (Zhao and Wu)",
        zhao_wu.ZhaoWuParams,
        zhao_wu.plan,
        cells=True,
    ),
    "zhao-wu-tree": Scheme(
        "one broker tree (Zhao and Wu, section II-A)", zhao_wu.ZhaoWuParams, zhao_wu.plan, {"trees": "one"}
    ),
    "mirror-all": Scheme(
        "everything is copied to every site that has subscribers", today.MirrorParams, today.mirror_all
    ),
    "hub": Scheme("everything goes through one site", today.HubParams, today.hub),
    "semcast": _semcast("channels by content, flooded from rendezvous points (SemCast)"),
    "semcast-merge": _semcast("the same with overlapping channels made one", noise="never"),
    "semcast-noisemerge": _semcast("the same with noise channels merged too", slow=True, noise="merge"),
    "semcast-o": _semcast("the same on centralised Steiner trees", trees="steiner"),
    "semcast-filter": _semcast("the same with filters at every hop", pruned=True),
    "semcast-delay": _semcast("the same within latency bounds", trees="delay"),
    "semcast-best": _semcast("the same from the best rendezvous points", rendezvous="best"),
}
"""Those that are built in; `auto` tries them in this order. `register_scheme` adds others."""

MAIN: Mapping[str, str] = {"hub": "site", "spt": "root", "spt-unpruned": "root", "portfolio": "trees"}
"""The parameter that `name=value` sets."""

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def scheme_from(spec: str) -> tuple[str, Scheme, Any]:
    """The name, the scheme and the parameters that a spec asks for.

    Raises
    ------
    InputError
        For an unknown name or parameter, with the choices; for a value that is not allowed, with what is.
    """
    name, given = _parted(spec)
    scheme = SCHEMES.get(name) or outside.find(name)
    if scheme is None:
        raise InputError(f"unknown scheme {name!r}. Choose one of: {', '.join(all_schemes())}.")
    kinds = get_type_hints(scheme.params)
    values: dict[str, Any] = dict(scheme.preset)
    for key, text in given:
        parameter = MAIN.get(name, "") if key is None else key
        if parameter not in parameters(scheme):
            raise InputError(_unknown(name, scheme, text if key is None else key))
        values[parameter] = _value(parameter, kinds[parameter], text)
    if values.get("tree") == "swap" and f"{name}-swap" in SCHEMES:  # the improved one is never taken for it
        raise InputError(f"scheme {name} does not swap links. The one that does is called {name}-swap.")
    return name, scheme, scheme.params(**values)


def all_schemes() -> dict[str, Scheme]:
    """Every scheme by name: those built in, then those from outside. Entry points are read, and loaded.

    Raises
    ------
    InputError
        When two schemes have one name, with where both come from, or one cannot be loaded.
    """
    return {**SCHEMES, **outside.found(SCHEMES)}


def register_scheme(name: str, scheme: Scheme | PlanFunction) -> Scheme:
    """Add a scheme under a name that specs can ask for, in this process.

    `scheme` is a `Scheme`, or a function `plan(problem, params, rng, progress) -> Plan` without parameters
    of its own; the first line of its docstring is its summary. Distributions add theirs with an entry point
    of the group `ramify.schemes` instead. A function that is defined again replaces itself.

    Raises
    ------
    InputError
        For a name that specs cannot hold, or that another scheme has, with where both come from.

    >>> import ramify
    >>> from ramify.planning.schemes.baselines import mst
    >>> ramify.register_scheme("my-tree", mst).summary
    'A minimum spanning tree with filters at every hop. O(m log m).'
    >>> "my-tree" in ramify.schemes()
    True
    """
    return outside.register(name, scheme, SCHEMES)


def scheme_origin(name: str) -> str:
    """Where a scheme comes from: `built in`, a function, or a distribution."""
    return outside.BUILT_IN if name in SCHEMES else outside.origin(name)


def make_plan(spec: str, problem: Problem, seed: int = 0, progress: Progress = silent) -> Plan:
    """The plan that a spec makes of a problem, with its parameters and seed in `settings`.

    Every scheme gets a generator of its own, so that its plan does not depend on what else was made.
    """
    name, scheme, params = scheme_from(spec)
    made = scheme.plan(problem, params, np.random.default_rng(seed), progress)
    given = {key: value for key, value in asdict(params).items() if isinstance(value, str | int | float)}
    return replace(made, scheme=name, settings={**given, "seed": seed, **made.settings})


def hooks_of(plan: Plan) -> Hooks:
    """What the scheme that made a plan offers; nothing where no scheme has its name."""
    scheme = SCHEMES.get(plan.scheme) or outside.find(plan.scheme)
    return NO_HOOKS if scheme is None else scheme.hooks


def drift(old: Plan, new: Plan, demand: Demand | None = None) -> object | None:
    """What moves from one plan to the next; None unless both are of schemes that know (`Hooks.drift`)."""
    known = hooks_of(old).drift
    return None if known is None or hooks_of(new).drift is not known else known(old, new, demand)


def parameters(scheme: Scheme) -> tuple[str, ...]:
    """What a scheme of this name lets one choose: its parameters but for those that the name fixes."""
    return tuple(each.name for each in fields(scheme.params) if each.name not in scheme.preset)


def _parted(spec: str) -> tuple[str, list[tuple[str | None, str]]]:
    """The name, and the parameters with their texts; None for the one that follows the name."""
    head, colon, rest = spec.strip().partition(":")
    name, equals, value = head.partition("=")
    if equals:  # a broker's name may hold colons and commas
        return name.strip(), [(None, (value + colon + rest).strip())]
    if not colon:
        return name.strip(), []
    given: list[tuple[str | None, str]] = []
    for part in rest.split(","):
        key, equals, text = part.partition("=")
        if not equals:
            raise InputError(
                f"scheme {name.strip()}: {part.strip()!r} has no value. Write parameters as name=value, "
                "separated by commas."
            )
        given.append((key.strip(), text.strip()))
    return name.strip(), given


def _unknown(name: str, scheme: Scheme, key: str) -> str:
    known = parameters(scheme)
    if not known:
        return f"scheme {name} has no parameters, so {key!r} cannot be set. Leave it out."
    return f"unknown parameter {key!r} of scheme {name}. Parameters: {', '.join(known)}."


def _value(name: str, kind: Any, text: str) -> Any:
    """The value of a parameter of this type. `InputError` says which texts are."""
    origin, options = get_origin(kind), get_args(kind)
    if origin is Literal:
        if text in options:
            return text
        raise InputError(f"{name} = {text!r} is unknown. Allowed: {', '.join(map(str, options))}.")
    if origin in (Union, UnionType) and NoneType in options:
        if text == "none":
            return None
        return _value(name, next(each for each in options if each is not NoneType), text)
    if kind is bool:
        if text.lower() in _WORDS:
            return _WORDS[text.lower()]
        raise InputError(f"{name} = {text!r} is neither true nor false. Allowed: {', '.join(_WORDS)}.")
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise InputError(f"{name} = {text!r} is not {what}. Write {what}.") from None
