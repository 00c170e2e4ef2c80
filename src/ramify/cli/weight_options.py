"""--per-filter and --per-matching, as the commands of a live overlay have them."""

from typing import Annotated

import typer

__all__ = ["FilterWeight", "MatchingWeight"]

FilterWeight = Annotated[
    float | None, typer.Option("--per-filter", help="Money a month for a stored filter.", min=0)
]
MatchingWeight = Annotated[
    float | None, typer.Option("--per-matching", help="Money for a million matchings.", min=0)
]
