"""Whatever JSON a publisher may send: drawn values and texts, and a plain judgement of a text.

Names are few, so that one path has many types. Texts are written with the freedoms that JSON has, and now
and then with faults that it has not.
"""

import json
import math
import random
from typing import Any, NoReturn

__all__ = ["any_text", "any_value", "is_sound"]

NAMES = ["task", "a", "b", "a.b", "", "_nulls", "id", "time", "é\n", "x" * 50, "$or", "data"]
SCALARS: list[Any] = [
    *(None, True, False, 0, -0.0, 1, -1, 7, "7", "", "x", 0.5, 1e-300, 1e300),
    *(2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**40, 10**400),
    *("\0", "𝄞", "2026-01-31T09:00:00Z", "2026-01-31T09:00:00.5+02:00", "null", "x" * 3_000),
]
FAULTS: list[Any] = [math.nan, math.inf, "\ud800", "\udfff x"]

MOST_LEVELS = 32


def any_value(rng: random.Random, depth: int = 4, faults: float = 0.0) -> Any:
    """A value as Python has it; `faults` is how often it is one that JSON does not have."""
    if rng.random() < faults:
        return rng.choice(FAULTS)
    kind = rng.random()
    if depth == 0 or kind < 0.45:
        return rng.choice(SCALARS)
    if kind < 0.5:
        return _tower(rng.choice([20, MOST_LEVELS - 1, MOST_LEVELS, 40]))
    count = rng.randrange(4)
    if kind < 0.75:
        return [any_value(rng, depth - 1, faults) for _ in range(count)]
    return {rng.choice(NAMES): any_value(rng, depth - 1, faults) for _ in range(count)}


def any_text(rng: random.Random, envelope: dict[str, Any], data: Any) -> bytes:
    """An event in JSON as some publisher may write it: escapes, white space, a key that stands twice.

    Its data may be cut or have a changed byte; the envelope is whole.
    """
    text = json.dumps(
        {**envelope, "data": data}, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1])
    )
    how = rng.randrange(12)
    if how == 0:
        text = text[:-1] + f', "data": {json.dumps(data)}}}'
    elif how == 1:
        text = text.replace('"a"', '"\\u0061"')
    elif how == 2:
        text = text.replace("\n", "\r\n").replace("0.5", "5E-1")
    raw = text.encode(errors="surrogatepass")
    if how == 3:
        return b"\xef\xbb\xbf" + raw + b" \r\n"
    if how == 4:
        return raw[: rng.randrange(1, len(raw))]
    if how == 5:
        at = rng.randrange(raw.index(b'"data"') + 6, len(raw))
        return raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]
    return raw


def is_sound(raw: bytes) -> bool:
    """Whether a text is a JSON object that every reader takes: by Python's decoder and nothing else."""
    try:
        found = json.loads(raw.decode("utf-8-sig"), parse_constant=_no_constant)
        json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair is no character
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and _levels(found) <= MOST_LEVELS


def _levels(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max(map(_levels, inside), default=0)


def _tower(levels: int) -> Any:
    found: Any = 1
    for level in range(levels - 1):
        found = [found] if level % 2 else {"a": found}
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
