"""numba's decorators with types, so that compiled kernels are checked like everything else.

numba ships no types; to a type checker these return the function they are given. Kernels live in
importable modules and are cached on disk beside them: compiling takes seconds, loading milliseconds.
"""

from typing import Any, Protocol, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Bytes",
    "Flag",
    "Hash",
    "Hashes",
    "Int",
    "Ints",
    "SmallInts",
    "compiled",
    "compiled_parallel",
    "inlined",
    "prange",
]

Ints = NDArray[np.int64]
SmallInts = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Hashes = NDArray[np.uint64]
Int = Any
"""int or np.int64, which numba mixes freely and mypy does not."""
Flag = Any
"""Likewise bool."""
Hash = Any
"""Likewise np.uint64."""

F = TypeVar("F")


class _Decorator(Protocol):
    def __call__(self, function: F, /) -> F: ...


compiled: _Decorator = numba.njit(cache=True, nogil=True)
"""Compile for one thread; other Python threads run meanwhile."""

compiled_parallel: _Decorator = numba.njit(cache=True, nogil=True, parallel=True)
"""Compile with `prange` loops spread over threads."""

inlined: _Decorator = numba.njit(cache=True, nogil=True, inline="always")
"""Compile into the caller. For small functions of inner loops: a call passes seven words per array."""

prange: type[range] = numba.prange
