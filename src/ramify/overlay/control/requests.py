"""What a request does to the record of its client. Pure.

Owns how ids are resolved, which requests are refused and why, and that the same request again is harmless.
The record is all that a request changes; plans follow records (`registry`).

An id x of client c names the subscription c/x; one that came with a plan keeps the id that it has there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from ramify.content.events.events import AttributeType
from ramify.content.filters.subscriptions import Subscription
from ramify.errors import FilterError, InputError, LimitError
from ramify.overlay.control.names import OPERATE, name_of
from ramify.overlay.control.records import (
    Advertisement,
    ClientRecord,
    ClientSubscription,
    DoneRequest,
    FilterText,
    ForwardedRequest,
    Refusal,
    Request,
    encode,
    subscription_of,
)

__all__ = [
    "MOST_HELD",
    "MOST_RECORD_BYTES",
    "RequestLimits",
    "RequestOutcome",
    "ask",
    "busy",
    "why_not_believed",
]

MOST_HELD = 10_000
"""Subscriptions, and advertisements, that one client may have."""

MOST_RECORD_BYTES = 4 << 20
"""What a client's record may have: it is stored as one value, and is the answer to `list`."""

LONGEST_ID = 256
LONGEST_REQUEST = 64
"""Characters of the name of a request."""

MOST_DONE = 128
"""Requests of a client that are remembered once they are done, and ids that it removed."""

MOST_NUMBER = 1 << 53


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What requests are held against.

    Attributes
    ----------
    brokers    those of the overlay
    schema     the attribute types that filters are read with
    attached   where plans say that clients are
    owner      the client of a subscription id; None when nobody has it
    removed    whether a client had this subscription or advertisement a while ago, beside what its record
               says
    most_bytes of a record that a request makes longer
    moving     client -> the broker that plans have begun to move it to; it may ask there too
    too_late   why the plan refuses a subscription for its latency bound; empty where it does not
    barred     the rules for which no plan may have a subscription, in words; empty where there are none
    """

    brokers: frozenset[str]
    schema: Mapping[str, AttributeType]
    attached: Mapping[str, str]
    owner: Callable[[str], str | None]
    removed: Callable[[str, str], bool] = lambda _client, _id: False
    most_bytes: int = MOST_RECORD_BYTES
    moving: Mapping[str, str] = field(default_factory=dict)
    too_late: Callable[[Subscription], str] = lambda _row: ""
    barred: Callable[[Subscription], str] = lambda _row: ""


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """The record afterwards, the subscriptions whose place in plans may change, and why it was refused."""

    record: ClientRecord
    ids: tuple[str, ...] = ()
    problem: Refusal | None = None


class _RefusedError(Exception):
    def __init__(self, code: str, reason: str, broker: str = "") -> None:
        self.problem = Refusal(code, reason, broker)


def ask(record: ClientRecord | None, passed: ForwardedRequest, rules: RequestLimits) -> RequestOutcome:
    """What a request does. Refused requests change nothing; none raises."""
    present = ClientRecord(passed.client, passed.broker) if record is None else record
    name = passed.request.request
    try:
        if len(name) > LONGEST_REQUEST:
            raise _RefusedError("bad_request", f"request has at most {LONGEST_REQUEST} characters")
        placed = _placed(present, passed, rules)
        if name and (ids := _done_before(placed, name)) is not None:
            return RequestOutcome(placed, ids)
        return _noted(present, _DO.get(passed.request.op, _unknown)(placed, passed, rules), passed.request)
    except _RefusedError as refused:
        return RequestOutcome(present, problem=refused.problem)


def why_not_believed(subject: str, passed: ForwardedRequest) -> Refusal | None:
    """Why whoever asks at a subject may not ask this. The server lets each use its own subject only.

    A broker speaks for itself, and never for an operator; an operator wishes for moves alone.
    """
    kind, _, asker = subject.rpartition(".")
    if kind == OPERATE:
        if passed.request.op != "move":
            return Refusal("forbidden", f"an operator may not ask for {passed.request.op[:40]!r}")
        return None
    try:
        broker = name_of(asker)
    except InputError as error:
        return Refusal("bad_request", error.reason)
    if broker != passed.broker:
        return Refusal("forbidden", f"broker {broker!r} may not ask as broker {passed.broker[:80]!r}")
    if passed.request.op == "move":
        return Refusal("forbidden", "only an operator may ask for a move")
    return None


def busy(client: str, why: str, wait_s: float) -> Refusal:
    """The answer to a client that has to wait for a while."""
    return Refusal(
        "busy", f"client {client!r} {why}: ask again in {wait_s:.1f} s", retry_s=round(wait_s, 3)
    )


def _done_before(record: ClientRecord, name: str) -> tuple[str, ...] | None:
    """What a request that was done before was about; None for one that was not."""
    return next((tuple(each.ids) for each in record.done if each.request == name), None)


def _noted(before: ClientRecord, outcome: RequestOutcome, request: Request) -> RequestOutcome:
    """The outcome, with what the next leader must know when the request is made again."""
    if request.op == "list":
        return outcome
    after, done, gone = outcome.record, outcome.record.done, outcome.record.gone
    removed = [
        *(before.subscriptions.keys() - after.subscriptions.keys()),
        *(before.advertisements.keys() - after.advertisements.keys()),
    ]
    if removed:
        gone = [*(id_ for id_ in gone if id_ not in removed), *removed][-MOST_DONE:]
    # one about many ids only wakes them: to do that again is harmless, to remember them all is not
    if request.request and len(outcome.ids) <= 1:
        done = [*done, DoneRequest(request.request, list(outcome.ids))][-MOST_DONE:]
    if (done, gone) == (after.done, after.gone):
        return outcome
    return RequestOutcome(msgspec.structs.replace(after, done=done, gone=gone), outcome.ids)


def _placed(record: ClientRecord, passed: ForwardedRequest, rules: RequestLimits) -> ClientRecord:
    """The record at the broker that the request came through; a client with subscriptions stays."""
    broker = passed.broker
    if broker not in rules.brokers:
        raise _RefusedError("bad_request", f"the overlay has no broker {broker!r}: correct its name")
    if rules.moving.get(record.client) == broker:
        return record
    stays = record.subscriptions or record.lanes or record.client in rules.moving
    at = record.broker if stays else rules.attached.get(record.client, broker)
    if at != broker and record.lanes:
        raise _RefusedError("moved", f"client {record.client!r} has moved to broker {at!r}: ask there", at)
    if at != broker:
        raise _RefusedError(
            "bad_request",
            f"client {record.client!r} is attached to broker {at!r}: ask there, not at {broker!r}",
        )
    return record if record.broker == broker else msgspec.structs.replace(record, broker=broker)


def _subscribe(record: ClientRecord, passed: ForwardedRequest, rules: RequestLimits) -> RequestOutcome:
    request = passed.request
    id_ = _resolved(record, request)
    known = record.subscriptions.get(id_)
    if request.filter is None:
        raise _RefusedError("bad_request", f"subscription {request.id!r} has no filter: give one")
    if not (1 <= request.quota_bytes <= MOST_NUMBER and 1 <= request.lease_s <= MOST_NUMBER):
        raise _RefusedError("bad_request", f"quota_bytes and lease_s must be 1 to {MOST_NUMBER}")
    if rules.owner(id_) not in (None, record.client):
        raise _RefusedError("exists", f"another client has a subscription {id_!r}: choose another id")
    if known is None and len(record.subscriptions) >= MOST_HELD:
        raise _RefusedError("limit", f"client {record.client!r} has {MOST_HELD} subscriptions: remove some")
    key = _key(record, id_, request, rules)
    if known is not None and known.filter != request.filter:
        before = subscription_of(record.client, record.broker, id_, known.filter)
        if before.parse(rules.schema).key != key:
            raise _RefusedError(
                "exists",
                f"subscription {request.id!r} has another filter: unsubscribe it first, or use another id",
            )
    kept = request.filter if known is None else known.filter
    barred = rules.barred(subscription_of(record.client, record.broker, id_, kept)) if known is None else ""
    if barred:
        raise _RefusedError("forbidden", barred)
    latency_ms = _latency(record, id_, kept, request, rules)
    held = ClientSubscription(kept, request.quota_bytes, request.lease_s, latency_ms=latency_ms)
    counting, woken = _counting(record)
    more = msgspec.structs.replace(counting, subscriptions={**counting.subscriptions, id_: held})
    if known is None:
        _check_size(more, rules)
    return RequestOutcome(more, tuple({*woken, id_}))


def _unsubscribe(record: ClientRecord, passed: ForwardedRequest, rules: RequestLimits) -> RequestOutcome:
    id_ = _resolved(record, passed.request)
    if id_ not in record.subscriptions:
        for gone in (id_, passed.request.id):
            if gone in record.gone or rules.removed(record.client, gone):
                return RequestOutcome(record, (gone,))
        raise _RefusedError(
            "unknown", f"client {record.client!r} has no subscription {passed.request.id!r}"
        )
    left = {key: held for key, held in record.subscriptions.items() if key != id_}
    return RequestOutcome(msgspec.structs.replace(record, subscriptions=left), (id_,))


def _advertise(record: ClientRecord, passed: ForwardedRequest, rules: RequestLimits) -> RequestOutcome:
    request = passed.request
    if not request.id or len(request.id) > LONGEST_ID or request.filter is None:
        raise _RefusedError(
            "bad_request", f"an advertisement needs a filter and an id of 1 to {LONGEST_ID} characters"
        )
    known = record.advertisements.get(request.id)
    if known is not None and known.filter != request.filter:
        raise _RefusedError(
            "exists", f"advertisement {request.id!r} has another filter: unadvertise it first"
        )
    if known is None and len(record.advertisements) >= MOST_HELD:
        raise _RefusedError(
            "limit", f"client {record.client!r} has {MOST_HELD} advertisements: remove some"
        )
    _key(record, request.id, request, rules)
    said = {**record.advertisements, request.id: Advertisement(request.filter)}
    more = msgspec.structs.replace(record, advertisements=said)
    if known is None:
        _check_size(more, rules)
    return RequestOutcome(more)


def _unadvertise(record: ClientRecord, passed: ForwardedRequest, rules: RequestLimits) -> RequestOutcome:
    id_ = passed.request.id
    if id_ not in record.advertisements:
        if id_ in record.gone or rules.removed(record.client, id_):
            return RequestOutcome(record)
        raise _RefusedError("unknown", f"client {record.client!r} has no advertisement {id_!r}")
    left = {key: said for key, said in record.advertisements.items() if key != id_}
    return RequestOutcome(msgspec.structs.replace(record, advertisements=left))


def _list(record: ClientRecord, passed: ForwardedRequest, rules: RequestLimits) -> RequestOutcome:
    return RequestOutcome(record)


def _resume(record: ClientRecord, passed: ForwardedRequest, rules: RequestLimits) -> RequestOutcome:
    counting, woken = _counting(record)
    # all of them: a second request must wait as the first one did
    return RequestOutcome(counting, tuple(woken or record.subscriptions))


def _suspend(record: ClientRecord, passed: ForwardedRequest, rules: RequestLimits) -> RequestOutcome:
    reason = passed.reason or "suspended"
    held = {
        id_: held if held.suspended else msgspec.structs.replace(held, suspended=reason)
        for id_, held in record.subscriptions.items()
    }
    return RequestOutcome(msgspec.structs.replace(record, subscriptions=held), tuple(held))


def _unknown(record: ClientRecord, passed: ForwardedRequest, rules: RequestLimits) -> RequestOutcome:
    raise _RefusedError(
        "bad_request", f"unknown op {passed.request.op[:40]!r}. Choose one of: {', '.join(_DO)}"
    )


_DO: dict[str, Callable[[ClientRecord, ForwardedRequest, RequestLimits], RequestOutcome]] = {
    "subscribe": _subscribe,
    "unsubscribe": _unsubscribe,
    "advertise": _advertise,
    "unadvertise": _unadvertise,
    "list": _list,
    "resume": _resume,
    "suspend": _suspend,
}


def _resolved(record: ClientRecord, request: Request) -> str:
    if not request.id or len(request.id) > LONGEST_ID:
        raise _RefusedError("bad_request", f"a subscription's id has 1 to {LONGEST_ID} characters")
    own = f"{record.client}/{request.id}"
    return request.id if own not in record.subscriptions and _came_with_a_plan(record, request.id) else own


def _came_with_a_plan(record: ClientRecord, id_: str) -> bool:
    """Whether a client has this id as it stands. One with the client's own prefix was asked for without it:
    taken as it stands, a request made twice would hit two subscriptions."""
    return id_ in record.subscriptions and not id_.startswith(f"{record.client}/")


def _key(record: ClientRecord, id_: str, request: Request, rules: RequestLimits) -> bytes:
    """The filter's key, once it is known to be one."""
    try:
        if request.filter is None:
            raise InputError("give a filter")
        return subscription_of(record.client, record.broker, id_, request.filter).parse(rules.schema).key
    except FilterError as error:
        raise _RefusedError("bad_filter", str(error)) from None
    except LimitError as error:
        raise _RefusedError("too_complex", str(error)) from None
    except InputError as error:
        raise _RefusedError("bad_request", error.reason) from None


def _latency(
    record: ClientRecord, id_: str, filter: FilterText, request: Request, rules: RequestLimits
) -> float | None:
    """The bound that a subscription has afterwards: the one it had, unless another is asked for."""
    known = record.subscriptions.get(id_)
    asked = request.latency_ms
    if asked is None or (known is not None and known.latency_ms == asked):
        return None if known is None else known.latency_ms
    if not 0 < asked <= MOST_NUMBER:
        raise _RefusedError("bad_request", f"latency_ms = {asked}: it must be above 0")
    why = rules.too_late(subscription_of(record.client, record.broker, id_, filter, asked))
    if why:
        raise _RefusedError("too_late", why)
    return asked


def _check_size(record: ClientRecord, rules: RequestLimits) -> None:
    """Costs the encoding of the record."""
    size = len(encode(record))
    if size > rules.most_bytes:
        raise _RefusedError(
            "limit",
            f"the subscriptions and advertisements of client {record.client!r} would have {size} bytes, at "
            f"most {rules.most_bytes} are kept: remove some, or use another client",
        )


def _counting(record: ClientRecord) -> tuple[ClientRecord, list[str]]:
    """The record with no subscription suspended, and those that were."""
    woken = [id_ for id_, held in record.subscriptions.items() if held.suspended]
    if not woken:
        return record, []
    held = {id_: msgspec.structs.replace(held, suspended="") for id_, held in record.subscriptions.items()}
    return msgspec.structs.replace(record, subscriptions=held), woken
