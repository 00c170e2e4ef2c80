"""Where to file a box: the choice of features by which the matcher will find it.

Every predicate of a box offers features that an event must have (`encoding.access_paths`). Filing a box
costs time whenever an event has the chosen feature and the box then does not match, so the rarest is
best; and where even the rarest is common, two predicates' features together are rarer still. Rarity is
guessed: a feature is taken to be as frequent among events as among the filters that ask for it, a range
as frequent as the share of other ranges' ends that it covers. A wrong guess costs time, never a match.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from ramify.content.filters.filters import Box
from ramify.content.matching.encoding import Access, Feature, access_paths
from ramify.content.matching.index import IndexStore, Option, feature_hash, joint_hash
from ramify.content.matching.program import HAS_LITERAL

__all__ = ["choose_options"]

# A pair must be so much rarer than the best single feature, among at least so many boxes; it may have so
# many combinations, and all pairs together so many groups (each is a look-up or more per event).
_PAIR_GAIN = 3.0
_PAIR_BOXES = 64
_PAIR_HASHES = 32
_MOST_PAIR_GROUPS = 96


@dataclass(frozen=True, slots=True)
class _Offer:
    """What one predicate of a box offers: hashes, their classes, and the spans of a range."""

    column: int
    hashes: tuple[int, ...]
    classes: tuple[int, ...]
    spans: tuple[tuple[float, float], ...]
    # the chance of a feature that its own length speaks for: see `_literal_chance`
    least: float = 0.0
    # a row may have many literals: pairs of them would cost more than they save
    pairs: bool = True


def choose_options(boxes: Sequence[Box], store: IndexStore) -> list[Option | None]:
    """For each box, where to file it; None for a box that any event may match."""
    offers = [[_offer(access, store) for access in access_paths(box)] for box in boxes]
    asked: Counter[int] = Counter(h for own in offers for offer in own for h in offer.hashes)
    totals: Counter[int] = Counter(k for own in offers for offer in own for k in set(offer.classes))
    rated = [[(_chance(offer, store, asked, totals), offer) for offer in own] for own in offers]
    wishes = [_wish(own, store.boxes + len(boxes)) for own in rated]
    allowed = _allowed_groups(wishes, store)
    return [_settle(wish, own, allowed) for wish, own in zip(wishes, rated, strict=True)]


def _offer(access: Access, store: IndexStore) -> _Offer:
    column = store.column_of(access.path)
    if access.spans:
        store.remember_ends(access)
    return _Offer(
        column,
        tuple(feature_hash(column, feature) for feature in access.features),
        tuple(store.class_of(column, feature) for feature in access.features),
        tuple(access.spans),
        sum(_literal_chance(feature) for feature in access.features),
        all(feature.kind != HAS_LITERAL for feature in access.features),
    )


def _literal_chance(feature: Feature) -> float:
    """What to expect of a literal that no other filter asks for: a short one occurs in many texts."""
    if feature.kind != HAS_LITERAL or not isinstance(feature.data, bytes):
        return 0.0
    return float(0.5 ** len(feature.data))


def _chance(offer: _Offer, store: IndexStore, asked: Counter[int], totals: Counter[int]) -> float:
    """The guessed chance that an event has one of the offered features."""
    if not offer.hashes:
        return 1.0
    if offer.spans:
        return store.share(offer.column, offer.spans)
    shares = sum(
        (asked[h] + store.filed_under(h)) / (totals[k] + store.class_filed[k] + 1)
        for h, k in zip(offer.hashes, offer.classes, strict=True)
    )
    return min(1.0, max(shares, offer.least))


_RatedOffers = list[tuple[float, _Offer]]


def _wish(rated: _RatedOffers, boxes: int) -> Option | None:
    """The best option of a box, pairs included."""
    if not rated:
        return None
    best = _single(rated)
    if boxes < _PAIR_BOXES or not best.hashes:
        return best
    pairs = min(_pairs(rated), key=lambda pair: pair[0], default=None)
    if pairs is None or pairs[0] * _PAIR_GAIN > best.chance:
        return best
    chance, one, other = pairs
    return _pair_option(chance, one, other)


def _single(rated: _RatedOffers) -> Option:
    chance, offer = min(rated, key=lambda r: r[0])
    return Option(offer.column, offer.hashes, tuple((k,) for k in offer.classes), chance)


def _pairs(rated: _RatedOffers) -> Iterator[tuple[float, _Offer, _Offer]]:
    with_features = [(chance, offer) for chance, offer in rated if offer.hashes and offer.pairs]
    for (a, one), (b, other) in combinations(with_features, 2):
        if len(one.hashes) * len(other.hashes) <= _PAIR_HASHES:
            yield a * b, one, other


def _pair_option(chance: float, one: _Offer, other: _Offer) -> Option:
    hashes, classes = [], []
    for h, k in zip(one.hashes, one.classes, strict=True):
        for h2, k2 in zip(other.hashes, other.classes, strict=True):
            # one order for each pair of classes, so that it is one group
            first, second = ((h, k), (h2, k2)) if k <= k2 else ((h2, k2), (h, k))
            hashes.append(joint_hash(first[0], second[0]))
            classes.append((first[1], second[1]))
    return Option(one.column, tuple(hashes), tuple(classes), chance)


def _allowed_groups(wishes: Sequence[Option | None], store: IndexStore) -> set[tuple[int, ...]]:
    """The pair groups that may be used: those in use, then the most wished for, up to the limit."""
    allowed = {group for group in store.groups if len(group) > 1}
    counts = Counter(
        group for wish in wishes if wish is not None for group in set(wish.classes) if len(group) > 1
    )
    for group, _ in counts.most_common():
        if len(allowed) >= _MOST_PAIR_GROUPS:
            break
        allowed.add(group)
    return allowed


def _settle(wish: Option | None, rated: _RatedOffers, allowed: set[tuple[int, ...]]) -> Option | None:
    """The wish, or the best single feature when the wish's groups are not to be had."""
    if wish is None or all(len(group) == 1 or group in allowed for group in wish.classes):
        return wish
    return _single(rated)
