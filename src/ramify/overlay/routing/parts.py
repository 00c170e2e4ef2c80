"""The filters and the members of classes as a broker keeps them: compiled, in arrays, with changes beside.

Both are values: a change makes a new one that shares what is alike.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ramify.content.filters.filters import Filter
from ramify.content.matching.matcher import FrozenMatcher, Matcher, Matches
from ramify.errors import InputError
from ramify.planning.demand.classes import Classes

__all__ = ["ClassFilters", "Members"]

Longs = npt.NDArray[np.int64]


class _Later:
    """Filters that came later, the first for class `first`. It only grows; revisions share it."""

    def __init__(self, filters: Iterable[Filter] = ()) -> None:
        self.filters = list(filters)
        self.matcher = Matcher(self.filters)

    def grow(self, filters: Sequence[Filter]) -> None:
        self.filters += filters
        self.matcher.extend(filters)


class ClassFilters:
    """The compiled filters of all classes. Ids are class ids.

    Those that came after the main ones were compiled have an index of their own: a batch is matched
    against both, so that a new filter costs what it costs alone.
    """

    def __init__(
        self, main: Matcher | FrozenMatcher, first: int, later: _Later | None = None, count: int = 0
    ) -> None:
        self.main = main
        self._first = first
        self._later = later
        # of the later ones those that this one knows: others may have been added for another revision
        self._count = count

    @classmethod
    def of(cls, classes: Classes) -> "ClassFilters":
        """The filters of classes, compiled here."""
        return cls(Matcher(classes.filters), len(classes))

    def match(self, batch: pa.RecordBatch) -> Matches:
        """The classes whose filter each row matches, ascending."""
        found = self.main.match(batch)
        if not self._count or self._later is None:
            return found
        return _joined(found, self._later.matcher.match(batch), self._first, self._count)

    def extended(self, filters: Sequence[Filter]) -> "ClassFilters":
        """With the filters of the next classes."""
        if not filters:
            return self
        later = self._later
        if later is None or len(later.filters) != self._count:
            # none yet, or another revision of the same plan went its own way
            later = _Later([] if later is None else later.filters[: self._count])
        later.grow(filters)
        return ClassFilters(self.main, self._first, later, self._count + len(filters))


def _joined(main: Matches, later: Matches, first: int, count: int) -> Matches:
    """Per row the ids of both; the later ones are `first`, `first + 1`, ... and come after all others."""
    known = later.ids < count
    rows, ids = later.rows[known], later.ids[known] + first
    many, more = np.diff(main.ends), np.bincount(rows, minlength=len(main))
    ends = np.concatenate(([0], np.cumsum(many + more))).astype(np.int64)
    out = np.empty(ends[-1], dtype=main.ids.dtype)
    out[np.arange(len(main.ids)) + np.repeat(ends[:-1] - main.ends[:-1], many)] = main.ids
    place = np.arange(len(ids)) - (np.cumsum(more) - more)[rows]
    out[ends[:-1][rows] + many[rows] + place] = ids
    return Matches(ends, out)


class Members:
    """The subscriptions of each class: ids and clients in arrays, and what is different since."""

    def __init__(
        self,
        start: Longs,
        ids: pa.StringArray,
        client: npt.NDArray[np.int32],
        clients: pa.StringArray,
        changed: Mapping[int, tuple[tuple[str, str], ...]] | None = None,
        placed: Mapping[str, int] | None = None,
    ) -> None:
        """Class k has rows `start[k]` to `start[k + 1] - 1`, unless it is in `changed`.

        `client` are indices of `clients`. `placed` has the class of ids that came or went since; -1: none.
        """
        self.start, self.ids, self.client, self.clients = start, ids, client, clients
        self._changed = changed or {}
        self._placed = placed or {}

    @classmethod
    def of(cls, classes: Classes) -> "Members":
        """From subscriptions."""
        start = np.cumsum([0, *(len(group) for group in classes.members)], dtype=np.int64)
        ids = pa.array([row.id for group in classes.members for row in group], pa.string())
        number: dict[str, int] = {}
        names = (row.client for group in classes.members for row in group)
        client = np.fromiter((number.setdefault(name, len(number)) for name in names), np.int32, len(ids))
        return cls(start, ids, client, pa.array(list(number), pa.string()))

    def of_class(self, k: int) -> tuple[tuple[str, str], ...]:
        """The members of a class: id and client of each."""
        if k in self._changed:
            return self._changed[k]
        return self._first_of_class(k)

    def class_of(self, id_: str) -> int | None:
        """The class of a subscription. O(subscriptions), compiled."""
        if id_ in self._placed:
            k = self._placed[id_]
            return None if k < 0 else k
        row = pc.index(self.ids, pa.scalar(id_, pa.string())).as_py()
        return None if row < 0 else int(np.searchsorted(self.start, row, side="right")) - 1

    def clients_of(self, classes: Longs) -> set[str]:
        """The clients of these classes."""
        mine = np.zeros(len(self.start) - 1, dtype=np.bool_)
        mine[classes[classes < len(mine)]] = True
        mine[[k for k in self._changed if k < len(mine)]] = False
        rows = np.repeat(mine, np.diff(self.start))
        asked = set(classes.tolist())
        late = {name for k, group in self._changed.items() if k in asked for _, name in group}
        return {str(self.clients[i]) for i in np.unique(self.client[rows]).tolist()} | late

    def changing(self) -> "ChangingMembers":
        """To make changes to."""
        return ChangingMembers(self, dict(self._changed), dict(self._placed))

    def with_changes(
        self, changed: Mapping[int, tuple[tuple[str, str], ...]], placed: Mapping[str, int]
    ) -> "Members":
        """The same arrays with other changes."""
        return Members(self.start, self.ids, self.client, self.clients, changed, placed)

    def _first_of_class(self, k: int) -> tuple[tuple[str, str], ...]:
        if k >= len(self.start) - 1:
            return ()
        rows = range(int(self.start[k]), int(self.start[k + 1]))
        return tuple((self.ids[i].as_py(), self.clients[int(self.client[i])].as_py()) for i in rows)


class ChangingMembers:
    """Members while changes are made; `touched` are the classes that they touch."""

    def __init__(
        self, old: Members, changed: dict[int, tuple[tuple[str, str], ...]], placed: dict[str, int]
    ) -> None:
        self._old, self._changed, self._placed = old, changed, placed
        self.touched: set[int] = set()

    def add(self, k: int, id_: str, client: str) -> None:
        """Put a subscription into a class. `InputError` for an id that exists."""
        now = self.changed()
        if now.class_of(id_) is not None:
            raise InputError(f"subscription {id_!r} exists already. Delete it first, or use another id.")
        self._put(k, (*now.of_class(k), (id_, client)))
        self._placed[id_] = k

    def remove(self, id_: str) -> None:
        """Take a subscription out. `InputError` for an id that does not exist."""
        now = self.changed()
        k = now.class_of(id_)
        if k is None:
            raise InputError(f"there is no subscription {id_!r}. Check its id.")
        self._put(k, tuple(member for member in now.of_class(k) if member[0] != id_))
        self._placed[id_] = -1

    def changed(self) -> Members:
        """The members as they are now; further changes show in it."""
        return self._old.with_changes(self._changed, self._placed)

    def _put(self, k: int, members: tuple[tuple[str, str], ...]) -> None:
        self._changed[k] = members
        self.touched.add(k)
