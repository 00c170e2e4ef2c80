"""Parameters of workload models: declared with their range, checked when made, parsed from text.

A model's parameters are a frozen dataclass below `Params` whose fields are declared with `number`,
`count` or `choice`. Making one checks it, so every refusal reads the same, and the command line can list
what a model takes without knowing the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ramify.errors import InputError

__all__ = ["ParameterText", "Params", "choice", "count", "describe", "number", "parse"]

_ALLOWED = "allowed"


@dataclass(frozen=True, slots=True)
class _Interval:
    low: float
    high: float
    whole: bool
    above_low: bool  # the lower end itself is not allowed

    def refusal(self, value: object) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return f"is not {'a whole number' if self.whole else 'a number'}"
        assert isinstance(value, (int, float))
        above = self.low < value if self.above_low else self.low <= value
        return None if above and value <= self.high else "is out of range"  # NaN fails both

    def __str__(self) -> str:
        what = "a whole number" if self.whole else "a number"
        return f"{what} {'above' if self.above_low else 'from'} {self.low:,.15g} to {self.high:,.15g}"


@dataclass(frozen=True, slots=True)
class _OneOf:
    names: tuple[str, ...]

    def refusal(self, value: object) -> str | None:
        return None if value in self.names else "is unknown"

    def __str__(self) -> str:
        return f"one of {', '.join(self.names)}"


def number(default: float, low: float, high: float, *, above_low: bool = False) -> Any:
    """A field that holds a number of [low, high], or of (low, high] with `above_low`."""
    return field(default=default, metadata={_ALLOWED: _Interval(low, high, False, above_low)})


def count(default: int, low: int = 1, high: int = 1_000_000) -> Any:
    """A field that holds a whole number of [low, high]."""
    return field(default=default, metadata={_ALLOWED: _Interval(low, high, True, False)})


def choice(default: str, *names: str) -> Any:
    """A field that holds one of the names."""
    return field(default=default, metadata={_ALLOWED: _OneOf(names)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """What every model takes; a model adds its own fields and its own defaults.

    events               how many events the workload has
    events_per_second    their rate; they are evenly spaced in time
    size_bytes           the size of one event; the papers' "unit size"
    """

    events: int = count(10_000, 1, 10**12)
    events_per_second: float = number(1_000.0, 0, 1e6, above_low=True)
    size_bytes: int = count(1_000, 1, 10**9)

    def __post_init__(self) -> None:
        for spec in fields(self):
            allowed = spec.metadata[_ALLOWED]
            value = getattr(self, spec.name)
            refusal = allowed.refusal(value)
            if refusal:
                raise InputError(f"{spec.name} = {value!r} {refusal}. Allowed: {allowed}.")

    def as_mapping(self) -> Mapping[str, int | float | str]:
        """The parameters by name."""
        return {spec.name: getattr(self, spec.name) for spec in fields(self)}


def parse(params: type[Params], name: str, text: str) -> int | float | str:
    """The value that `text` gives the field `name`. Raises `InputError` when it is not of that kind."""
    allowed = next(spec.metadata[_ALLOWED] for spec in fields(params) if spec.name == name)
    if isinstance(allowed, _OneOf):
        return text
    try:
        return int(text) if allowed.whole else float(text)
    except ValueError:
        kind = "a whole number" if allowed.whole else "a number"
        raise InputError(f"{name} = {text!r} is not {kind}. Allowed: {allowed}.") from None


@dataclass(frozen=True, slots=True)
class ParameterText:
    """A parameter as shown to people."""

    name: str
    default: int | float | str
    allowed: str


def describe(params: type[Params]) -> tuple[ParameterText, ...]:
    """The parameters of a model, in order, with default and allowed values."""
    found = []
    for spec in fields(params):
        assert isinstance(spec.default, int | float | str)  # `number`, `count` and `choice` ask for one
        found.append(ParameterText(spec.name, spec.default, str(spec.metadata[_ALLOWED])))
    return tuple(found)
