"""Several coordinators, each with a share of the attributes: who keeps what. Pure.

Owns the rule that gives every attribute an owner among the coordinators that are there, and a `Share`: the
subscriptions that one coordinator keeps because their filter looks at an attribute of its own. One without
attributes (everything, or nothing) is kept by all.

Guarantee  All who see the same coordinators name the same owner. When one leaves, only its attributes
           change hands; when one comes, it gets some and nobody else does.
Cost       A hash per attribute and coordinator. A share parses each filter once, and holds the text of all
           subscriptions but the filters of its own alone.

A share may be behind, or made with other coordinators in mind. So what it says is a hint: it may narrow
where a decision looks, and never is the decision (the hook `join` of a scheme compares filters itself).

Reference: O. Papaemmanouil, U. Cetintemel, "SemCast", section 3.2.5. Departure: how attributes are shared
is not said there; here by highest random weight.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from ramify.content.events.events import AttributeType
from ramify.content.filters.filters import Filter
from ramify.errors import InputError
from ramify.overlay.control.records import ClientRecord, FilterText
from ramify.overlay.control.registry import spelled, wanted_of

__all__ = ["Share", "ShareDifference", "compared", "covering", "owner", "owners"]


def owner(attribute: str, coordinators: Collection[str]) -> str:
    """Whose an attribute is. `InputError` where there is no coordinator."""
    if not coordinators:
        raise InputError(f"nobody can own attribute {attribute!r}: there is no coordinator. Start one.")
    return max(coordinators, key=lambda name: (_weight(name, attribute), name))


def owners(paths: Iterable[str], coordinators: Collection[str]) -> frozenset[str]:
    """Those responsible for a filter that looks at these attributes: all, for one that looks at none."""
    return frozenset(owner(path, coordinators) for path in paths) or frozenset(coordinators)


def _weight(name: str, attribute: str) -> bytes:
    # the length keeps (name, attribute) apart from others whose texts join to the same
    text = f"{len(name)}:{name}{attribute}".encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class _Kept:
    """A subscription of a share."""

    spelled: FilterText
    filter: Filter


class Share:
    """What one coordinator keeps of the clients' records, as long as the coordinators are the same.

    `like` is a share of before: filters that it has are not parsed again.
    """

    def __init__(
        self,
        name: str,
        coordinators: Collection[str],
        schema: Mapping[str, AttributeType],
        like: "Share | None" = None,
    ) -> None:
        self.name = name
        self.coordinators = frozenset({*coordinators, name})
        self.schema = dict(schema)
        self.revision = 0
        """The store's revision of the last record that was taken in."""
        self.unreadable: dict[str, str] = {}
        """Subscriptions whose filter cannot be read with the schema, and why. They are not kept."""
        self._like = like if like is not None and like.schema == self.schema else None
        self._kept: dict[str, _Kept] = {}
        self._records: dict[str, dict[str, FilterText]] = {}
        self._order: list[str] | None = None

    def __len__(self) -> int:
        """How many subscriptions it keeps."""
        return len(self._kept)

    def read(self, key: str, record: ClientRecord) -> dict[str, Filter | str]:
        """The filters of a record that are new to this share, or why one cannot be read.

        Changes nothing, so that it can be done beside what asks the share.
        """
        before, found = self._records.get(key, {}), dict[str, Filter | str]()
        for id_, row in wanted_of(record).items():
            text = spelled(row)
            if before.get(id_) == text:
                continue
            known = None if self._like is None else self._like._kept.get(id_)
            if known is not None and known.spelled == text:
                found[id_] = known.filter
                continue
            try:
                found[id_] = row.parse(self.schema)
            except InputError as error:
                found[id_] = str(error)
        return found

    def put(self, key: str, record: ClientRecord, found: Mapping[str, Filter | str]) -> None:
        """Take in a record as it is now. `found`: what `read` found in it."""
        before = self._records.get(key, {})
        now = {id_: spelled(row) for id_, row in wanted_of(record).items()}
        for id_ in before.keys() - {id_ for id_ in now if id_ not in found}:
            self._forget(id_)
        for id_, filter_ in found.items():
            if isinstance(filter_, str):
                self.unreadable[id_] = filter_
            elif self.name in owners(filter_.paths, self.coordinators):
                self._kept[id_] = _Kept(now[id_], filter_)
        self._records[key] = now
        self._order = None

    def drop(self, key: str) -> None:
        """A record is gone."""
        for id_ in self._records.pop(key, {}):
            self._forget(id_)
        self._order = None

    def _forget(self, id_: str) -> None:
        self._kept.pop(id_, None)
        self.unreadable.pop(id_, None)

    def filters(self) -> dict[str, Filter]:
        """The filter of each kept subscription. A copy."""
        return {id_: each.filter for id_, each in self._kept.items()}

    def page(self, after: str, most_bytes: int) -> tuple[dict[str, FilterText], bool]:
        """Kept subscriptions in the order of their ids, after one of them, and whether there are more.

        At least one, then as many as their texts have fewer than `most_bytes`, about.
        """
        if self._order is None:
            self._order = sorted(self._kept)
        at, size, found = bisect_right(self._order, after) if after else 0, 0, dict[str, FilterText]()
        for id_ in self._order[at:]:
            text = self._kept[id_].spelled
            # keywords and patterns: as Python writes them is near enough
            size += len(id_.encode()) + len(str(text).encode("utf-8", "replace")) + 16
            if found and size > most_bytes:
                return found, True
            found[id_] = text
        return found, False


def covering(filters: Mapping[str, Filter], wanted: Filter) -> list[str]:
    """The subscriptions whose filter covers another, in order. A comparison per distinct filter."""
    verdict: dict[bytes, bool] = {}
    for filter_ in filters.values():
        if filter_.key not in verdict:
            verdict[filter_.key] = filter_.paths <= wanted.paths and filter_.covers(wanted)
    return sorted(id_ for id_, filter_ in filters.items() if verdict[filter_.key])


@dataclass(frozen=True, slots=True)
class ShareDifference:
    """What a share has and the registry has not, and the reverse; by id."""

    lacking: tuple[str, ...]
    beyond: tuple[str, ...]


def compared(
    name: str,
    coordinators: Collection[str],
    kept: Mapping[str, FilterText],
    registry: Mapping[str, tuple[FilterText, frozenset[str]]],
) -> ShareDifference:
    """A share against the registry: id -> its filter's text and attributes. Another text is lacking.

    What is in the registry but not this coordinator's is not beyond: it may have another idea of who is
    there.
    """
    lacking = (
        id_
        for id_, (text, paths) in registry.items()
        if kept.get(id_) != text and (id_ in kept or name in owners(paths, coordinators))
    )
    return ShareDifference(tuple(sorted(lacking)), tuple(sorted(kept.keys() - registry.keys())))
