"""The option of a half-life, which several commands have."""

from typing import Annotated

import typer

from ramify.studies.fields import duration_s
from ramify.studies.fields import half_life_s as half_life_of

__all__ = ["HalfLifeOption", "duration_s", "half_life_of"]

HalfLifeOption = Annotated[
    str | None,
    typer.Option(
        help="Plan for recent events: one that is this much older counts half, such as 1h. "
        "Prices count all events alike."
    ),
]
