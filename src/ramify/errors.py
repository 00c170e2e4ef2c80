"""Every error a user of Ramify can meet, in one tree.

    RamifyError                     the root: catch this to catch all of ours
    ├── InputError                  something the user gave is wrong: a file, a row, an option
    │   ├── FilterError             a filter that is not allowed, with its text and the position
    │   ├── SchemaError             attribute types that contradict each other or the data
    │   ├── OverlayError            a graph that cannot be used
    │   │   └── DisconnectedError   brokers that cannot reach each other
    │   ├── PlanError               a plan that cannot be used, or breaks a rule
    │   └── PlacementError          users that were not placed within the brokers' capacities
    ├── LimitError                  a bound that protects the process was reached
    ├── SparkError                  Spark cannot start, cannot be reached, or a job failed
    ├── LiveError                   a server, broker or coordinator of the live overlay cannot do its part
    └── MissingExtraError           a package that only some commands need is not installed

Each error says what happened, where, and what to do. A command prints `str(error)` and exits with 2;
it never shows a traceback for any of these. Bad *records* of a batch are not errors but values:
see `ramify.content.events.events.RejectedRecord`.
"""

from collections.abc import Iterable, Mapping
from typing import ClassVar

__all__ = [
    "DisconnectedError",
    "FilterError",
    "InputError",
    "LimitError",
    "LiveError",
    "MissingExtraError",
    "OverlayError",
    "PlacementError",
    "PlanError",
    "RamifyError",
    "SchemaError",
    "SparkError",
]


class RamifyError(Exception):
    """The root of all errors that Ramify raises on purpose."""


class InputError(RamifyError):
    """Something the user gave is wrong.

    `path` and `line` say where, when the input is a file (lines count from 1).
    """

    def __init__(self, reason: str, *, path: str | None = None, line: int | None = None) -> None:
        self.reason = reason
        self.path = path
        self.line = line
        where = path or ""
        if line is not None:
            where = f"{where}:{line}" if where else f"line {line}"
        super().__init__(f"{where}: {reason}" if where else reason)


class FilterError(InputError):
    """A filter that is not allowed.

    Shows the reason with its position (characters from 0), the text with a caret under the place,
    and what is allowed there.
    """

    def __init__(
        self,
        reason: str,
        *,
        text: str | None = None,
        position: int | None = None,
        allowed: str | None = None,
    ) -> None:
        self.text = text
        self.position = position
        self.allowed = allowed
        super().__init__(reason)

    def __str__(self) -> str:
        """The reason, the text, a caret, and what is allowed."""
        parts = [self.reason if self.position is None else f"{self.reason} at position {self.position}"]
        if self.text is not None:
            parts += _excerpt(self.text, self.position)
        if self.allowed is not None:
            parts.append(f"  allowed: {self.allowed}")
        return "\n".join(parts)


class SchemaError(InputError):
    """Attribute types that contradict each other or the data."""


class OverlayError(InputError):
    """A graph that cannot be used: unknown names, bad prices, missing parts."""


class DisconnectedError(OverlayError):
    """Brokers that cannot reach each other.

    `components` holds the groups of names, largest first.
    """

    def __init__(self, components: Iterable[Iterable[str]], *, path: str | None = None) -> None:
        self.components = sorted((sorted(c) for c in components), key=lambda c: (-len(c), c))
        shown = "; ".join(_some(c) for c in self.components[1:4])
        more = len(self.components) - 4
        super().__init__(
            f"the overlay is not connected: {len(self.components)} components, the largest has "
            f"{len(self.components[0])} brokers; cut off from it: {shown}"
            + (f"; and {more} more components" if more > 0 else "")
            + ". Add a link to each, or keep the largest component only.",
            path=path,
        )


class PlanError(InputError):
    """A plan that cannot be used, with everything that is wrong with it.

    `faults` holds one sentence each; the message shows the first few.
    """

    def __init__(self, what: str, faults: Iterable[str], *, path: str | None = None) -> None:
        self.what = what
        self.faults = tuple(faults)
        more = len(self.faults) - 5
        lines = [what, *(f"  {fault}" for fault in self.faults[:5])]
        super().__init__("\n".join(lines + ([f"  and {more} more"] if more > 0 else [])), path=path)


class PlacementError(InputError):
    """Users that were not placed within the brokers' capacities.

    `users` names them. `missing` is the capacity that they lack, in the unit of the demand. `proven` says
    that no placement exists; otherwise an algorithm gave up, and another may find one.
    """

    def __init__(self, reason: str, *, missing: float, users: Iterable[str], proven: bool) -> None:
        self.missing = missing
        self.users = tuple(users)
        self.proven = proven
        super().__init__(reason)


class LimitError(RamifyError):
    """A bound that protects the process was reached."""


class SparkError(RamifyError):
    """Spark cannot start, cannot be reached, or a job on it failed."""


def _excerpt(text: str, position: int | None, width: int = 100) -> list[str]:
    """The line of `text` that holds `position`, cut to `width` around it, and a caret line."""
    if position is None:
        first = text.strip().splitlines()[0] if text.strip() else ""
        return [f"  {first[:width]}{'...' if len(first) > width else ''}"]
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : end if end >= 0 else len(text)].replace("\t", " ")
    column = position - start
    cut = max(0, column - width * 2 // 3)
    shown = ("..." if cut else "") + line[cut : cut + width] + ("..." if len(line) > cut + width else "")
    return [f"  {shown}", "  " + " " * (column - cut + (3 if cut else 0)) + "^"]


def _some(names: list[str], most: int = 4) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


class LiveError(RamifyError):
    """A server, broker or coordinator of the live overlay cannot be started, reached, or do its part."""


class MissingExtraError(RamifyError):
    """A package that only some commands need is not installed: `extra` brings it."""

    EXTRAS: ClassVar[Mapping[str, str]] = {
        "scipy": "plan",
        "pyspark": "spark",
        "py4j": "spark",
        "pandas": "spark",
        "grpc": "spark",
        "yaml": "sigma",
    }
    """The packages that are not installed with `ramify` alone, and the extra of each."""

    def __init__(self, package: str, extra: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(f"this needs {package}, which is not installed: pip install 'ramify[{extra}]'")

    @classmethod
    def of(cls, error: ModuleNotFoundError) -> "MissingExtraError | None":
        """The error for a module that was not found; None when no extra would bring it."""
        package = (error.name or "").partition(".")[0]
        extra = cls.EXTRAS.get(package)
        return None if extra is None else cls(package, extra)
