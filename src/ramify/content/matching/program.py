"""What the matcher's kernels read: the words of a box's program, features, and the arrays of an index.

Layout of a box's program, in int64 words (strings as packed UTF-8 bytes):

    box      [owner * 2^16 + predicates, predicate...]        negative: removed
    predicate[op + flags * 2^8 + words * 2^16 + column * 2^40, operand...]
      NUMBER   low high                   closed bounds, as `ordered` doubles
      EQUAL    length bytes...            the string itself
      PREFIX   length bytes...
      ONE_OF   count stride (hash and length, bytes..., padded to stride)...   a few strings
      SET      set
      GENERAL  absent null scalars? set  arrays? some set... none set...
      TESTS    literals                   strings of which only tests are asked
      JOINT    parts (column at)... predicate...   at: of a part's predicate, from the JOINT on; 0: absent
    set      [words, numbers, (flo fhi ilo ihi)..., times, (lo hi)..., mask of false, true and null,
              strings, at..., (lo length bytes... hi length bytes...)..., literals, length]
    literals [groups, (wanted, tests, test...)...]     a group: whether any of its tests holds

`flags` say what may satisfy the predicate: a scalar (SCALAR), an array by any of its elements (ARRAY), an
explicit null (EXPLICIT_NULL). GENERAL is everything else. JOINT asks that its parts hold together
(`filters.joints`); where no value of the row has a place, it says nothing more than the predicates of the
box, unless it is marked ALWAYS. Doubles are compared as integers of the same order (`ordered`). A program
has no pointers, so boxes can be moved freely, and it is short, since the time to match among many boxes is
the time to fetch their programs from memory.

String tests go by number; `literal_kernels` describes them, finds the literals of all of them in one pass
over a string, and evaluates each at most once per string.

A row's values have *features*: a string equals something, has prefixes, suffixes and literals; a number
equals something and lies in one dyadic interval per level. Each feature belongs to a class (column, kind,
length or level) and has a hash. A *group* is a class, or a pair of classes, under whose hashes boxes are
filed; a row looks up its own hashes, group by group.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ramify.content.matching.postings import EQUAL, EQUALS, HAS_LITERAL, HAS_SUFFIX, ONE_OF

__all__ = [
    "ALWAYS",
    "ARRAY",
    "BOOLEAN_IS",
    "EQUAL",
    "EQUALS",
    "EQUALS_NOCASE",
    "EXPLICIT_NULL",
    "GENERAL",
    "HAS_LITERAL",
    "HAS_PREFIX",
    "HAS_SUFFIX",
    "JOINT",
    "LIST",
    "LONGEST_KEY",
    "NUMBER",
    "NUMBER_IN",
    "NUMBER_IS",
    "ONE_OF",
    "PREFIX",
    "SCALAR",
    "SET",
    "TESTS",
    "TIME_IN",
    "TIME_IS",
    "WANTED",
    "Index",
]

NUMBER, PREFIX, TESTS, SET, GENERAL, JOINT = 1, 3, 5, 6, 7, 8  # beside EQUAL and ONE_OF
# flags of a predicate: what may satisfy it; of a JOINT: whether it must hold, whether it always says more
SCALAR, ARRAY, EXPLICIT_NULL = 1, 2, 4
WANTED, ALWAYS = 1, 2
# kinds of feature; prefixes sort first, as `kernels.string_features` wants them
HAS_PREFIX, EQUALS_NOCASE = 1, 4  # beside EQUALS, HAS_SUFFIX and HAS_LITERAL
NUMBER_IS, TIME_IS, BOOLEAN_IS, NUMBER_IN, TIME_IN = 5, 6, 7, 8, 9
LONGEST_KEY = 63
LIST = 3
"""The state of a present list in a row; 0, 1 and 2 are those of `Columns.state`."""


class Index(NamedTuple):
    """The compiled filters. Heads are posting numbers, or -1; a posting is (next, where a box begins)."""

    words: NDArray[np.int64]  # the programs of all boxes
    bytes: NDArray[np.uint8]  # the same memory
    # pairs that are read together stand together: one cache miss instead of two
    postings: NDArray[np.int32]  # [2 k] the next posting or -1, [2 k + 1] where the box begins, ~: sure
    table: NDArray[np.int64]  # [2 k] a hash, [2 k + 1] the head of its list; head -2: the slot is free
    # [0] head of the boxes that every row must try, [1 + c] of those to try when column c is present
    heads: NDArray[np.int32]
    class_start: NDArray[np.int64]  # [c + 1] the feature classes of a column, prefixes first, by length
    class_kind: NDArray[np.int64]  # [class]
    class_length: NDArray[np.int64]  # [class] bytes of a prefix or suffix, level of an interval
    group_a: NDArray[np.int64]  # [group] a class
    group_b: NDArray[np.int64]  # [group] a second class, or -1
    # string tests and their literals: see `literal_kernels`
    test_heads: NDArray[np.int64]
    test_codes: NDArray[np.int64]
    literals: NDArray[np.int64]
    literal_bytes: NDArray[np.uint8]
    grams: NDArray[np.int32]
    gram_bits: NDArray[np.uint8]
    scans: NDArray[np.int64]
