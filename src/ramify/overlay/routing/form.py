"""The routing form of a plan: what a broker needs to route by it, ready to use. Pure.

Owns the form: one Arrow record batch of a single row (IPC stream, compressed), written once by the process
that has the plan. Reading it compiles no filter and makes no object per subscription, so that a broker with
100,000 subscriptions is ready in well below a second.

    plan       the plan file (`planning.plans.files`) without classes, entries and attachments
    schema     attribute -> type, for filters that come later
    matcher    the compiled filters (`content.matcher_files`)
    host       of each class: the index of its broker
    members    of each class: how many
    id, client, clients     of each member, class by class; `client` are indices of `clients`
    entries    of each channel: how many
    class, at, region       of each entry, channel by channel

What it is for is `RoutingPlan.read`; a plan that was read routes as the plan that was written.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ramify.content.events.events import AttributeType
from ramify.content.matching.matcher_files import matcher_from_bytes, matcher_to_bytes
from ramify.errors import InputError
from ramify.overlay.routing.parts import ClassFilters, Members
from ramify.overlay.routing.plan import RoutingPlan
from ramify.planning.demand.classes import Classes
from ramify.planning.plans.files import decode_plan, encode_plan
from ramify.planning.plans.plan import Plan, Serves

__all__ = ["FORM", "decode_routing", "encode_routing"]

FORM = "ramify-routing/1"

_INTS = pa.list_(pa.int32())
_TEXTS = pa.list_(pa.string())
_COLUMNS: dict[str, pa.DataType] = {
    "plan": pa.binary(),
    "schema": pa.map_(pa.string(), pa.string()),
    "matcher": pa.binary(),
    "host": _INTS,
    "members": _INTS,
    "id": _TEXTS,
    "client": _INTS,
    "clients": _TEXTS,
    "entries": _INTS,
    "class": _INTS,
    "at": _INTS,
    "region": _INTS,
}
_SCHEMA = pa.schema(list(_COLUMNS.items()), {"form": FORM})

Ints = npt.NDArray[np.int32]


def encode_routing(plan: Plan) -> bytes:
    """The routing form of a plan. Parses and compiles its filters: seconds for 100,000 of them."""
    classes, members = plan.classes, Members.of(plan.classes)
    serves = [channel.serves for channel in plan.channels]
    bare = replace(
        plan,
        classes=Classes((), (), np.zeros(0, dtype=np.int32), {}),
        channels=tuple(replace(channel, serves=_serves([], [], [])) for channel in plan.channels),
        attachments={},
    )
    numbers: dict[str, Any] = {
        "host": classes.broker,
        "members": np.diff(members.start),
        "client": members.client,
        "entries": [len(part) for part in serves],
        "class": np.concatenate([np.zeros(0), *(part.classes for part in serves)]),
        "at": np.concatenate([np.zeros(0), *(part.at for part in serves)]),
        "region": np.concatenate([np.zeros(0), *(part.region for part in serves)]),
    }
    columns: dict[str, pa.Array[Any]] = {
        "plan": pa.array([encode_plan(bare)], _COLUMNS["plan"]),
        "schema": pa.array([[(k, str(v)) for k, v in classes.schema.items()]], _COLUMNS["schema"]),
        "matcher": pa.array([matcher_to_bytes(ClassFilters.of(classes).main)], _COLUMNS["matcher"]),
        "id": _one_list(members.ids),
        "clients": _one_list(members.clients),
    }
    columns |= {name: _one_list(pa.array(np.asarray(v, np.int32))) for name, v in numbers.items()}
    batch = pa.record_batch([columns[name] for name in _COLUMNS], schema=_SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def decode_routing(content: bytes) -> RoutingPlan:
    """Read a routing form. Raises `InputError` for bytes that are none, or of another version."""
    row = _row(content)
    bare = decode_plan(row.column("plan")[0].as_py())
    host, counts = _ints(row, "host"), _ints(row, "members")
    kinds = dict(row.column("schema")[0].as_py())
    _require(set(kinds.values()) <= set(AttributeType), "types are known")
    schema = {path: AttributeType(kind) for path, kind in kinds.items()}
    ends = np.cumsum(_ints(row, "entries"))
    parts = [_ints(row, name) for name in ("class", "at", "region")]
    _require(len(counts) == len(host) and (counts >= 0).all(), "each class has a host and members")
    _require(len(ends) == len(bare.channels), "each channel has entries")
    _require({len(part) for part in parts} == {int(ends[-1]) if len(ends) else 0}, "entries are whole")
    channels = tuple(
        replace(channel, serves=_serves(*(part[end - count : end] for part in parts)))
        for channel, end, count in zip(bare.channels, ends, _ints(row, "entries"), strict=True)
    )
    _require(_within(host, len(bare.overlay)) and _within(parts[1], len(bare.overlay)), "brokers are known")
    _require(_within(parts[0], len(host)), "entries are of classes")
    plan = replace(bare, classes=Classes.hosts_alone(host, schema), channels=channels)
    start = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    members = Members(start, _texts(row, "id"), _ints(row, "client"), _texts(row, "clients"))
    _require(len(members.ids) == len(members.client) == start[-1], "members are whole")
    _require(_within(members.client, len(members.clients)), "clients are known")
    matcher = matcher_from_bytes(memoryview(row.column("matcher")[0].as_buffer()))
    _require(matcher.filters <= len(host), "filters are of classes")
    return RoutingPlan.of_parts(plan, counts == 0, members, ClassFilters(matcher, len(host)))


def _row(content: bytes) -> pa.RecordBatch:
    try:
        with pa.ipc.open_stream(content) as reader:
            form = (reader.schema.metadata or {}).get(b"form", b"").decode(errors="replace")
            if form == FORM:
                batch = reader.read_next_batch()
                batch.validate(full=True)
                if batch.schema.equals(_SCHEMA) and batch.num_rows == 1 and not _has_nulls(batch):
                    return batch
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise InputError(f"this is not a routing form of a plan: {error}") from None
    raise InputError(f"this is not a routing form that this version reads ({FORM}), but {form!r}")


def _has_nulls(batch: pa.RecordBatch) -> bool:
    return any(column.null_count for column in batch.columns)


def _require(sound: bool | np.bool_, what: str) -> None:
    if not sound:
        raise InputError(f"a routing form of a plan contradicts itself: it should be that {what}")


def _within(values: Ints, count: int) -> bool:
    return not len(values) or bool(values.min() >= 0 and values.max() < count)


def _serves(classes: Any, at: Any, region: Any) -> Serves:
    return Serves(*(np.asarray(part, dtype=np.int32) for part in (classes, at, region)))


def _one_list(values: "pa.Array[Any]") -> "pa.Array[Any]":
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def _ints(row: pa.RecordBatch, name: str) -> Ints:
    # copied: a view would keep the whole form in memory
    return np.array(_list(row, name), dtype=np.int32)


def _texts(row: pa.RecordBatch, name: str) -> pa.StringArray:
    values: pa.StringArray = _list(row, name)
    return values


def _list(row: pa.RecordBatch, name: str) -> Any:
    column: Any = row.column(name)
    return column.flatten()
