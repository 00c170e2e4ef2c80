"""Overlays by a short text, for command lines and settings: `ring:20`, `kyra:7`, `sites.graphml`.

Owns the names and their arguments; what they make is in the generators and readers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ramify.errors import OverlayError
from ramify.network.graphs import examples, generators, transit_stub
from ramify.network.graphs.clouds import cloud_regions
from ramify.network.graphs.files import SUFFIXES, read_overlay
from ramify.network.graphs.overlay import Overlay

__all__ = ["SPECS", "overlay_from"]


@dataclass(frozen=True, slots=True)
class Spec:
    """A kind of overlay: what it is, the numbers it takes with their defaults (None: must be given)."""

    about: str
    arguments: dict[str, int | None]
    make: Callable[..., Overlay]

    def usage(self, name: str) -> str:
        """How to write it, e.g. `random:BROKERS[:SEED]`."""
        parts = [
            f":{key.upper()}" if value is None else f"[:{key.upper()}]"
            for key, value in self.arguments.items()
        ]
        return name + "".join(parts)


SPECS: dict[str, Spec] = {
    "cloud-regions": Spec("regions of AWS, Azure and GCP, full mesh", {}, cloud_regions),
    "aws-regions": Spec("regions of AWS", {}, lambda: cloud_regions(providers=["aws"])),
    "azure-regions": Spec("regions of Azure", {}, lambda: cloud_regions(providers=["azure"])),
    "gcp-regions": Spec("regions of GCP", {}, lambda: cloud_regions(providers=["gcp"])),
    "ring": Spec("a circle", {"brokers": None}, generators.ring),
    "line": Spec("a chain", {"brokers": None}, generators.line),
    "star": Spec("a hub and leaves", {"brokers": None}, generators.star),
    "mesh": Spec("every pair joined", {"brokers": None}, generators.full_mesh),
    "random": Spec("connected, mean degree 4", {"brokers": None, "seed": 0}, generators.random_overlay),
    "plane": Spec(
        "random points, every pair joined", {"brokers": None, "seed": 0}, generators.euclidean_mesh
    ),
    "transit-stub": Spec("GT-ITM style", {"brokers": None, "seed": 0}, transit_stub.transit_stub),
    "majumder": Spec("Majumder et al. VII-A", {"brokers": 500, "seed": 0}, transit_stub.majumder),
    "matchmaker": Spec("Ge et al. 4.1", {"seed": 0}, transit_stub.matchmaker),
    "semcast": Spec("SemCast 5", {"brokers": 600, "seed": 0}, transit_stub.semcast),
    "zhao-wu": Spec("Zhao and Wu VI", {"brokers": 100, "seed": 0}, transit_stub.zhao_wu),
    "kyra": Spec(
        "Cao and Singh V, with its underlay",
        {"seed": 0, "multi_homed_percent": 0},
        lambda seed, percent: transit_stub.kyra(seed, multi_homed=percent / 100),
    ),
    "majumder-i2": Spec(
        "Example I.2", {"subscribers": 5, "x": 10}, lambda n, x: examples.majumder_i2(n, x).overlay
    ),
    "majumder-i3": Spec("Example I.3", {"brokers": 8}, lambda n: examples.majumder_i3(n).overlay),
    "kyra-figure-4": Spec("Figure 4", {}, lambda: examples.kyra_figure_4().overlay),
}

# What a number may be, by its name. The generators also make overlays of no brokers, for callers whose
# count is computed; in a text, 0 is a slip of the hand.
RANGES: dict[str, range] = {"brokers": range(1, 10**18), "multi_homed_percent": range(101)}
ANY_NUMBER = range(10**18)


def overlay_from(spec: str) -> Overlay:
    """The overlay that a text names: a file path, or a name of `SPECS` with its numbers after colons.

    A known name wins over a file of that name. Raises `OverlayError` listing the choices.
    """
    name, *given = spec.split(":")
    known = SPECS.get(name)
    if known is not None:
        return known.make(*_arguments(name, known, given))
    if Path(spec).suffix.lower() in SUFFIXES or Path(spec).is_file():
        return read_overlay(spec)
    choices = "\n".join(f"  {entry.usage(key):34} {entry.about}" for key, entry in SPECS.items())
    raise OverlayError(
        f"unknown overlay {spec[:100]!r}. Give a file ({', '.join(SUFFIXES)}) or one of:\n{choices}"
    )


def _arguments(name: str, spec: Spec, given: list[str]) -> list[int]:
    if len(given) > len(spec.arguments):
        raise OverlayError(f"too many numbers for {name}. Write {spec.usage(name)}.")
    values = []
    for at, (key, default) in enumerate(spec.arguments.items()):
        if at >= len(given):
            if default is None:
                raise OverlayError(f"{name} needs {key}. Write {spec.usage(name)}.")
            values.append(default)
        else:
            values.append(_whole_number(name, spec, key, given[at]))
    return values


def _whole_number(name: str, spec: Spec, key: str, text: str) -> int:
    allowed = RANGES.get(key, ANY_NUMBER)
    # Length first: int() of a very long text is slow, or refused by Python.
    if text.isascii() and text.isdigit() and len(text) <= 18 and int(text) in allowed:
        return int(text)
    limits = f"from {allowed.start}" + (f" to {allowed[-1]}" if allowed.stop < ANY_NUMBER.stop else "")
    raise OverlayError(
        f"{key} of {name} is {text[:40]!r}, not a whole number {limits}. Write {spec.usage(name)}."
    )
