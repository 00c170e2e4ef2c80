"""Sets of brokers that must be joined: what Steiner trees, tree costs and bounds are computed for.

Owns the compressed form and its collapse to distinct sets. A set knows its root (the publisher's broker),
which matters where a link costs more one way than the other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

__all__ = ["TerminalSets"]


@dataclass(frozen=True, slots=True)
class TerminalSets:
    """Compressed rows of broker indices: set `i` is `node[start[i]:start[i + 1]]`.

    The first broker of a set is its root, the others ascend and none is there twice, so a set has at
    least one broker. `weight[i]` is what set `i` counts (events, bytes): not negative.
    """

    start: npt.NDArray[np.int64]
    node: npt.NDArray[np.int32]
    weight: npt.NDArray[np.float64]

    def __len__(self) -> int:
        """How many sets there are."""
        return len(self.start) - 1

    def __getitem__(self, i: int) -> npt.NDArray[np.int32]:
        """The brokers of one set, its root first."""
        return self.node[self.start[i] : self.start[i + 1]]

    @classmethod
    def of(cls, sets: Iterable[tuple[int, Iterable[int]]], weight: Sequence[float] | None = None) -> Self:
        """From (root, brokers) pairs, in any order and with repeats; the root may be among the brokers."""
        rows = [[root, *sorted(set(brokers) - {root})] for root, brokers in sets]
        start = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        node = np.array([broker for row in rows for broker in row], dtype=np.int32)
        return cls(
            start, node, np.ones(len(rows)) if weight is None else np.array(weight, dtype=np.float64)
        )

    def take(self, rows: npt.ArrayLike) -> Self:
        """The chosen sets, in the order given."""
        chosen = np.asarray(rows, dtype=np.int64)
        length = np.diff(self.start)[chosen]
        start = np.concatenate(([0], np.cumsum(length))).astype(np.int64)
        at = np.arange(int(start[-1])) + np.repeat(self.start[chosen] - start[:-1], length)
        return type(self)(start, self.node[at], self.weight[chosen])

    def distinct(self) -> tuple[Self, npt.NDArray[np.int64]]:
        """The distinct (root, brokers) by first appearance, weights summed, and where each set went."""
        seen: dict[bytes, int] = {}
        first: list[int] = []
        where = np.empty(len(self), dtype=np.int64)
        for i in range(len(self)):
            key = self[i].tobytes()
            at = seen.setdefault(key, len(seen))
            if at == len(first):
                first.append(i)
            where[i] = at
        summed = np.zeros(len(first))
        np.add.at(summed, where, self.weight)
        kept = self.take(first)
        return type(self)(kept.start, kept.node, summed), where
