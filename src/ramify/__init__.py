"""Ramify: a content-based publish/subscribe overlay that plans its own dissemination trees.

Importing this package starts nothing: no Spark, no event loop, no log handlers. `Client` and
`BlockingClient` of the live overlay are loaded when they are first used (types: `__init__.pyi`).
"""

from importlib import import_module

__version__ = "0.1.0"

_LAZY = {
    "Client": "ramify.overlay.live.client.client",
    "BlockingClient": "ramify.overlay.live.client.blocking",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
