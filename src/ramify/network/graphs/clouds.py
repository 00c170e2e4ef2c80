"""An overlay of public cloud regions, with list prices per direction and latencies from geography.

Owns the table of regions (`data/cloud_regions.csv`, sources named at its top) and the rules that turn it
into links. The prices are list prices of one year: good for a first answer, to be replaced by the
reader's own in an overlay file.

Price      The sender pays. Within a provider: `within_per_gb` on one continent, `across_per_gb` else; GCP
           bills a pair by its dearer end, the others by the sending region. AWS has one cheap pair,
           us-east-1 and us-east-2, at 0.01. To another provider: the sender's internet price.
Latency    Light in fibre covers 2/3 of 299.792 km per ms, cables are `STRETCH` times longer than the great
           circle, and each link adds `FIXED_MS`: ms = km / 199.86 * 1.4 + 1. Not a measurement.
"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from ramify.errors import OverlayError
from ramify.network.graphs.generators import nearest_links
from ramify.network.graphs.overlay import Overlay, Site

__all__ = ["CloudRegion", "cloud_regions", "great_circle_km", "latency_from_km", "region_table"]

EARTH_RADIUS_KM = 6371.0
FIBRE_KM_PER_MS = 299.792 * 2 / 3
STRETCH = 1.4
FIXED_MS = 1.0
CHEAP_PAIRS = {frozenset({"aws-us-east-1", "aws-us-east-2"}): 0.01}


@dataclass(frozen=True, slots=True)
class CloudRegion:
    """A row of the table."""

    provider: str
    region: str
    city: str
    latitude: float
    longitude: float
    continent: str
    within_per_gb: float
    across_per_gb: float
    internet_per_gb: float

    @property
    def broker(self) -> str:
        """The broker's name, e.g. `aws-us-east-1`."""
        return f"{self.provider}-{self.region}"


@cache
def region_table() -> tuple[CloudRegion, ...]:
    """All regions of the table, in its order."""
    text = files("ramify.network.graphs").joinpath("data", "cloud_regions.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(
        CloudRegion(
            row["provider"],
            row["region"],
            row["city"],
            float(row["latitude"]),
            float(row["longitude"]),
            row["continent"],
            float(row["within_per_gb"]),
            float(row["across_per_gb"]),
            float(row["internet_per_gb"]),
        )
        for row in rows
    )


def cloud_regions(
    *,
    providers: Iterable[str] | None = None,
    regions: Iterable[str] | None = None,
    nearest: int | None = None,
) -> Overlay:
    """The chosen cloud regions as brokers: a full mesh, or with `nearest=k` a sparser one.

    `providers` are among aws, azure, gcp; `regions` are broker names such as `aws-us-east-1`. `nearest`
    keeps each broker's k nearest and a backbone, the minimum spanning tree by latency. Prices are in USD
    per GB of 10^9 bytes; providers bill by 2^30, so all prices are 7 % high, evenly. A site's region is
    the continent.
    """
    chosen = _choose(providers, regions)
    latitude = np.array([row.latitude for row in chosen])
    longitude = np.array([row.longitude for row in chosen])
    latency_ms = latency_from_km(
        great_circle_km(latitude[:, None], longitude[:, None], latitude[None, :], longitude[None, :])
    )
    if nearest is None:
        pairs = np.column_stack(np.triu_indices(len(chosen), k=1))
    else:
        pairs = nearest_links(latency_ms, nearest)
    return Overlay.from_arrays(
        "cloud-regions",
        [row.broker for row in chosen],
        pairs,
        price=np.array(
            [(_price(chosen[i], chosen[j]), _price(chosen[j], chosen[i])) for i, j in pairs.tolist()]
        ).reshape(-1, 2),
        latency_ms=latency_ms[pairs[:, 0], pairs[:, 1]],
        sites=[Site(row.latitude, row.longitude, row.continent, row.provider) for row in chosen],
    )


def great_circle_km(
    latitude: npt.ArrayLike, longitude: npt.ArrayLike, latitude_2: npt.ArrayLike, longitude_2: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """Great-circle distance between points in degrees, element by element (haversine)."""
    phi, psi = np.radians(latitude), np.radians(latitude_2)
    half_phi = (psi - phi) / 2
    half_lambda = (np.radians(longitude_2) - np.radians(longitude)) / 2
    share = np.sin(half_phi) ** 2 + np.cos(phi) * np.cos(psi) * np.sin(half_lambda) ** 2
    return np.asarray(2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(np.minimum(share, 1.0))))


def latency_from_km(distance_km: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """One-way milliseconds over a distance: see the top of this module."""
    return np.asarray(distance_km, dtype=np.float64) / FIBRE_KM_PER_MS * STRETCH + FIXED_MS


def _choose(providers: Iterable[str] | None, regions: Iterable[str] | None) -> list[CloudRegion]:
    table = region_table()
    wanted = None if providers is None else set(providers)
    _known(wanted, {row.provider for row in table}, "provider")
    names = None if regions is None else set(regions)
    _known(names, {row.broker for row in table}, "region")
    return [
        row
        for row in table
        if (wanted is None or row.provider in wanted) and (names is None or row.broker in names)
    ]


def _known(wanted: set[str] | None, known: set[str], what: str) -> None:
    unknown = sorted((wanted or set()) - known)
    if unknown:
        raise OverlayError(f"unknown cloud {what} {unknown[0]!r}. Choose from: {', '.join(sorted(known))}.")


def _price(sender: CloudRegion, receiver: CloudRegion) -> float:
    """USD per GB from sender to receiver."""
    if sender.provider != receiver.provider:
        return sender.internet_per_gb
    pair = frozenset({sender.broker, receiver.broker})
    if pair in CHEAP_PAIRS:
        return CHEAP_PAIRS[pair]
    payers = (sender, receiver) if sender.provider == "gcp" else (sender,)
    same = sender.continent == receiver.continent
    return max(payer.within_per_gb if same else payer.across_per_gb for payer in payers)
