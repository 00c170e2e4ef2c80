"""Which window an event falls in, and whether it is in the sample: by a hash of its id.

Owns the one rule by which a log is split and thinned. An event's place depends on its id and the seed
alone: the same whatever file, order, partition or machine it is read by, and again next time.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ramify.errors import InputError

__all__ = ["WHOLE", "Split", "text_hashes"]

_SAMPLE_SALT = 0x9E3779B97F4A7C15
_TO_UNIT = 2.0**-53


@dataclass(frozen=True, slots=True)
class Split:
    """Shares of the windows (they sum to 1), the share of events that is kept at all, and a seed."""

    shares: tuple[float, ...] = (1.0,)
    keep: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.shares or min(self.shares) < 0 or abs(sum(self.shares) - 1) > 1e-9:
            raise InputError(f"shares = {self.shares}. Allowed: numbers from 0 that sum to 1.")
        if not 0 < self.keep <= 1:
            raise InputError(f"keep = {self.keep}. Allowed: above 0, at most 1: the share of events kept.")
        if self.seed < 0:
            raise InputError(f"seed = {self.seed}. Allowed: a whole number from 0.")

    def windows(self, ids: Any) -> npt.NDArray[np.int64]:
        """The window of each event, by a column of ids."""
        if len(self.shares) == 1:
            return np.zeros(len(ids), dtype=np.int64)
        cuts = np.cumsum(self.shares)[:-1]
        return np.searchsorted(cuts, _units(text_hashes(ids, self.seed)), side="right").astype(np.int64)

    def kept(self, ids: Any) -> npt.NDArray[np.bool_] | None:
        """Which events are in the sample; None when all are."""
        if self.keep == 1:
            return None
        kept: npt.NDArray[np.bool_] = _units(text_hashes(ids, self.seed ^ _SAMPLE_SALT)) < self.keep
        return kept


WHOLE = Split()
"""Everything, in one window."""


def text_hashes(column: Any, seed: int = 0) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of every text of a column (null counts as empty), no Python per row."""
    texts = column.cast(pa.string()) if column.type != pa.string() else column
    texts = texts.fill_null("") if texts.null_count else texts
    out = np.empty(len(texts), dtype=np.uint64)
    if not len(texts):
        return out
    # here, since most tasks on Spark have a split at hand and hash nothing: numba is half a second
    from ramify.planning.demand.pattern_kernels import hash_texts

    _, offsets, data = texts.buffers()
    where = np.frombuffer(offsets, dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    text = np.frombuffer(b"" if data is None else data, dtype=np.uint8)  # read-only, as `where` is
    salt = np.uint64((seed * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) % 2**64)
    hash_texts(where, text, salt, out)
    return out


def _units(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Hashes as numbers in [0, 1)."""
    return (hashes >> np.uint64(11)).astype(np.float64) * _TO_UNIT
