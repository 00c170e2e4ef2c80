"""Ramify: a content-based publish/subscribe overlay that plans its own dissemination trees.

    log = ramify.read_log("events/*.parquet", subscriptions="subs.jsonl", overlay="mesh.graphml")
    found = ramify.study(log, hours=24).compare(["mult", "explicit"], today="hub=frankfurt")
    found.best.plan.save("plan.json")

Importing this package starts nothing and loads next to nothing: no Spark, no compiled code, no event loop.
Each name is loaded when it is first used (types: `__init__.pyi`, all of them: docs/api.md).
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    # use cases
    "read_log": "ramify.studies.logs",
    "study": "ramify.studies.study",
    "price": "ramify.studies.plans",
    "simulate": "ramify.studies.plans",
    "explain": "ramify.studies.journeys",
    "diff": "ramify.studies.plans",
    "matches": "ramify.studies.verdicts",
    "write_tables": "ramify.studies.tables",
    "generate": "ramify.studies.tables",
    "schemes": "ramify.studies.schemes",
    "register_scheme": "ramify.planning.schemes.catalog",
    "spark_session": "ramify.pipeline.session.session",
    # what they give back
    "Log": "ramify.studies.logs",
    "LogStudy": "ramify.studies.study",
    "Findings": "ramify.studies.findings",
    "Candidate": "ramify.studies.findings",
    "LogPrice": "ramify.studies.plans",
    "LogSimulation": "ramify.studies.plans",
    "EventJourney": "ramify.studies.journeys",
    "LogTables": "ramify.studies.tables",
    "Rejects": "ramify.studies.rejects",
    "RejectedRow": "ramify.studies.rejects",
    "PlanDiff": "ramify.planning.choosing.diff",
    # the pieces
    "Overlay": "ramify.network.graphs.overlay",
    "Link": "ramify.network.graphs.overlay",
    "Plan": "ramify.planning.plans.plan",
    "Problem": "ramify.planning.plans.problem",
    "Demand": "ramify.planning.demand.demand",
    "Rules": "ramify.planning.pricing.rules",
    "Scheme": "ramify.planning.schemes.scheme",
    "Subscription": "ramify.content.filters.subscriptions",
    "Filter": "ramify.content.filters.filters",
    "parse_sql": "ramify.content.filters.sql",
    "parse_pattern": "ramify.content.filters.pattern",
    "parse_keywords": "ramify.content.filters.keywords",
    "parse_sigma": "ramify.content.filters.sigma",
    "Matcher": "ramify.content.matching.matcher",
    # the live overlay
    "Client": "ramify.overlay.live.client.client",
    "BlockingClient": "ramify.overlay.live.client.blocking",
    # errors
    **dict.fromkeys(
        (
            *("RamifyError", "InputError", "FilterError", "SchemaError", "OverlayError"),
            *("DisconnectedError", "PlanError", "PlacementError", "LimitError", "SparkError", "LiveError"),
            "MissingExtraError",
        ),
        "ramify.errors",
    ),
    "TooLateError": "ramify.planning.plans.lateness",
    **dict.fromkeys(
        (
            *("RefusedError", "RefusedFilterError", "UnknownSubscriptionError", "ExistsError"),
            *("UnavailableError", "NotEverywhereError"),
        ),
        "ramify.overlay.live.client.errors",
    ),
    **dict.fromkeys(
        ("OutcomeUnknownError", "LostDeliveriesError", "LostPositionError", "SuspendedError"),
        "ramify.overlay.live.client.lane",
    ),
}

__all__ = ["__version__", *_HOME]  # names of `_HOME` are texts


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        from ramify.errors import MissingExtraError

        missing = MissingExtraError.of(error)
        if missing is None:
            raise
        raise missing from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME} - {"import_module"})
