"""The underlay: the routers below an overlay, and the routes that its links take through them.

Owns the router graph, a price per direction on its links, where brokers are attached, and shortest routes
by latency. Link stress and resource usage are counted on its links when a plan is priced.

A broker hangs on its router by an access link. Underlay links are numbered: first the router links in
order, then one access link per broker, so broker `i` has the access link `len(ends) + i`.
"""

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ramify.errors import OverlayError
from ramify.network.graphs.kernels import (
    THREADS_FROM,
    Adjacency,
    adjacency,
    dijkstra,
    dijkstra_parallel,
    price_paths,
)

__all__ = ["Underlay"]


class Underlay:
    """An immutable router graph with brokers attached.

    Attributes
    ----------
    routers             how many
    ends                int32[k, 2], the routers of each router link
    latency_ms          float64[k], of the router links
    attachment          int32[n], the router of each broker
    access_latency_ms   float64[n], of the access links
    price               float64[k, 2], of the router links, per 10^9 bytes: column 0 is from `ends[:, 0]` to
                        `ends[:, 1]`, column 1 the other way. Default 1.
    access_price        float64[n, 2], of the access links: column 0 is broker to router, column 1 router to
                        broker. Default 0: a broker pays for the network, not for its own cable.

    A single number for a price counts for every link, both ways.
    """

    routers: int
    ends: npt.NDArray[np.int32]
    latency_ms: npt.NDArray[np.float64]
    attachment: npt.NDArray[np.int32]
    access_latency_ms: npt.NDArray[np.float64]
    price: npt.NDArray[np.float64]
    access_price: npt.NDArray[np.float64]

    def __init__(
        self,
        routers: int,
        ends: npt.ArrayLike,
        latency_ms: npt.ArrayLike,
        attachment: npt.ArrayLike,
        access_latency_ms: npt.ArrayLike = 1.0,
        *,
        price: npt.ArrayLike = 1.0,
        access_price: npt.ArrayLike = 0.0,
    ) -> None:
        self.routers = routers
        self.ends = np.array(ends, dtype=np.int32).reshape(-1, 2)
        self.latency_ms = np.array(latency_ms, dtype=np.float64)
        self.attachment = np.array(attachment, dtype=np.int32)
        access = np.broadcast_to(np.asarray(access_latency_ms, dtype=np.float64), self.attachment.shape)
        self.access_latency_ms = access.copy()
        self.price = _prices(price, len(self.ends), "router")
        self.access_price = _prices(access_price, len(self.attachment), "access")
        for array in self._parts():
            array.setflags(write=False)
        self._adjacency: Adjacency | None = None
        # One row per router that was asked for: distance and the link taken last. Grows with use.
        self._trees: dict[int, tuple[npt.NDArray[np.float64], npt.NDArray[np.int32]]] = {}
        self._validate()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Underlay):
            return NotImplemented
        return self.routers == other.routers and all(
            np.array_equal(mine, theirs) for mine, theirs in zip(self._parts(), other._parts(), strict=True)
        )

    def __hash__(self) -> int:
        return hash((self.routers, self.ends.tobytes(), self.attachment.tobytes()))

    def __repr__(self) -> str:
        return f"<Underlay: {self.routers} routers, {len(self.ends)} links, {len(self.attachment)} brokers>"

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the cached routes: they are quicker to find again than to ship.
        *positional, price, access_price = self._parts()
        return (partial(Underlay, price=price, access_price=access_price), (self.routers, *positional))

    @property
    def link_count(self) -> int:
        """Router links plus access links: the ids that `path` can hold are below this."""
        return len(self.ends) + len(self.attachment)

    @property
    def link_latency_ms(self) -> npt.NDArray[np.float64]:
        """The latency of every underlay link by id, access links included."""
        return np.concatenate((self.latency_ms, self.access_latency_ms))

    @property
    def link_price(self) -> npt.NDArray[np.float64]:
        """float64[link_count, 2]: the price of every underlay link by id and direction, access included."""
        return np.concatenate((self.price, self.access_price))

    def latency_between(self, a: int, b: int) -> float:
        """Milliseconds from broker `a` to broker `b`; inf when no route exists, 0 to itself."""
        if a == b:
            return 0.0
        distance, _ = self._tree(int(self.attachment[a]))
        access = self.access_latency_ms[a] + self.access_latency_ms[b]
        return float(distance[self.attachment[b]] + access)

    def latencies(self) -> npt.NDArray[np.float64]:
        """float64[n, n] of `latency_between`, not cached. O(r * k log routers), r attached routers."""
        used, position = np.unique(self.attachment, return_inverse=True)
        distance, _ = self._search(used.astype(np.int32))
        between = distance[position[:, None], self.attachment[None, :]]
        between += self.access_latency_ms[:, None] + self.access_latency_ms[None, :]
        np.fill_diagonal(between, 0.0)
        return between

    def path(self, a: int, b: int) -> npt.NDArray[np.int32]:
        """The ids of the underlay links from broker `a` to broker `b`, access links at the ends.

        A route of least latency, the same one every time, and the reverse of the route from `b` to `a`:
        it is always found from the lower of the two routers. Empty when `a == b`; an `OverlayError` when
        no route exists. The search from a router is cached.
        """
        if a == b:
            return np.empty(0, dtype=np.int32)
        here, there = int(self.attachment[a]), int(self.attachment[b])
        root, leaf = min(here, there), max(here, there)
        _, last = self._tree(root)
        taken: list[int] = []
        while leaf != root:
            link = int(last[leaf])
            if link < 0:
                raise OverlayError(
                    f"the underlay has no route between broker {a} and broker {b}. Join its parts."
                )
            taken.append(link)
            x, y = self.ends[link]
            leaf = int(x) if y == leaf else int(y)
        # The walk went from the higher router down to the lower one.
        if here == root:
            taken.reverse()
        access = len(self.ends)
        return np.array([access + a, *taken, access + b], dtype=np.int32)

    def routes_from(self, router: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int32]]:
        """float64[1, routers] and int32[1, routers]: least latencies from a router, and predecessors."""
        return self._search(np.array([router], dtype=np.int32))

    def route_prices(self, pairs: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        """float64[k, 2]: what 10^9 bytes cost on `path(a, b)` of each pair (a, b), there and back.

        The sum over the underlay links crossed, each in the direction travelled. O(r * k log routers) for
        r distinct lower routers. An `OverlayError` when a pair has no route.
        """
        router = self.attachment[pairs]
        root, leaf = router.min(axis=1), router.max(axis=1)
        between = np.zeros((len(pairs), 2))
        for source in np.unique(root).tolist():
            rows = np.flatnonzero(root == source)
            outward = self._prices_from(source)[leaf[rows]]
            # `path` runs along this tree whichever end asks: outward is there for one, back for the other.
            upside_down = router[rows, 0] != source
            between[rows] = np.where(upside_down[:, None], outward[:, ::-1], outward)
        if not np.isfinite(between).all():
            a, b = pairs[int(np.argmax(~np.isfinite(between[:, 0])))].tolist()
            raise OverlayError(
                f"the underlay has no route between broker {a} and broker {b}. Join its parts."
            )
        leave, arrive = self.access_price[pairs[:, 0]], self.access_price[pairs[:, 1]]
        between[:, 0] += leave[:, 0] + arrive[:, 1]
        between[:, 1] += arrive[:, 0] + leave[:, 1]
        return between

    def keep(self, brokers: npt.ArrayLike) -> "Underlay":
        """The same routers with only these brokers attached, renumbered in the order given."""
        kept = np.asarray(brokers, dtype=np.int64)
        return Underlay(
            self.routers,
            self.ends,
            self.latency_ms,
            self.attachment[kept],
            self.access_latency_ms[kept],
            price=self.price,
            access_price=self.access_price[kept],
        )

    def _parts(self) -> tuple[npt.NDArray[Any], ...]:
        """Every array, in the order of the constructor."""
        return (
            self.ends,
            self.latency_ms,
            self.attachment,
            self.access_latency_ms,
            self.price,
            self.access_price,
        )

    def _prices_from(self, router: int) -> npt.NDArray[np.float64]:
        """float64[routers, 2]: what the path from a router to each costs, outward and back; inf if none."""
        _, last = self._tree(router)
        prices = np.full((self.routers, 2), np.inf)
        prices[router] = 0.0
        price_paths(self.ends, self.price, last, prices, np.empty(self.routers, dtype=np.int32))
        return prices

    def _tree(self, router: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int32]]:
        if router not in self._trees:
            distance, predecessor = self._search(np.array([router], dtype=np.int32))
            self._trees[router] = (distance[0], self._links_to(predecessor[0]))
        return self._trees[router]

    def _links_to(self, predecessor: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """The link from each router's predecessor to it; -1 where there is none."""
        rows = self._rows()
        source = np.repeat(np.arange(self.routers, dtype=np.int32), np.diff(rows.start))
        taken = predecessor[rows.neighbor] == source
        last = np.full(self.routers, -1, dtype=np.int32)
        last[rows.neighbor[taken]] = rows.link[taken]
        return last

    def _rows(self) -> Adjacency:
        if self._adjacency is None:
            self._adjacency = adjacency(self.routers, self.ends)
        return self._adjacency

    def _search(
        self, sources: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int32]]:
        rows = self._rows()
        distance = np.empty((len(sources), self.routers))
        predecessor = np.empty((len(sources), self.routers), dtype=np.int32)
        search = dijkstra_parallel if len(sources) * len(rows.neighbor) > THREADS_FROM else dijkstra
        search(sources, rows.start, rows.neighbor, self.latency_ms[rows.link], distance, predecessor)
        return distance, predecessor

    def _validate(self) -> None:
        if len(self.latency_ms) != len(self.ends):
            raise OverlayError(
                f"underlay: {len(self.ends)} links and {len(self.latency_ms)} latencies. Give one of each."
            )
        for what, values in (("a link end", self.ends), ("a broker's router", self.attachment)):
            if values.size and not (values.min() >= 0 and values.max() < self.routers):
                raise OverlayError(
                    f"{what} of the underlay is outside 0..{self.routers - 1}. Use router numbers."
                )
        pairs = np.sort(self.ends, axis=1)
        if (pairs[:, 0] == pairs[:, 1]).any() or len(np.unique(pairs, axis=0)) < len(pairs):
            raise OverlayError(
                "the underlay has parallel links or joins a router to itself. Keep one link per pair."
            )
        for latency in (self.latency_ms, self.access_latency_ms):
            if not (np.isfinite(latency) & (latency >= 0)).all():
                raise OverlayError(
                    "an underlay latency is negative or not a finite number. Use 0 or more ms."
                )
        for price in (self.price, self.access_price):
            if not (np.isfinite(price) & (price >= 0)).all():
                raise OverlayError(
                    "an underlay price is negative or not a finite number. Use 0 or more per GB."
                )


def _prices(price: npt.ArrayLike, links: int, what: str) -> npt.NDArray[np.float64]:
    """A copy in one row per link; a single number fills it.

    Not `np.broadcast_to`: of two links, a pair of numbers could be a price per link or one per direction.
    """
    given = np.array(price, dtype=np.float64)
    if given.ndim == 0:
        return np.full((links, 2), given)
    if given.shape == (0,):
        given = given.reshape(0, 2)
    if given.shape != (links, 2):
        raise OverlayError(
            f"underlay: {links} {what} links and prices of shape {given.shape}. "
            "Give one number, or a row per link with a price for each direction."
        )
    return given
