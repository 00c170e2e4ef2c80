"""Write docs/api.md from the docstrings of what `import ramify` offers: `make docs`.

python docs/generate_api.py [FILE]
"""

import inspect
import re
import sys
from pathlib import Path

import ramify

PAGE = Path(__file__).parent / "api.md"
HEAD = """# The Python API

Generated from the docstrings by `make docs`; do not edit. `import ramify` loads each name when it is first
used. The examples run as tests, in the directory of the repository.
"""
PARTS = {
    "Use cases": lambda name, value: inspect.isfunction(value),
    "Results and pieces": lambda name, value: inspect.isclass(value) and not name.endswith("Error"),
    "Errors": lambda name, value: inspect.isclass(value) and name.endswith("Error"),
}


def main() -> None:
    """Write the page."""
    names = {name: getattr(ramify, name) for name in ramify.__all__ if name != "__version__"}
    lines = [HEAD]
    for title, belongs in PARTS.items():
        lines.append(f"## {title}\n")
        for name, value in names.items():
            if belongs(name, value):
                lines += entry(name, value)
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    target.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def entry(name: str, value: object) -> list[str]:
    """The section of one name; a class has a paragraph per public member of its own."""
    lines = [f"### `{name}`\n"]
    if inspect.isfunction(value):
        lines.append(f"```python\n{signature(name, value)}\n```\n")
    lines += text(value)
    if inspect.isclass(value) and not issubclass(value, Exception):
        for member, found in vars(value).items():
            if not member.startswith("_"):
                lines += member_lines(member, found)
    return lines


def member_lines(name: str, found: object) -> list[str]:
    """A property or method with its docstring; plain attributes are told of by their class."""
    if isinstance(found, property) or type(found).__name__ == "cached_property":
        shown = f"`.{name}`"
    elif isinstance(found, staticmethod | classmethod):
        shown = f"`.{name}{arguments(found.__func__)}`"
    elif inspect.isfunction(found):
        shown = f"`.{name}{arguments(found)}`"
    else:
        return []
    said = inspect.getdoc(found) or ""
    if "\n" not in said.strip():
        return [f"- **{shown}**: {said}\n"]
    return [f"**{shown}**\n", *text(found)]


def signature(name: str, function: object) -> str:
    """The call, a parameter a line where there are many."""
    shown = [str(each) for each in clean(function).parameters.values()]
    keyword = next((k for k, each in enumerate(clean(function).parameters.values())
                    if each.kind is each.KEYWORD_ONLY), None)  # fmt: skip
    if keyword is not None:
        shown.insert(keyword, "*")
    line = f"{name}({', '.join(shown)})"
    return line if len(line) <= 100 else f"{name}(\n    " + ",\n    ".join(shown) + ",\n)"


def arguments(function: object) -> str:
    """The arguments of a method."""
    found = clean(function)
    rest = [each for name, each in found.parameters.items() if name not in ("self", "cls")]
    return str(found.replace(parameters=rest))


def clean(function: object) -> inspect.Signature:
    """The signature with names only: types are in the stub file, defaults are what they look like."""
    found = inspect.signature(function)  # type: ignore[arg-type]
    bare = [
        each.replace(annotation=inspect.Parameter.empty, default=_shown(each.default))
        for each in found.parameters.values()
    ]
    return found.replace(parameters=bare, return_annotation=inspect.Signature.empty)


class _Name(str):
    """A default that is shown without quotation marks."""

    __slots__ = ()
    __repr__ = str.__str__


def _shown(default: object) -> object:
    """A default; that of a function is its name, since an address says nothing."""
    return _Name(default.__name__) if inspect.isfunction(default) else default


def text(value: object) -> list[str]:
    """The docstring: paragraphs as they are, tables of attributes and examples as code."""
    lines: list[str] = []
    for block in re.split(r"\n\s*\n", inspect.getdoc(value) or ""):
        titled = re.match(r"(\w[\w ]*)\n-+\n", block)
        body = block[titled.end() :] if titled else block
        if titled:
            lines.append(f"{titled[1]}:\n")
        columns = titled or re.search(r"\S {2,}\S", body) or block.startswith((" ", ">>>"))
        lines.append(
            f"```{'python' if '>>>' in body else 'text'}\n{body}\n```\n" if columns else f"{body}\n"
        )
    return lines


if __name__ == "__main__":
    main()
