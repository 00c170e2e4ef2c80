"""Arrays that grow at their end: what the matcher's index is kept in."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["GrowingArray"]


class GrowingArray:
    """A numpy array with room behind its end. Growth is by half, so appending is amortised O(1)."""

    def __init__(self, dtype: Any) -> None:
        self.data: NDArray[Any] = np.zeros(0, dtype)
        self.size = 0

    def reserve(self, size: int) -> None:
        """Make room for `size` entries in all. The first lot gets an eighth more than it needs."""
        if size > len(self.data):
            room = size + size // 8 + 8 if self.size == 0 else max(size, len(self.data) * 3 // 2)
            bigger = np.zeros(room, self.data.dtype)
            bigger[: self.size] = self.data[: self.size]
            self.data = bigger

    def extend(self, values: Any) -> int:
        """Append; returns where the values begin."""
        at = self.size
        self.reserve(at + len(values))
        self.data[at : at + len(values)] = values
        self.size = at + len(values)
        return at

    def replace(self, values: NDArray[Any]) -> None:
        """Take these values instead."""
        self.data, self.size = np.zeros(0, self.data.dtype), 0
        self.extend(values)

    @property
    def used(self) -> NDArray[Any]:
        """The entries in use, as a view."""
        return self.data[: self.size]
