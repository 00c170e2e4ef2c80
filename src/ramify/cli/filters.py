"""The commands about filters. Light: they load what the spelling and the event need, nothing else."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ramify.cli.app import app
from ramify.cli.console import SOME_BAD_ROWS, err, friendly, out, say
from ramify.errors import InputError

__all__: list[str] = []

SpellingOption = Annotated[
    str, typer.Option(help="sql, pattern (EventBridge JSON), keywords (JSON list) or sigma (JSON).")
]


@app.command(name="filter")
@friendly
def filter_(
    text: Annotated[str, typer.Argument(help="The filter.")],
    spelling: SpellingOption = "sql",
    event: Annotated[str | None, typer.Option(help="A JSON event to try it on.")] = None,
) -> None:
    """Check a filter; with an event, explain predicate by predicate why it matches or not."""
    from ramify.content.filters.spellings import as_filter

    parsed = as_filter(text, spelling)
    if event is None:
        boxes = "1 box" if len(parsed.boxes) == 1 else f"{len(parsed.boxes)} boxes"
        say(f"valid: {boxes} over {', '.join(sorted(parsed.paths)) or 'no attribute'}")
        say(f"key {parsed.key.hex()}")
        return
    from ramify.cli.inputs import one_event
    from ramify.content.filters.expressions import explain

    found = explain(one_event(event), parsed)
    out.print(str(found), markup=False, highlight=False)


@app.command(name="test-filter")
@friendly
def try_filter(
    text: Annotated[str | None, typer.Argument(help="The filter. Without it, --cases.")] = None,
    spelling: SpellingOption = "sql",
    event: Annotated[str | None, typer.Option(help="A JSON event.")] = None,
    events: Annotated[Path | None, typer.Option(help="A file of JSON events, one a line.")] = None,
    cases: Annotated[
        Path | None, typer.Option(help="JSON lines: name, sql|pattern|keywords|sigma, event, expect.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say why, predicate by predicate.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Say which events a filter accepts, or whether a file of cases has the verdicts that it expects."""
    from ramify.studies.verdicts import judge

    verdicts = [judge(case) for case in _cases(text, spelling, event, events, cases)]
    for verdict in verdicts:
        if as_json:
            print(json.dumps(_row(verdict, explain), ensure_ascii=False))
        else:
            _print_verdict(verdict, explain)
    failed = sum(not verdict.passed for verdict in verdicts)
    if not as_json:
        err.print(_summary(verdicts, failed), markup=False, highlight=False)
    if failed:
        raise typer.Exit(SOME_BAD_ROWS)


def _cases(
    text: str | None, spelling: str, event: str | None, events: Path | None, cases: Path | None
) -> Any:
    from ramify.content.filters.spellings import SPELLINGS, as_filter
    from ramify.studies.verdicts import Case, read_cases

    if cases is not None and text is None and event is None and events is None:
        return read_cases(cases)
    if cases is not None or text is None or (event is None) == (events is None):
        raise InputError("give --cases FILE; or a filter, and --event JSON or --events FILE")
    if spelling not in SPELLINGS:
        raise InputError(f"unknown spelling {spelling!r}: it is one of {', '.join(SPELLINGS)}")
    parsed = as_filter(text, spelling)
    if events is None:
        return [Case("event", spelling, parsed, event)]
    try:
        lines = events.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"the events cannot be read ({error.strerror})", path=str(events)) from None
    return [Case(f"line {n}", spelling, parsed, line) for n, line in enumerate(lines, 1) if line.strip()]


def _row(verdict: Any, explain: bool) -> dict[str, Any]:
    case = verdict.case
    row: dict[str, Any] = {"name": case.name, "matched": verdict.matched}
    if case.expect is not None:
        row |= {"expect": case.expect, "passed": verdict.passed}
    if verdict.error is not None:
        row["error"] = verdict.error
    if explain and verdict.explanation is not None:
        row["explanation"] = str(verdict.explanation).splitlines()[1:]
    return row


def _print_verdict(verdict: Any, explain: bool) -> None:
    said = {True: "matches", False: "does not match", None: f"refused: {verdict.error}"}[verdict.matched]
    wrong = "" if verdict.passed else f"   (expected: {_expected(verdict.case.expect)})"
    if verdict.matched is None and verdict.case.expect is None:
        wrong = ""
    out.print(f"{verdict.case.name}: {said}{wrong}", markup=False, highlight=False, soft_wrap=True)
    if explain and verdict.explanation is not None:
        for step in verdict.explanation.steps:
            out.print(str(step), markup=False, highlight=False, soft_wrap=True)


def _expected(expect: bool | str | None) -> str:
    return {True: "matches", False: "does not match", "refused": "refused", None: "a verdict"}[expect]


def _summary(verdicts: list[Any], failed: int) -> str:
    accepted = sum(verdict.matched is True for verdict in verdicts)
    asked = "1 event" if len(verdicts) == 1 else f"{len(verdicts):,} events"
    if any(verdict.case.expect is not None for verdict in verdicts):
        return f"{len(verdicts) - failed:,} passed, {failed:,} failed"
    return f"{accepted:,} of {asked} accepted" + (f", {failed:,} not readable" if failed else "")
