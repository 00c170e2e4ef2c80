"""`ramify sigma`: files of Sigma rules as subscriptions."""

from pathlib import Path
from typing import Annotated

import typer

from ramify.cli.app import app
from ramify.cli.console import SOME_BAD_ROWS, err, friendly
from ramify.errors import InputError

__all__: list[str] = []


@app.command()
@friendly
def sigma(
    rules: Annotated[list[Path], typer.Argument(help="Files of Sigma rules (YAML), or directories.")],
    client: Annotated[str, typer.Option(help="The client that subscribes.")],
    broker: Annotated[str, typer.Option(help="Its broker.")],
    prefix: Annotated[
        str, typer.Option(help="Stands before each name of a field: data. for CloudEvents.")
    ] = "",
    field: Annotated[
        list[str] | None, typer.Option(help="OLD=NEW: how events call a field. Its new name has no prefix.")
    ] = None,
    text_field: Annotated[
        str | None, typer.Option(help="Where to look for keywords that have no field.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file, not to standard output.")] = None,
) -> None:
    """Write Sigma rules as subscriptions, one JSON object a line; rules that are no filters are named."""
    from ramify.content.filters.subscriptions import write_subscriptions
    from ramify.studies.sigma_rules import FieldNames, rule_subscriptions

    names = FieldNames(prefix, dict(map(_pair, field or ())), text_field)
    found = rule_subscriptions(rules, client, broker, names)
    if out is None:
        for row in found.good:
            print(row.to_json())
    else:
        try:
            write_subscriptions(out, found.good)
        except OSError as error:
            raise InputError(f"cannot be written ({error.strerror})", path=str(out)) from None
    for bad in found.bad:
        err.print(str(bad), markup=False, highlight=False, soft_wrap=True)
    count = "1 subscription" if len(found.good) == 1 else f"{len(found.good):,} subscriptions"
    err.print(f"{count}, {len(found.bad):,} refused", markup=False, highlight=False)
    if found.bad:
        raise typer.Exit(SOME_BAD_ROWS)


def _pair(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise InputError(f"--field {text!r} is not OLD=NEW")
    return old, new
