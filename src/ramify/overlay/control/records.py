"""What the control plane says: keys of its store, records under them, requests and answers. Pure.

Owns the forms that brokers, coordinators and clients exchange; all of it is JSON.

The store (`store.Store`, bucket CTL), with names as tokens:

    leader                  lease of the coordinator that decides
    state                   `ControlState`, by compare-and-set by the leader: what every broker is to do
    overlay                 the overlay (large value)
    rules                   `RulesRecord`: the rules that every plan must keep, and the user's weights
    replaced                names the last wish to replace the plan that was carried out
    plans.<id>              a plan (large value, `plans.files.encode_plan`), never changed
    changes.<id>            `PlanChanges`: one revision of one epoch's plan, never changed
    brokers.<broker>        lease of a broker; its session is in it
    reports.<broker>        `BrokerReport` of `epochs`
    status.<broker>         `Status`: counters for people and for the measured cost
    clients.<client>        `ClientRecord`: what a client asked for; the truth that plans follow
    moves.<client>          `Move`: the latest move of a client to another broker (`moves`)

A client asks its broker at `ramify.control.<client>` (`Request`), and gets `Answer`. The broker checks it
and passes it on to the leader at `ramify.coordinate.<broker>` on the control server, with the names of
client and broker (`ForwardedRequest`), and passes the answer back. The server lets a broker use its own
subject only, and the leader takes no request there that names another broker. Operators ask at
`ramify.operate.<operator>`.
"""

from typing import Any, TypeVar

import msgspec

from ramify.content.filters.subscriptions import Subscription
from ramify.errors import InputError

__all__ = [
    "CLIENT_LEASE_S",
    "CLIENT_QUOTA_BYTES",
    "LEADER",
    "MOVES",
    "OVERLAY",
    "REPLACED",
    "ROUTING",
    "RULES",
    "STATE",
    "Advertisement",
    "Answer",
    "ClientPlace",
    "ClientRecord",
    "ClientSubscription",
    "ControlState",
    "DoneRequest",
    "FilterText",
    "ForwardedRequest",
    "Lane",
    "LinkCount",
    "LiveEpoch",
    "LossAlarm",
    "Move",
    "Refusal",
    "Request",
    "RulesRecord",
    "Status",
    "decode",
    "encode",
]

LEADER, STATE, OVERLAY, REPLACED, RULES = "leader", "state", "overlay", "replaced", "rules"
MOVES = "moves"
ROUTING = "routing"
"""Behind the key of a plan: its routing form, where the plan's writer wrote one."""

CLIENT_QUOTA_BYTES = 256 << 20
CLIENT_LEASE_S = 7 * 86_400


class FilterText(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A filter in one of its four spellings, as in a file of subscriptions."""

    sql: str | None = None
    pattern: Any = None
    keywords: list[str | list[str]] | None = None
    sigma: Any = None


class Request(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a client asks. `op` is one of OPS; `id` names a subscription or advertisement of the client.

    subscribe     id, filter; quota_bytes, lease_s; wait_s: how long to wait until it is active everywhere;
                  latency_ms: how late events may come, where plans bound that
    unsubscribe   id; wait_s
    advertise     id, filter
    unadvertise   id
    list          what the client has
    resume        go on after a suspension: its subscriptions count again; wait_s
    where         its broker and its lanes, with where their servers are
    offer         the offer to move to another broker, once there is one; wait_s
    accept        the offer `id`
    decline       the offer `id`; reason

    `request` names the request, for when it is made again: what was done is not done twice.
    """

    op: str
    id: str = ""
    filter: FilterText | None = None
    quota_bytes: int = CLIENT_QUOTA_BYTES
    lease_s: int = CLIENT_LEASE_S
    wait_s: float = 5.0
    reason: str = ""
    latency_ms: float | None = None
    request: str = ""


OPS = (
    *("subscribe", "unsubscribe", "advertise", "unadvertise", "list", "resume"),
    *("where", "offer", "accept", "decline"),
)


class ForwardedRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A client's request on its way to the leader; or one of a broker or an operator about a client:

    suspend      with the reason
    move         offer it the broker `to`, for `answer_s`, with the reason; redirect it for `ttl_s`
    replicated   `broker` has its lane, which ends with `number`, for the move `id`
    ended        the lane at `broker` ends with `number`, for the move `id`
    left         all of the lane that the move `id` ended is read
    """

    broker: str
    client: str
    request: Request
    reason: str = ""
    to: str = ""
    number: int = 0
    ttl_s: float = 0.0
    answer_s: float = 0.0


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request was not done. `code`: bad_request, bad_filter, too_complex, unknown, exists, limit,
    too_late, forbidden, suspended, no_coordinator, unavailable; busy: ask again after `retry_s` seconds;
    moved: ask at `broker`, whose server is at `url`."""

    code: str
    reason: str
    broker: str = ""
    url: str = ""
    retry_s: float = 0.0


class ClientSubscription(msgspec.Struct, frozen=True, omit_defaults=True):
    """A subscription of a client."""

    filter: FilterText
    quota_bytes: int = CLIENT_QUOTA_BYTES
    lease_s: int = CLIENT_LEASE_S
    # why it does not count at present; empty while it does
    suspended: str = ""
    # from a file of subscriptions; requests have none
    latency_ms: float | None = None


class Advertisement(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a client says that it will publish."""

    filter: FilterText


class Lane(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of what a client gets: its lane at a broker, from behind the number `start` on.

    The numbers that its user sees are those of the lane and `base`. `end` is the last one on the lane, once
    the client has moved on with the move `move`.
    """

    broker: str
    base: int = 0
    start: int = 0
    end: int | None = None
    move: str = ""


class DoneRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request that was done, by its name, and the subscriptions that it was about."""

    request: str
    ids: list[str] = []


class ClientRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a client asked for, and the broker that it is attached to.

    `lanes`: of a client that has moved, those that may have something unread, in order; the last is the one
    at `broker`. Empty: one lane, which begins with 1. `done` and `gone`: the last requests that were done,
    and the ids that were removed last. With them the next leader knows a request that is made again.
    """

    client: str
    broker: str
    subscriptions: dict[str, ClientSubscription] = {}
    advertisements: dict[str, Advertisement] = {}
    lanes: list[Lane] = []
    done: list[DoneRequest] = []
    gone: list[str] = []


class Move(msgspec.Struct, frozen=True, omit_defaults=True):
    """A client's move from broker `home` to broker `foreign`; `moves` says what phases there are.

    url     of the server of the foreign broker
    ttl_s   how long the home broker redirects the client by itself afterwards
    until   when the offer ends; once it is accepted, when the move is given up unless plans have it
    at      when the phase was reached; both in seconds since 1970
    start   the number that the lane at the foreign broker ends with before the move
    end     that of the last message of the lane at home
    why     it ended as it did, or was offered
    """

    id: str
    client: str
    home: str
    foreign: str
    phase: str
    at: float
    until: float
    url: str = ""
    ttl_s: float = 0.0
    start: int = 0
    end: int = 0
    why: str = ""


class ClientPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a client is asking, `here`, and where it belongs, `home`. `urls`: of the servers of the brokers
    that matter to it, as far as they are known."""

    here: str
    home: str
    lanes: list[Lane] = []
    urls: dict[str, str] = {}


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """`ok`, or `error`. `missing` names the brokers where a change is not active yet, with why; an answer
    with `ok` and nothing missing means: active everywhere. `client` answers `list`, `place` answers
    `where`, `move` answers what is about moves; an `offer` without it means that there is none."""

    ok: bool = False
    error: Refusal | None = None
    revision: int = 0
    missing: dict[str, str] = {}
    client: ClientRecord | None = None
    place: ClientPlace | None = None
    move: Move | None = None


class LiveEpoch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where an epoch's plan comes from: the plan as it was with revision `base`, then changes, each
    (revision, key) in order. `at`: the clients that it has at another broker than their records say."""

    epoch: int
    plan_key: str
    base: int
    changes: list[tuple[int, str]] = []
    at: dict[str, str] = {}


class ControlState(msgspec.Struct, frozen=True):
    """What the leader has decided: `Epochs.to_json` and where the plans of its live epochs are."""

    epochs: msgspec.Raw
    live: list[LiveEpoch]


class RulesRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What plans must keep and what counts besides money on the wire.

    revision                goes up by one with each change
    rules                   in the form of a rules file
    per_filter              money a month for each filter that a broker stores
    per_million_matchings   money for a million matchings
    wish                    names the start that gave them last; a coordinator with the same wish does not
                            undo what was changed since
    at                      when they were changed, in seconds since 1970
    """

    revision: int
    rules: dict[str, Any] = {}
    per_filter: float = 0.0
    per_million_matchings: float = 0.0
    wish: str = ""
    at: float = 0.0


class LinkCount(msgspec.Struct, frozen=True, array_like=True):
    """What a broker has sent over a link since it started: events, bytes of events, bytes on the wire."""

    messages: int
    payload_bytes: int
    wire_bytes: int


class LossAlarm(msgspec.Struct, frozen=True):
    """What a broker has lost, and where; `at` is in seconds since 1970."""

    at: float
    about: str
    what: str


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """A broker's counters since `started` (seconds since 1970); they start over with a new session."""

    broker: str
    session: str
    at: float
    started: float
    epoch: int = 0
    revision: int = 0
    routing: bool = False
    events: int = 0
    # published by clients of this broker, the others came over links
    published: int = 0
    published_bytes: int = 0
    frames: int = 0
    matchings: int = 0
    deliveries: int = 0
    rejects: int = 0
    redeliveries: int = 0
    strays: int = 0
    recoveries: int = 0
    sampled: int = 0
    links: dict[str, LinkCount] = {}
    # published[epoch]: events and bytes that entered with it; sent[epoch][neighbour]: LinkCount
    entered: dict[int, tuple[int, int]] = {}
    sent: dict[int, dict[str, LinkCount]] = {}
    # messages that wait: on IN, per neighbour's lane to here, per client's lane
    lag_published: int = 0
    lag_links: dict[str, int] = {}
    lag_clients: dict[str, int] = {}
    suspended: dict[str, str] = {}
    trouble: str = ""
    # how it fares (`health`), why, and for how long something has waited without a commit
    health: str = ""
    why: str = ""
    waiting_s: float = 0.0
    # what was lost of late, and how many alarms there were since `started`
    alarms: list[LossAlarm] = []
    alarms_told: int = 0
    # where matches are made: clients here, descriptors stored and data channels through here
    clients: int = 0
    descriptors: int = 0
    channels: int = 0
    # of the broker's server, for clients
    url: str = ""


_T = TypeVar("_T")


def encode(value: msgspec.Struct) -> bytes:
    """For the store and the wire."""
    return msgspec.json.encode(value)


def decode(data: bytes, type_: type[_T]) -> _T:
    """Read a record. Raises `InputError` with what is wrong and where."""
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"this is not a {type_.__name__.lower()}: {error}") from None


def subscription_of(
    client: str, broker: str, id: str, filter: FilterText, latency_ms: float | None = None
) -> Subscription:
    """The subscription of a request. Raises `InputError`."""
    keywords = filter.keywords
    pattern = None if filter.pattern is None else msgspec.json.encode(filter.pattern).decode()
    words: Any = None
    if keywords is not None:
        words = tuple(tuple(w) if isinstance(w, list) else w for w in keywords)
    sigma = None if filter.sigma is None else msgspec.json.encode(filter.sigma).decode()
    return Subscription(id, client, broker, filter.sql, pattern, words, latency_ms, sigma)
