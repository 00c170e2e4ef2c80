"""The string tests of an index: numbered, with the literals by which a row knows most of them to be false.

Owns the arrays that `literal_kernels` reads. A test on a column has one number, however many filters ask
it, so that it is evaluated once for all of them. Tests and literals are added in place; those that no
filter asks any more leave when the index is swept.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramify.content.filters.strings import (
    ANY_CHARACTERS,
    StringTest,
    TestKind,
    glob_of,
    has_case,
    literal_pieces,
)
from ramify.content.matching.arrays import GrowingArray
from ramify.content.matching.literal_kernels import LITERAL_WORDS, SCAN_WORDS, place_literals
from ramify.content.matching.postings import HAS_LITERAL, hash_bytes

__all__ = ["StringTestStore", "literal_of"]

_CASELESS = frozenset(
    {TestKind.NOCASE, TestKind.NOCASE_PREFIX, TestKind.NOCASE_SUFFIX, TestKind.NOCASE_GLOB}
)
# Bits of the bitmap for each literal that a column has room for; and in all, as many as a hash has.
_BITS = 32
_MOST_BITS = 1 << 24
# Counters of grams for each list.
_COUNTERS = 4


def literal_of(test: StringTest) -> bytes | None:
    """The longest text that every string has which passes the test, but for the case of ASCII letters."""
    if test.kind in (TestKind.CIDR4, TestKind.CIDR6):
        return None
    codes: Sequence[int] = glob_of(test)
    if test.kind in _CASELESS:
        # beyond ASCII, a letter with another case has other bytes there
        codes = [ANY_CHARACTERS if c >= 128 and has_case(c) else c for c in codes]
    pieces = ["".join(map(chr, piece)).encode() for piece in literal_pieces(codes)]
    return max(pieces, key=len, default=None)


class StringTestStore:
    """The tests and literals of an index. See the module."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, StringTest], int] = {}
        self._uses: Counter[int] = Counter()
        self._free: list[int] = []
        self._heads = GrowingArray(np.int64)
        self._codes = GrowingArray(np.int64)
        # the literals of each column as they are compared, by number; and which columns fold case
        self._literal_numbers: dict[tuple[int, bytes], int] = {}
        self._folded: set[int] = set()
        self._literals = GrowingArray(np.int64)
        self._literal_bytes = GrowingArray(np.uint8)
        # how many literals of a column there are, for how many there are lists, how many are in lists
        self._held: Counter[int] = Counter()
        self._room: Counter[int] = Counter()
        self._placed = 0
        self._scans: NDArray[np.int64] = np.zeros(0, np.int64)
        self._grams: NDArray[np.int32] = np.zeros(0, np.int32)
        self._bits: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._counts: NDArray[np.int32] = np.zeros(_COUNTERS, np.int32)

    def ask(self, column: int, test: StringTest) -> int:
        """The number of a test on a column, for one more use of it."""
        number = self._numbers.get((column, test))
        if number is None:
            number = self._free.pop() if self._free else self._heads.extend([0, -1]) // 2
            self._numbers[column, test] = number
            if test.kind in _CASELESS and column not in self._folded:
                self._folded.add(column)
                self._describe_again()
            else:
                self._describe(number, column, test)
        self._uses[number] += 1
        return number

    def release(self, numbers: Iterable[int]) -> None:
        """Give back one use of each. What is not used leaves with the next `sweep`."""
        self._uses.subtract(numbers)

    def sweep(self) -> None:
        """Forget the tests that have no use, and the literals that only they have."""
        for key, number in list(self._numbers.items()):
            if self._uses[number] <= 0:
                del self._numbers[key]
                del self._uses[number]
                self._free.append(number)
        used = max(self._numbers.values(), default=-1) + 1
        self._heads.replace(self._heads.used[: 2 * used])
        self._free = [number for number in self._free if number < used]
        self._folded = {column for column, test in self._numbers if test.kind in _CASELESS}
        self._describe_again()

    def arrays(self, columns: int, spare: bool) -> Iterator[NDArray[Any]]:
        """What the kernels read of the tests, in the order of `program.Index`."""
        self._place(columns)
        heads, codes, literals, text = (
            array.data if spare else array.used
            for array in (self._heads, self._codes, self._literals, self._literal_bytes)
        )
        yield from (heads, codes, literals, text, self._grams, self._bits, self._scans)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, room behind their ends included."""
        growing = (self._heads, self._codes, self._literals, self._literal_bytes)
        fixed = (self._scans, self._grams, self._bits, self._counts)
        return sum(part.data.nbytes for part in growing) + sum(part.nbytes for part in fixed)

    def _describe_again(self) -> None:
        """Describe all tests anew: literals of a column that folds case now are others."""
        self._codes.replace(np.zeros(0, np.int64))
        self._literals.replace(np.zeros(0, np.int64))
        self._literal_bytes.replace(np.zeros(0, np.uint8))
        self._literal_numbers.clear()
        self._held.clear()
        for (column, test), number in self._numbers.items():
            self._describe(number, column, test)
        self._room.clear()
        if not self._held:
            self._make_room()

    def _describe(self, number: int, column: int, test: StringTest) -> None:
        text = literal_of(test)
        literal = -1
        if text is not None:
            folded = column in self._folded
            literal = 2 * self._literal(column, text.lower() if folded else text)
            contains = glob_of(test) == (ANY_CHARACTERS, *map(ord, text.decode()), ANY_CHARACTERS)
            # with case, the scan of a column that folds it says nothing about case
            literal += contains and (test.kind in _CASELESS or not folded or text.lower() == text.upper())
        codes = np.array([code % 2**64 for code in test.codes], np.uint64).astype(np.int64)
        at = self._codes.extend([int(test.kind), len(codes)])
        self._codes.extend(codes)
        self._heads.data[2 * number : 2 * number + 2] = at, literal

    def _literal(self, column: int, text: bytes) -> int:
        number = self._literal_numbers.setdefault((column, text), len(self._literal_numbers))
        if number * LITERAL_WORDS == self._literals.size:
            at = self._literal_bytes.extend(np.frombuffer(text, np.uint8))
            h = hash_bytes(column, HAS_LITERAL, np.frombuffer(text.lower(), np.uint8))
            self._held[column] += 1
            self._literals.extend([-1, at, len(text), 0, column, 0, np.uint64(h).astype(np.int64), 0])
        return number

    def _place(self, columns: int) -> None:
        """Put the literals that came since into their lists, or all of them where there is no room."""
        count = len(self._literal_numbers)
        if len(self._scans) != columns * SCAN_WORDS:
            scans = np.zeros(columns * SCAN_WORDS, np.int64)
            kept = min(len(scans), len(self._scans))
            scans[:kept] = self._scans[:kept]
            self._scans = scans
        if any(held > self._room[column] for column, held in self._held.items()):
            self._make_room()
        place_literals(
            self._placed,
            count,
            self._literals.data,
            self._literal_bytes.data,
            self._scans,
            self._grams,
            self._bits,
            self._counts,
        )
        self._placed = count

    def _make_room(self) -> None:
        """Empty lists and bitmaps, for up to twice as many literals as each column has now."""
        self._scans[:] = 0
        self._room = Counter({column: 1 << held.bit_length() for column, held in self._held.items()})
        lists = bits = 0
        for column, room in sorted(self._room.items()):
            most = min(_MOST_BITS, _BITS * room)
            self._scans[column * SCAN_WORDS :][:SCAN_WORDS] = [
                0,
                column in self._folded,
                0,
                lists,
                room - 1,
                bits,
                most - 1,
                0,
            ]
            lists += room
            bits += most // 8
        self._grams = np.full(lists, -1, np.int32)
        self._bits = np.zeros(bits, np.uint8)
        self._counts = np.zeros(_COUNTERS << lists.bit_length(), np.int32)
        self._placed = 0
