"""The command about one filter. Light: it loads what the spelling and the event need, nothing else."""

import json
from typing import Annotated

import typer

from ramify.cli.app import app
from ramify.cli.console import fail, friendly, out, say
from ramify.content.filters.expressions import explain
from ramify.content.filters.filters import Filter
from ramify.errors import FilterError, InputError

__all__: list[str] = []


@app.command(name="filter")
@friendly
def filter_(
    text: Annotated[str, typer.Argument(help="The filter.")],
    spelling: Annotated[
        str, typer.Option(help="sql, pattern (EventBridge JSON) or keywords (JSON list).")
    ] = "sql",
    event: Annotated[str | None, typer.Option(help="A JSON event to try it on.")] = None,
) -> None:
    """Check a filter; with an event, explain predicate by predicate why it matches or not."""
    parsed = _parse(text, spelling)
    if event is None:
        boxes = "1 box" if len(parsed.boxes) == 1 else f"{len(parsed.boxes)} boxes"
        say(f"valid: {boxes} over {', '.join(sorted(parsed.paths)) or 'no attribute'}")
        say(f"key {parsed.key.hex()}")
        return
    from ramify.cli.inputs import one_event

    found = explain(one_event(event), parsed)
    out.print(str(found), markup=False, highlight=False)


def _parse(text: str, spelling: str) -> Filter:
    if spelling == "sql":
        from ramify.content.filters.sql import parse_sql

        return parse_sql(text)
    if spelling == "pattern":
        from ramify.content.filters.pattern import parse_pattern

        return parse_pattern(text)
    if spelling == "keywords":
        from ramify.content.filters.keywords import parse_keywords

        try:
            words = json.loads(text)
        except json.JSONDecodeError as error:
            fail(FilterError(f"keywords are not JSON ({error.msg})", text=text, position=error.pos))
        return parse_keywords(words)
    return fail(InputError(f"unknown spelling {spelling!r}: it is one of sql, pattern, keywords"))
