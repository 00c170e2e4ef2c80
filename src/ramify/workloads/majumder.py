"""Localised keyword subscriptions and documents: Majumder et al., section VII-A.

Model      Subscriptions and documents are sets of keywords; a document reaches a subscription that
           shares any keyword with it. For each keyword a root broker is drawn, and among the `x_percent`
           of brokers closest to it (hops; ties to the broker listed first) at most `most_subscribers` at
           random subscribe to it. For each document a few nearby brokers are drawn, and some of the
           keywords that these subscribe to; its publisher is a broker drawn from all.
Data sets  Localized1, Localized2 and Uniform are `x_percent` = 2, 15 and 100.
Parameters keywords                 1,000 in the paper
           x_percent                size of a keyword's neighbourhood, in percent of the brokers
           most_subscribers         brokers that subscribe to a keyword, at most: 10
           per                      `broker`: one subscription per broker with all its keywords;
                                    `broker_keyword`: one per broker and keyword
           document_x_percent       size of a document's neighbourhood ("nearby"; not printed)
           document_brokers         brokers that a document takes its keywords from ("a small subset";
                                    not printed)
           document_keywords_low,
           document_keywords_high   keywords drawn for a document, evenly from this range (not printed)
           events                   10,000 documents
Arrays     keyword_root[k], keyword_brokers[k, j] (ascending), broker_keyword_count[b]
Departures The text allows both readings of `per`; both are here. It prints about 5 documents per
           keyword, but 10,000 documents over 1,000 keywords make at least 10 when none is empty: the
           parameters are explicit and `report` says what came out. The first of a document's brokers
           subscribes to something, so no document is empty. Keywords are drawn with replacement from
           the chosen brokers' lists laid end to end and repeats dropped, so a keyword that more of them
           share is likelier, and a document may have fewer than drawn.

Reference: A. Majumder, N. Shrivastava, R. Rastogi, A. Srinivasan, "Scalable Content-Based Routing in
Pub/Sub Systems".
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from ramify.content.events.events import AttributeType, EventSchema
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError
from ramify.network.graphs.overlay import Overlay
from ramify.workloads.nearness import closest_brokers, neighbourhood_size, require_brokers
from ramify.workloads.parameters import Params, choice, count, number
from ramify.workloads.workload import DrawnEvents, Workload, list_column, random_stream

__all__ = ["MajumderModel", "generate"]

NAME = "majumder"


@dataclass(frozen=True, slots=True, kw_only=True)
class MajumderModel(Params):
    """The parameters: see the module."""

    keywords: int = count(1_000, 1, 100_000)
    x_percent: float = number(2.0, 0, 100, above_low=True)
    most_subscribers: int = count(10)
    per: str = choice("broker", "broker", "broker_keyword")
    document_x_percent: float = number(2.0, 0, 100, above_low=True)
    document_brokers: int = count(3, 1, 100)
    document_keywords_low: int = count(1, 1, 100)
    document_keywords_high: int = count(3, 1, 100)

    def __post_init__(self) -> None:
        Params.__post_init__(self)
        if self.document_keywords_high < self.document_keywords_low:
            raise InputError(
                f"document_keywords_high = {self.document_keywords_high} is below document_keywords_low. "
                f"Allowed: {self.document_keywords_low} or more."
            )


def generate(overlay: Overlay, params: MajumderModel, seed: int) -> Workload:
    """The localised keyword workload of section VII-A."""
    require_brokers(overlay, 1, NAME)
    near_count = neighbourhood_size(len(overlay), params.document_x_percent)
    size = neighbourhood_size(len(overlay), params.x_percent)
    near = closest_brokers(overlay, max(near_count, size))
    root, members = _assign_keywords(near[:, :size], params, random_stream(seed, NAME, "keywords"))
    start, keyword = _keywords_by_broker(members, len(overlay))
    names = [f"k{i:0{len(str(params.keywords - 1))}d}" for i in range(params.keywords)]
    documents = _Documents(
        start=start,
        keyword=keyword,
        holder=np.flatnonzero(np.diff(start)),
        near=near[:, :near_count].copy(),
        brokers_per_document=params.document_brokers,
        low=params.document_keywords_low,
        high=params.document_keywords_high,
        names=tuple(names),
    )
    publishers = tuple(f"pub-{broker}" for broker in overlay.brokers)
    draft = Workload(
        name=NAME,
        params=params,
        seed=seed,
        schema=EventSchema({"keywords": AttributeType.STRINGS}),
        subscriptions=_subscriptions(overlay, names, start, keyword, params.per),
        attachments=dict(zip(publishers, overlay.brokers, strict=True))
        | {f"sub-{overlay.brokers[b]}": overlay.brokers[b] for b in documents.holder.tolist()},
        publishers=publishers,
        source=documents,
        arrays={
            "keyword_root": root,
            "keyword_brokers": members,
            "broker_keyword_count": np.diff(start),
        },
    )
    return replace(draft, report=_report(draft, members))


def _assign_keywords(
    near: npt.NDArray[np.int32], params: MajumderModel, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Root and subscribing brokers of each keyword."""
    root = rng.integers(len(near), size=params.keywords)
    size = near.shape[1]
    width = min(size, params.most_subscribers)
    members = np.empty((params.keywords, width), dtype=np.int32)
    for row, center in enumerate(root.tolist()):
        members[row] = np.sort(near[center, rng.choice(size, width, replace=False)])
    return root, members


def _keywords_by_broker(
    members: npt.NDArray[np.int32], brokers: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Compressed rows: broker `b` subscribes to `keyword[start[b]:start[b + 1]]`, ascending."""
    keyword = np.repeat(np.arange(len(members), dtype=np.int64), members.shape[1])
    broker = members.ravel()
    order = np.argsort(broker, kind="stable")
    start = np.concatenate(([0], np.cumsum(np.bincount(broker, minlength=brokers)))).astype(np.int64)
    return start, keyword[order]


def _subscriptions(
    overlay: Overlay,
    names: list[str],
    start: npt.NDArray[np.int64],
    keyword: npt.NDArray[np.int64],
    per: str,
) -> tuple[Subscription, ...]:
    rows = []
    for b, broker in enumerate(overlay.brokers):
        mine = tuple(names[k] for k in keyword[start[b] : start[b + 1]].tolist())
        client = f"sub-{broker}"
        if per == "broker_keyword":
            rows += [Subscription(f"{broker}/{name}", client, broker, keywords=(name,)) for name in mine]
        elif mine:
            rows.append(Subscription(broker, client, broker, keywords=mine))
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class _Documents:
    start: npt.NDArray[np.int64]
    keyword: npt.NDArray[np.int64]
    holder: npt.NDArray[np.int64]  # brokers that subscribe to anything
    near: npt.NDArray[np.int32]
    brokers_per_document: int
    low: int
    high: int
    names: tuple[str, ...]

    def draw(self, rng: np.random.Generator, count: int) -> DrawnEvents:
        publisher = rng.integers(len(self.near), size=count)
        chosen = self._nearby(rng, count)
        length = np.where(_repeated(chosen), 0, np.diff(self.start)[chosen])
        end = np.cumsum(length, axis=1)
        wanted = rng.integers(self.low, self.high + 1, size=count)
        picks = np.empty((count, self.high), dtype=np.int64)
        for column in range(self.high):
            at = rng.integers(end[:, -1])  # a place in the lists of the chosen brokers, end to end
            which = (at[:, None] >= end).sum(axis=1)
            row = np.arange(count)
            before = end[row, which] - length[row, which]
            picks[:, column] = self.keyword[self.start[chosen[row, which]] + at - before]
            picks[column >= wanted, column] = len(self.names)
        return DrawnEvents(publisher, {"keywords": list_column(self.names, picks)})

    def _nearby(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        """The brokers of each document: a center that subscribes to something, and others close to it."""
        center = self.holder[rng.integers(len(self.holder), size=count)]
        others = rng.integers(self.near.shape[1], size=(count, self.brokers_per_document - 1))
        return np.column_stack((center, self.near[center[:, None], others])).astype(np.int64)


def _repeated(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Where a row holds a value that it held further left."""
    again = np.zeros(rows.shape, dtype=np.bool_)
    for column in range(1, rows.shape[1]):
        again[:, column] = (rows[:, :column] == rows[:, column, None]).any(axis=1)
    return again


def _report(draft: Workload, members: npt.NDArray[np.int32]) -> dict[str, float]:
    assert isinstance(draft.params, MajumderModel)
    sample = draft.sample()
    lengths = pc.list_value_length(sample.column("keywords")).to_numpy(zero_copy_only=False)
    assigned = float(lengths.sum()) * draft.event_count / sample.num_rows
    holders = float(np.count_nonzero(draft.arrays["broker_keyword_count"]))
    return {
        "documents": float(draft.event_count),
        "documents_paper": 10_000.0,
        "keywords": float(len(members)),
        "keywords_paper": 1_000.0,
        "subscribers_per_keyword": float(members.shape[1]),
        "subscribers_per_keyword_paper": 10.0,
        "documents_per_keyword": assigned / len(members),
        "documents_per_keyword_paper": 5.0,
        "keywords_per_document": float(lengths.mean()),
        "keywords_per_subscribing_broker": members.size / holders,
        "subscribing_brokers": holders,
        "subscriptions": float(len(draft.subscriptions)),
    }
