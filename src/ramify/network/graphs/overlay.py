"""The overlay: which brokers exist, which links join them, what each direction costs.

Owns the value every other layer plans on: names, link ends, a price per direction, a latency, and
where brokers are. It owns no distances (`distances.py`), no generators and no file formats.

A link is undirected as a connection and directed as a bill: clouds charge the sender, so `a -> b` and
`b -> a` have a price each. Arrays hold the truth; `Link` values are made from them when asked for.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ramify.errors import DisconnectedError, OverlayError
from ramify.network.graphs.kernels import Adjacency, adjacency
from ramify.network.graphs.underlay import Underlay

__all__ = ["Link", "Overlay", "Site"]

MAX_NAME_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Link:
    """A connection of two brokers, with a price per direction in money per 10^9 bytes.

    The sender pays: `price_per_gb` for bytes from `a` to `b`, `back_price_per_gb` from `b` to `a`.
    """

    a: str
    b: str
    price_per_gb: float
    back_price_per_gb: float
    latency_ms: float

    @classmethod
    def symmetric(cls, a: str, b: str, price_per_gb: float = 1.0, latency_ms: float = 1.0) -> Self:
        """A link that costs the same in both directions."""
        return cls(a, b, price_per_gb, price_per_gb, latency_ms)


@dataclass(frozen=True, slots=True)
class Site:
    """Where a broker is and what part it plays: all of it optional, degrees for the coordinates.

    `role` is "transit" or "stub" in generated transit-stub overlays.
    """

    latitude: float | None = None
    longitude: float | None = None
    region: str | None = None
    provider: str | None = None
    role: str | None = None


class Overlay:
    """An immutable graph of brokers.

    Make one with `Overlay.build` (from `Link` values) or `Overlay.from_arrays`; both validate. An
    overlay may be empty, hold a single broker, or be disconnected: `require_connected` is for callers
    that need more. At most one link joins two brokers.

    Attributes
    ----------
    name          what to call it in reports
    brokers       the names, in index order
    ends          int32[m, 2], the broker indices of each link
    price         float64[m, 2], per 10^9 bytes: column 0 is `a -> b`, column 1 is `b -> a`
    latency_ms    float64[m]
    sites         one `Site` per broker
    underlay      the routers below, or None
    """

    name: str
    brokers: tuple[str, ...]
    ends: npt.NDArray[np.int32]
    price: npt.NDArray[np.float64]
    latency_ms: npt.NDArray[np.float64]
    sites: tuple[Site, ...]
    underlay: Underlay | None

    def __init__(
        self,
        name: str,
        brokers: Iterable[str],
        ends: npt.ArrayLike,
        price: npt.ArrayLike,
        latency_ms: npt.ArrayLike,
        sites: Sequence[Site] | None = None,
        underlay: Underlay | None = None,
    ) -> None:
        names = tuple(brokers)
        put = self.__dict__.__setitem__  # attributes are closed to assignment: see __setattr__
        put("name", name)
        put("brokers", names)
        # Numbers too large for int32 would wrap round to other brokers: clip keeps them out of range.
        pairs = np.clip(np.array(ends, dtype=np.int64), -1, np.iinfo(np.int32).max)
        put("ends", _frozen(pairs, np.int32, (-1, 2)))
        put("price", _frozen(price, np.float64, (-1, 2)))
        put("latency_ms", _frozen(latency_ms, np.float64, (-1,)))
        put("sites", tuple(sites) if sites is not None else (Site(),) * len(names))
        put("underlay", underlay)
        self._validate()

    @classmethod
    def build(
        cls,
        name: str,
        brokers: Iterable[str],
        links: Iterable[Link],
        *,
        sites: Mapping[str, Site] | None = None,
        underlay: Underlay | None = None,
    ) -> Self:
        """An overlay from names and links. Raises `OverlayError` that names the first fault found."""
        names = tuple(brokers)
        index = {broker: i for i, broker in enumerate(names)}
        _reject_duplicate_names(names)
        listed = tuple(links)
        ends = np.empty((len(listed), 2), dtype=np.int32)
        for row, link in enumerate(listed):
            for column, end in enumerate((link.a, link.b)):
                if end not in index:
                    raise OverlayError(
                        f"link {link.a} - {link.b} ends at an unknown broker {end!r}. "
                        "Add it to the brokers or correct the name."
                    )
                ends[row, column] = index[end]
        unknown = sorted(set(sites or ()) - index.keys())
        if unknown:
            raise OverlayError(f"a site is given for an unknown broker {unknown[0]!r}. Remove it.")
        return cls(
            name,
            names,
            ends,
            [(link.price_per_gb, link.back_price_per_gb) for link in listed],
            [link.latency_ms for link in listed],
            None if sites is None else [sites.get(broker, Site()) for broker in names],
            underlay,
        )

    @classmethod
    def from_arrays(
        cls,
        name: str,
        brokers: Iterable[str],
        ends: npt.ArrayLike,
        *,
        price: npt.ArrayLike | None = None,
        latency_ms: npt.ArrayLike | None = None,
        sites: Sequence[Site] | None = None,
        underlay: Underlay | None = None,
    ) -> Self:
        """An overlay from arrays; prices and latencies default to 1. One price column is both ways."""
        pairs = np.asarray(ends, dtype=np.int64).reshape(-1, 2)
        prices = np.ones(len(pairs)) if price is None else np.asarray(price, dtype=np.float64)
        if prices.ndim == 1:
            prices = np.column_stack((prices, prices))
        latencies = np.ones(len(pairs)) if latency_ms is None else latency_ms
        return cls(name, brokers, pairs, prices, latencies, sites, underlay)

    def __len__(self) -> int:
        return len(self.brokers)

    def __repr__(self) -> str:
        return f"<Overlay {self.name}: {len(self)} brokers, {len(self.ends)} links>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Overlay):
            return NotImplemented
        return (
            (self.name, self.brokers, self.sites) == (other.name, other.brokers, other.sites)
            and np.array_equal(self.ends, other.ends)
            and np.array_equal(self.price, other.price)
            and np.array_equal(self.latency_ms, other.latency_ms)
            and self.underlay == other.underlay
        )

    def __hash__(self) -> int:
        return hash((self.name, self.brokers, self.ends.tobytes()))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an Overlay is immutable: cannot set {name}; build a new one")

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the constructor: numpy forgets the read-only flag when it is pickled.
        parts = (self.name, self.brokers, self.ends, self.price, self.latency_ms, self.sites, self.underlay)
        return (Overlay, parts)

    @cached_property
    def index(self) -> Mapping[str, int]:
        """The index of each broker."""
        return MappingProxyType({broker: i for i, broker in enumerate(self.brokers)})

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """The links as values, in order."""
        rows = zip(self.ends.tolist(), self.price.tolist(), self.latency_ms.tolist(), strict=True)
        name = self.brokers
        return tuple(Link(name[a], name[b], there, back, ms) for (a, b), (there, back), ms in rows)

    @cached_property
    def adjacency(self) -> Adjacency:
        """Compressed rows of the arcs out of each broker."""
        return adjacency(len(self), self.ends)

    @cached_property
    def degree(self) -> npt.NDArray[np.int32]:
        """How many links each broker has."""
        return np.diff(self.adjacency.start)

    def link_between(self, a: str, b: str) -> int:
        """The id of the link that joins two brokers, or `OverlayError`. O(log degree)."""
        for end in (a, b):
            if end not in self.index:
                raise OverlayError(f"unknown broker {end!r} in overlay {self.name}. Choose one of its own.")
        i, j = self.index[a], self.index[b]
        row = slice(int(self.adjacency.start[i]), int(self.adjacency.start[i + 1]))
        at = row.start + int(np.searchsorted(self.adjacency.neighbor[row], j))
        if at == row.stop or self.adjacency.neighbor[at] != j:
            raise OverlayError(f"no link joins {a} and {b} in overlay {self.name}. Use another route.")
        return int(self.adjacency.link[at])

    def arcs_along(self, path: Sequence[int]) -> npt.NDArray[np.int32]:
        """int32[k, 2]: the link and the direction of each step of a path of broker indices.

        `price[arcs[:, 0], arcs[:, 1]]` is what the steps cost. An `OverlayError` where no link is.
        """
        arcs = np.empty((max(len(path) - 1, 0), 2), dtype=np.int32)
        for step, (i, j) in enumerate(pairwise(path)):
            link = self.link_between(self.brokers[i], self.brokers[j])
            arcs[step] = link, int(self.ends[link, 0] != i)
        return arcs

    def components(self) -> tuple[tuple[int, ...], ...]:
        """The groups of brokers that reach each other, largest first, ties by smallest broker."""
        above = list(range(len(self)))

        def root(broker: int) -> int:
            while above[broker] != broker:
                above[broker] = broker = above[above[broker]]
            return broker

        for a, b in self.ends.tolist():
            one, other = root(a), root(b)
            above[max(one, other)] = min(one, other)
        groups: dict[int, list[int]] = {}
        for broker in range(len(self)):
            groups.setdefault(root(broker), []).append(broker)
        return tuple(
            tuple(group) for group in sorted(groups.values(), key=lambda group: (-len(group), group[0]))
        )

    def require_connected(self) -> Self:
        """This overlay, or `DisconnectedError` naming the components. Empty and single are connected."""
        components = self.components()
        if len(components) > 1:
            raise DisconnectedError([self.brokers[i] for i in component] for component in components)
        return self

    def keep(self, brokers: Iterable[str]) -> "Overlay":
        """The overlay of these brokers and the links among them, in the present order."""
        wanted = set(brokers)
        unknown = sorted(wanted - self.index.keys())
        if unknown:
            raise OverlayError(
                f"unknown broker {unknown[0]!r} in overlay {self.name}. Choose from its own."
            )
        kept = np.array([broker in wanted for broker in self.brokers], dtype=bool)
        position = np.cumsum(kept) - 1
        stays = kept[self.ends].all(axis=1)
        return Overlay(
            self.name,
            [broker for broker in self.brokers if broker in wanted],
            position[self.ends[stays]],
            self.price[stays],
            self.latency_ms[stays],
            [site for site, stay in zip(self.sites, kept.tolist(), strict=True) if stay],
            None if self.underlay is None else self.underlay.keep(np.flatnonzero(kept)),
        )

    def largest_component(self) -> "Overlay":
        """The overlay of the largest component."""
        components = self.components()
        return self if len(components) < 2 else self.keep(self.brokers[i] for i in components[0])

    def underlay_path(self, link: int) -> npt.NDArray[np.int32]:
        """The underlay links that a link crosses, `a` to `b`. An error without an underlay."""
        if self.underlay is None:
            raise OverlayError(f"overlay {self.name} has no underlay. Generate it with one, e.g. kyra.")
        return self.underlay.path(int(self.ends[link, 0]), int(self.ends[link, 1]))

    def charged(self) -> "Overlay":
        """This overlay with the prices at which money really accrues.

        With an underlay, a link costs what its route costs there, each underlay link in the direction
        travelled; without one, this overlay itself. Planning and pricing work on the result.
        """
        if self.underlay is None:
            return self
        price = self.underlay.route_prices(self.ends)
        if np.array_equal(price, self.price):
            return self
        return Overlay(
            self.name, self.brokers, self.ends, price, self.latency_ms, self.sites, self.underlay
        )

    def _validate(self) -> None:
        if not self.name:
            raise OverlayError("the overlay has no name. Give it one.")
        _reject_duplicate_names(self.brokers)
        for broker in self.brokers:
            sized = 1 <= len(broker) <= MAX_NAME_LENGTH
            if not sized or broker != broker.strip() or not broker.isprintable():
                raise OverlayError(
                    f"bad broker name {broker[:MAX_NAME_LENGTH]!r}. Use 1 to {MAX_NAME_LENGTH} printable "
                    "characters without spaces at the ends."
                )
        if not len(self.ends) == len(self.price) == len(self.latency_ms):
            raise OverlayError(
                f"{len(self.ends)} links, {len(self.price)} prices and {len(self.latency_ms)} latencies. "
                "Give one row of each per link."
            )
        if len(self.sites) != len(self.brokers):
            raise OverlayError(f"{len(self.sites)} sites for {len(self.brokers)} brokers. Give one each.")
        for broker, site in zip(self.brokers, self.sites, strict=True):
            _check_site(broker, site)
        if self.underlay is not None and len(self.underlay.attachment) != len(self.brokers):
            raise OverlayError(
                f"the underlay attaches {len(self.underlay.attachment)} brokers, the overlay has "
                f"{len(self.brokers)}. Attach each broker to one router."
            )
        self._validate_links()

    def _validate_links(self) -> None:
        low, high = self.ends.min(axis=1), self.ends.max(axis=1)
        outside = (low < 0) | (high >= len(self))
        if outside.any():
            row = int(np.argmax(outside))
            raise OverlayError(
                f"link {row} ends at broker index {int(low[row])} or {int(high[row])}, outside "
                f"0..{len(self) - 1}. Use indices of the brokers."
            )
        self._reject(low == high, "{} joins a broker to itself. Remove it.")
        order = np.lexsort((high, low))
        again = np.zeros(len(low), dtype=bool)
        again[order[1:]] = (np.diff(low[order]) == 0) & (np.diff(high[order]) == 0)
        self._reject(again, "{} is given twice. Keep one of the parallel links, or sum their prices.")
        fair = np.isfinite(self.price) & (self.price >= 0)
        bad = ~(fair[:, 0] & fair[:, 1])
        self._reject(bad, "{} has a price that is negative or not a finite number. Use 0 or more per GB.")
        bad = ~(np.isfinite(self.latency_ms) & (self.latency_ms >= 0))
        self._reject(bad, "{} has a latency that is negative or not a finite number. Use 0 or more ms.")

    def _reject(self, bad: npt.NDArray[np.bool_], reason: str) -> None:
        if bad.any():
            a, b = self.ends[int(np.argmax(bad))].tolist()
            raise OverlayError(reason.format(f"link {self.brokers[a]} - {self.brokers[b]}"))


def _frozen(values: npt.ArrayLike, dtype: type[np.generic], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """A read-only copy in rows of the given form."""
    array = np.array(values, dtype=dtype).reshape(shape)
    array.setflags(write=False)
    return array


def _reject_duplicate_names(names: tuple[str, ...]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise OverlayError(f"broker {twice!r} is given twice. Names must be unique.")


def _check_site(broker: str, site: Site) -> None:
    for what, value, most in (("latitude", site.latitude, 90.0), ("longitude", site.longitude, 180.0)):
        if value is not None and not -most <= value <= most:
            raise OverlayError(f"broker {broker} has {what} {value}. Use degrees in -{most:g}..{most:g}.")
