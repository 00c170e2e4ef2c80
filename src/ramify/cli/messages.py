"""`ramify pub` and `ramify sub`: a client of a live overlay on the command line."""

import asyncio
import io
import json
import os
import ssl
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
import pyarrow as pa
import typer
from rich.progress import Progress, SpinnerColumn, TextColumn

from ramify.cli.addresses import server_url
from ramify.cli.app import app
from ramify.cli.console import REJECTED_SHOWN, SOME_BAD_ROWS, err, friendly
from ramify.cli.inputs import IdField, TimeField, TimeUnitOption, field_mapping
from ramify.cli.tls_options import InsecureOption, TlsCa, TlsCert, TlsKey, tls_context
from ramify.content.events.events import FIXED_COLUMNS, DecodedBatch, RejectedRecord
from ramify.content.events.flatten import FieldMapping, TimeUnit
from ramify.content.events.readers import JsonForm, LogKind, read_events
from ramify.errors import InputError, LiveError
from ramify.overlay.control.intake import WRAPPED_TYPE, to_cloudevent
from ramify.overlay.control.records import FilterText
from ramify.overlay.live.client.client import Client, SuspendedError, filter_id, place_of, spelled
from ramify.overlay.live.wire.tasks import ending_signals, run_to_end

__all__: list[str] = []

_READ_BYTES = 1 << 20
_LONGEST_LINE = 64 << 20
_LEAVE_S = 10.0
_CONTEXT = {"id": "id", "publisher": "source", "time": "time"}

ClientName = Annotated[str, typer.Option("--client", help="Name of the client.")]
UrlOption = Annotated[str | None, typer.Option(help="Server of the client's broker.")]
KeyOption = Annotated[Path | None, typer.Option(help="File with the client's seed.")]
DirOption = Annotated[
    Path | None, typer.Option("--dir", help="Directory of `ramify up`, instead of --url and --key.")
]


@app.command()
@friendly
def pub(
    client: ClientName,
    source: Annotated[
        str, typer.Argument(help="JSON lines, CloudEvents or Parquet; - for lines on standard input.")
    ] = "-",
    url: UrlOption = None,
    key: KeyOption = None,
    directory: DirOption = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure: InsecureOption = False,
    id_field: IdField = "id",
    time_field: TimeField = "time",
    time_unit: TimeUnitOption = TimeUnit.NONE,
    give_up: Annotated[float, typer.Option(help="Seconds to wait for an acknowledgement.")] = 60.0,
    advertise: Annotated[
        list[str] | None,
        typer.Option(help="First advertise that the client publishes what this filter (SQL) accepts."),
    ] = None,
) -> None:
    """Publish events. Each batch is stored before the next is read; bad lines are named and skipped."""
    context = tls_context(tls_ca, tls_cert, tls_key)
    where = _where(client, url, key, directory, context, insecure)
    mapping = field_mapping(id_field, "publisher", time_field, time_unit)
    parts = _read(source, mapping)
    done = run_to_end(_publish(client, where, parts, mapping, give_up, advertise or []))
    accepted, before, bad = done
    told = [f"published {accepted:,} event{'' if accepted == 1 else 's'}"]
    if before:
        told.append(f"{before:,} of them were accepted before and are not delivered again")
    if bad:
        told.append(f"{bad:,} could not be used")
    err.print(", ".join(told), highlight=False, soft_wrap=True)
    if bad:
        raise typer.Exit(SOME_BAD_ROWS)


@app.command()
@friendly
def sub(
    client: ClientName,
    url: UrlOption = None,
    key: KeyOption = None,
    directory: DirOption = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure: InsecureOption = False,
    sql: Annotated[str | None, typer.Option(help="The filter as SQL.")] = None,
    pattern: Annotated[str | None, typer.Option(help="The filter as a JSON pattern.")] = None,
    sigma: Annotated[
        str | None, typer.Option(help="The filter as the detection of a Sigma rule, in JSON.")
    ] = None,
    keywords: Annotated[
        str | None, typer.Option(help="Words separated by commas, any of which matches; or a JSON list.")
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(
            help="Keep the subscription under this id. Without it the subscription ends with the command."
        ),
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="End after this many events.")] = None,
    position_file: Annotated[
        Path | None,
        typer.Option(help="Go on after the position in this file, and store the position there."),
    ] = None,
    latency_ms: Annotated[
        float | None, typer.Option(help="How late events may come, if the plan bounds latency.")
    ] = None,
) -> None:
    """Print one event a line until Ctrl-C: a CloudEvent as such, other events as published.

    Without a filter it prints all events that come for the client.

    The next command may print the last events again, unless there is a position file.
    """
    context = tls_context(tls_ca, tls_cert, tls_key)
    where = _where(client, url, key, directory, context, insecure)
    wanted = _filter(sql, pattern, keywords, sigma)
    if wanted is None and id is not None:
        raise InputError("an id needs a filter: give --sql, --pattern, --keywords or --sigma")
    position = None if position_file is None else _Position.read(position_file)
    run_to_end(_until_interrupted(_print_events(client, where, wanted, id, count, position, latency_ms)))


# ------------------------------------------------------------------------------------------ connecting


_Where = tuple[str, Path, ssl.SSLContext | None, bool]


def _where(
    client: str,
    url: str | None,
    key: Path | None,
    directory: Path | None,
    tls: ssl.SSLContext | None = None,
    insecure: bool = False,
) -> _Where:
    """The server, the file of the key, the authorities to trust, and whether clear text is allowed."""
    if directory is not None and url is None and key is None:
        place = place_of(directory, client)
        return place.url, place.seed_file, tls, insecure
    if url is None or key is None or directory is not None:
        raise InputError("say where to connect: --url and --key, or --dir of a running `ramify up`")
    return server_url(url), key, tls, insecure


def _filter(
    sql: str | None, pattern: str | None, keywords: str | None, sigma: str | None
) -> FilterText | None:
    if sql is pattern is keywords is sigma is None:
        return None
    words: Any = None
    if keywords is not None:
        words = _json(keywords, "keywords") if keywords.lstrip().startswith("[") else keywords.split(",")
    found = None if pattern is None else _json(pattern, "the pattern")
    rule = None if sigma is None else _json(sigma, "the Sigma rule")
    return spelled(sql=sql, pattern=found, keywords=words, sigma=rule)


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} cannot be read as JSON: {error}") from None


# ------------------------------------------------------------------------------------------- publishing


async def _publish(
    name: str,
    where: _Where,
    parts: Iterator[DecodedBatch],
    mapping: FieldMapping,
    give_up_s: float,
    advertised: Sequence[str],
) -> tuple[int, int, int]:
    """How many events were accepted, how many of them had been before, and how many are bad."""
    accepted = bad = 0
    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} events accepted"))
    url, key, tls, insecure = where
    async with Client.connect(name, url, seed_file=key, tls=tls, insecure_clear_text=insecure) as client:
        for filter_ in advertised:
            await client.advertise(sql=filter_)
        with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as shown:
            task = shown.add_task("", total=None)
            # reading waits for standard input: not in the way of the connection
            while (part := await asyncio.to_thread(next, parts, None)) is not None:
                for rejected in part.rejected[: max(0, REJECTED_SHOWN - bad)]:
                    _report(rejected)
                bad += len(part.rejected)
                batch = part.batch if mapping.id is not None else _named(part.batch)
                await client.publish(batch, give_up_s=give_up_s)
                accepted += batch.num_rows
                shown.update(task, completed=accepted)
        return accepted, client.accepted_before, bad


def _report(rejected: RejectedRecord) -> None:
    at = f"record {rejected.position + 1}" if rejected.line is None else f"line {rejected.line}"
    err.print(f"{at}: {rejected.detail}", markup=False, highlight=False, soft_wrap=True)


def _named(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Events that have no id of their own get one that no other has: numbers would be used again."""
    ids = pa.array([uuid.uuid4().hex for _ in range(batch.num_rows)], pa.string())
    return batch.set_column(0, FIXED_COLUMNS.field("id"), ids)


def _read(source: str, mapping: FieldMapping) -> Iterator[DecodedBatch]:
    if source == "-":
        return _lines(sys.stdin.buffer, mapping)
    kind = LogKind.of(source)
    if kind is None:
        raise InputError(LogKind.unknown(source), path=source)
    return read_events(source, mapping=mapping, batch_rows=5_000)


def _lines(stream: IO[bytes], mapping: FieldMapping) -> Iterator[DecodedBatch]:
    """Lines as they come: a slow writer is not waited for."""
    form: JsonForm | None = None
    rest, before = b"", 0
    while True:
        data = os.read(stream.fileno(), _READ_BYTES) if _has_descriptor(stream) else stream.read()
        text, _, rest = (rest + data).rpartition(b"\n") if data else (rest, b"", b"")
        if text:
            form = form or JsonForm.of(text, mapping)
            if form.array:
                raise InputError("standard input is read line by line: give one event a line, not an array")
            for part in form.read(io.BytesIO(text + b"\n"), None, None):
                part.rejected = [replace(r, line=(r.line or 0) + before) for r in part.rejected]
                yield part
            before += text.count(b"\n") + 1
        if not data:
            return
        if len(rest) > _LONGEST_LINE:
            raise InputError(f"line {before + 1} has more than {_LONGEST_LINE} bytes")


def _has_descriptor(stream: IO[bytes]) -> bool:
    with suppress(OSError, ValueError):
        return stream.fileno() >= 0
    return False


# -------------------------------------------------------------------------------------------- subscribing


class _Position(msgspec.Struct):
    """What was printed: all deliveries up to `after`, and `rows` events of the next."""

    after: int | None = None
    rows: int = 0
    path: str = ""

    @classmethod
    def read(cls, path: Path) -> "_Position":
        try:
            found = msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            found = cls()
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InputError(f"the file does not hold a position: {error}", path=str(path)) from None
        found.path = str(path)
        return found

    def write(self, after: int | None, rows: int = 0) -> None:
        """Appears whole or not at all."""
        self.after, self.rows = after, rows
        part = Path(f"{self.path}.part")
        try:
            part.write_bytes(msgspec.json.encode({"after": after, "rows": rows}))
            part.replace(self.path)
        except OSError as error:
            raise InputError(f"cannot keep the position: {error.strerror}", path=self.path) from None


async def _print_events(
    name: str,
    where: _Where,
    wanted: FilterText | None,
    id: str | None,
    count: int | None,
    position: _Position | None,
    latency_ms: float | None,
) -> None:
    after = None if position is None else position.after
    skipped = 0
    url, key, tls, insecure = where
    async with Client.connect(
        name, url, seed_file=key, tls=tls, after=after, insecure_clear_text=insecure
    ) as client:
        own = None
        if wanted is not None:
            made = await client.subscribe(
                sql=wanted.sql,
                pattern=wanted.pattern,
                keywords=wanted.keywords,
                sigma=wanted.sigma,
                id=id or f"sub-{filter_id(wanted)}",
                latency_ms=latency_ms,
            )
            own = made.id
        try:
            skipped = await _print_lane(client, own, count, position)
        except SuspendedError as error:
            if position is not None:
                position.write(error.number)
            raise
        finally:
            if own is not None and id is None:
                await _leave(client, own)
    if skipped:
        events = "1 event" if skipped == 1 else f"{skipped:,} events"
        err.print(f"left out: {events} for other subscriptions of {name}")


async def _leave(client: Client, id: str) -> None:
    """End the subscription that was made for this command alone; if nobody answers, its lease does."""
    try:
        async with asyncio.timeout(_LEAVE_S):
            await client.unsubscribe(id, wait_s=1.0)
    except (TimeoutError, LiveError) as error:
        err.print(f"the subscription {id} was not ended: {error}", markup=False, highlight=False)


async def _print_lane(
    client: Client, own: str | None, count: int | None, position: _Position | None
) -> int:
    """Print what is for one subscription, or everything; returns how many events were for others."""
    printed = skipped = 0
    done = 0 if position is None else position.rows
    async with aclosing(client.deliveries()) as lane:
        async for delivered in lane:
            rows = delivered.events.num_rows
            while done < rows and printed != count:
                if own is None or own in delivered.subscriptions_of(done):
                    print(json.dumps(as_published(delivered.events, done), ensure_ascii=False))
                    printed += 1
                else:
                    skipped += 1
                done += 1
            sys.stdout.flush()
            if position is not None:
                whole = done >= rows
                position.write(delivered.number if whole else delivered.number - 1, 0 if whole else done)
            if printed == count:
                if done >= rows:
                    await client.acknowledge(delivered.number)
                break
            done = 0
    return skipped


def as_published(events: pa.RecordBatch, row: int) -> dict[str, Any]:
    """A CloudEvent as such; another event with its own attributes at the top, as `ramify pub` takes it."""
    found = to_cloudevent(events, row)
    data = found.get("data")
    wrapped = found["type"] == WRAPPED_TYPE and "source" not in events.schema.names
    if not wrapped or not isinstance(data, dict):
        return found
    context = {name: found[key] for name, key in _CONTEXT.items() if key in found}
    return context | data | context


async def _until_interrupted(work: Any) -> None:
    """Run until it is done, or a signal ends it."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in ending_signals():
        with suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread
            loop.add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task
