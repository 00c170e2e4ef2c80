"""An oracle: the detection of a Sigma rule evaluated on one event's attributes, in plain Python.

Values become regular expressions, conditions become Python. Nothing is shared with the package.
"""

import base64
import ipaddress
import itertools
import json
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["matches"]

_ABSENT = object()
_DASHES = "-/–—―"


def matches(detection: Mapping[str, Any], event: Mapping[str, Any]) -> bool:
    """Whether a detection matches attributes: path -> scalar, None, or a list of these."""
    verdicts = {
        name: any(_map_matches(each, event) for each in (body if isinstance(body, list) else [body]))
        for name, body in detection.items()
        if name != "condition"
    }
    conditions = detection["condition"]
    listed = conditions if isinstance(conditions, list) else [conditions]
    return any(_holds(condition, verdicts) for condition in listed)


def _holds(condition: str, verdicts: Mapping[str, bool]) -> bool:
    def some(match: re.Match[str]) -> str:
        wanted = match[2]
        chosen = [
            held
            for name, held in verdicts.items()
            if (not name.startswith("_") if wanted == "them" else _like(wanted, name))
        ]
        return str((all if match[1] == "all" else any)(chosen))

    text = re.sub(r"\b(1|any|all) of (\S+?)(?=[\s)]|$)", some, condition)
    words = {"and", "or", "not", "True", "False"}
    text = re.sub(r"\w+", lambda m: m[0] if m[0] in words else str(verdicts[m[0]]), text)
    return bool(eval(text, {}))


def _like(pattern: str, name: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name) is not None


def _map_matches(fields: Mapping[str, Any], event: Mapping[str, Any]) -> bool:
    return all(_field_matches(key, value, event) for key, value in fields.items())


def _field_matches(key: str, value: Any, event: Mapping[str, Any]) -> bool:
    name, *modifiers = key.split("|")
    held = event.get(name, _ABSENT)
    verdicts = [
        _one_matches(modifiers, wanted, held) for wanted in (value if isinstance(value, list) else [value])
    ]
    return all(verdicts) if "all" in modifiers else any(verdicts)


def _one_matches(modifiers: list[str], wanted: Any, held: Any) -> bool:
    if "exists" in modifiers:
        return (held is not _ABSENT) is wanted
    if held is _ABSENT:
        return wanted is None
    if isinstance(held, tuple | list):
        return any(_scalar_matches(modifiers, wanted, element) for element in held)
    return _scalar_matches(modifiers, wanted, held)


def _scalar_matches(modifiers: list[str], wanted: Any, held: Any) -> bool:
    if wanted is None or held is None:
        return wanted is held
    for word in ("gt", "gte", "lt", "lte"):
        if word in modifiers:
            return (
                _is_number(held)
                and {
                    "gt": held > wanted,
                    "gte": held >= wanted,
                    "lt": held < wanted,
                    "lte": held <= wanted,
                }[word]
            )
    if "cidr" in modifiers:
        return isinstance(held, str) and _in_block(held, wanted)
    if "re" in modifiers:
        flags = (re.IGNORECASE if "i" in modifiers else 0) | (re.DOTALL if "s" in modifiers else 0)
        return isinstance(held, str) and re.search(wanted, held, flags) is not None
    return any(_text_matches(form, "cased" in modifiers, held) for form in _forms(modifiers, wanted))


def _is_number(held: Any) -> bool:
    return isinstance(held, int | float) and not isinstance(held, bool)


def _in_block(text: str, block: str) -> bool:
    try:
        return ipaddress.ip_address(text) in ipaddress.ip_network(block, strict=False)
    except ValueError:
        return False


def _forms(modifiers: list[str], wanted: Any) -> list[Any]:
    """What a value becomes: tokens, of which "*" and "?" alone are wildcards; or the plain value."""
    texts = [
        m for m in modifiers if m in ("contains", "startswith", "endswith", "windash", "base64", "wide")
    ] + [m for m in modifiers if m == "base64offset"]
    if not texts and not isinstance(wanted, str):
        return [wanted]
    text = wanted if isinstance(wanted, str) else json.dumps(wanted)
    if "base64" in modifiers or "base64offset" in modifiers:
        data = text.encode("utf-16-le" if "wide" in modifiers else "utf-8")
        if "base64" in modifiers:
            encoded = [base64.b64encode(data).decode()]
        else:
            encoded = [_sure_part(shift, data) for shift in range(3)]
        forms = [[("=", c) for c in each] for each in encoded]
    else:
        forms = [_tokens(text)]
    if "windash" in modifiers:
        forms = [form for tokens in forms for form in _dashes(tokens)]
    before = [("*", "")] if {"contains", "endswith"} & set(modifiers) else []
    after = [("*", "")] if {"contains", "startswith"} & set(modifiers) else []
    return [tuple(before + tokens + after) for tokens in forms]


def _sure_part(shift: int, data: bytes) -> str:
    """The characters that are the same whatever stands before and behind the data."""
    ends = [bytes([fill]) * shift + data + bytes([fill]) * 3 for fill in (0, 255)]
    one, other = (base64.b64encode(end).decode() for end in ends)
    last = (shift + len(data)) * 8 // 6
    return "".join(a for a, b in zip(one[:last], other[:last], strict=True) if a == b)


def _tokens(text: str) -> list[tuple[str, str]]:
    found = re.findall(r"\\([*?\\])|([*?])|(.)", text, re.DOTALL)
    return [(wild, "") if wild else ("=", escaped or plain) for escaped, wild, plain in found]


def _dashes(tokens: list[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    shown = "".join(c if kind == "=" else "*" for kind, c in tokens)
    places = [m.start() for m in re.finditer(rf"(?<!\w)[{_DASHES}](?=\w)", shown)]
    forms = []
    for chosen in itertools.product(_DASHES, repeat=len(places)):
        form = list(tokens)
        for place, dash in zip(places, chosen, strict=True):
            form[place] = ("=", dash)
        forms.append(form)
    return forms


def _text_matches(form: Any, cased: bool, held: Any) -> bool:
    if not isinstance(form, tuple):  # a number or a boolean, without modifiers
        if isinstance(held, str):
            return held.lower() == json.dumps(form).lower()
        return isinstance(form, bool) == isinstance(held, bool) and form == held
    if all(kind == "*" for kind, _ in form) and form:
        return True
    if not isinstance(held, str):
        text = "".join(c for kind, c in form if kind == "=")
        spelled = json.dumps(held)
        return all(kind == "=" for kind, _ in form) and (
            text == spelled or (isinstance(held, bool) and text.lower() == spelled)
        )
    pattern = "".join({"*": ".*", "?": "."}.get(kind) or re.escape(c) for kind, c in form)
    return re.fullmatch(pattern, held, re.DOTALL | (0 if cased else re.IGNORECASE)) is not None
