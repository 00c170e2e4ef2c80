"""A client that uses nothing of Ramify but its subjects: what any language with a NATS library can do.

    python examples/any_language_client.py nats://127.0.0.1:4222 alice alice.nk "type = 'order.created'"

It subscribes, publishes one CloudEvent that matches, and prints what comes until it has that event. It
needs nats-py with nkeys, and pyarrow to read Arrow IPC. `docs/live-clients.md` describes each step.
"""

import asyncio
import hashlib
import json
import sys
import uuid
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pyarrow as pa
from nats.aio.client import Client as Nats

# Names are plain here: a name with other characters than A-Z, a-z, 0-9, - and _ has them as =XX.


async def request(
    connection: Nats, subject: str, body: bytes, headers: dict[str, str] | None = None
) -> Any:
    """Ask until there is an answer: every request here may be made twice."""
    while True:
        try:
            return json.loads((await connection.request(subject, body, timeout=10, headers=headers)).data)
        except (nats.errors.Error, TimeoutError):
            await asyncio.sleep(0.5)


async def control(connection: Nats, client: str, **ask: Any) -> Any:
    """One request to the broker."""
    answer = await request(connection, f"ramify.control.{client}", json.dumps(ask).encode())
    if "error" in answer:
        raise SystemExit(f"refused: {answer['error']['reason']}")
    return answer


async def publish(connection: Nats, client: str, secret: bytes, event: dict[str, Any]) -> int:
    """Publish one CloudEvent; it is stored when this returns."""
    # the same again is not doubled; keyed, because other clients of the broker can see it
    name = json.dumps([event["source"], event["id"]]).encode()
    headers = {
        "Nats-Msg-Id": hashlib.blake2b(name, key=secret[:64], digest_size=16).hexdigest(),
        "Content-Type": "application/cloudevents+json",
    }
    answer = await request(connection, f"ramify.publish.{client}", json.dumps(event).encode(), headers)
    if "error" in answer:  # a full stream, for one: nothing was stored
        raise SystemExit(f"not published: {answer['error']['description']}")
    return int(answer["seq"])


async def read(connection: Nats, client: str, position: int | None, until: str) -> int:
    """Pull the lane and print it, until an event has come; returns the position."""
    consumer = f"client_{client}"
    inbox = await connection.subscribe(connection.new_inbox())
    pull = json.dumps({"batch": 100, "max_bytes": 12 << 20, "expires": 2_000_000_000}).encode()
    # what an earlier process was sent and did not acknowledge comes again, in order
    await request(connection, f"$JS.API.CONSUMER.RESET.OUT.{consumer}", b"")
    while True:
        await connection.publish(f"$JS.API.CONSUMER.MSG.NEXT.OUT.{consumer}", pull, reply=inbox.subject)
        while True:
            try:
                message = await inbox.next_msg(timeout=4)
            except (nats.errors.Error, TimeoutError):
                break
            headers = message.headers or {}
            if "Status" in headers:  # the pull request has ended
                break
            number = int(headers["L"])
            before = int(headers.get("J", number - 1))  # numbers jump when a router starts
            if headers.get("X"):
                print(f"suspended: {headers['X']}; resuming", file=sys.stderr)
                await control(connection, client, op="resume")
                position = number
            elif position is not None and before < position < number:
                print(f"lost: the lane ended with {before}, {position} was read", file=sys.stderr)
            elif position is not None and before > position and "X" not in headers:
                await request(connection, f"$JS.API.CONSUMER.RESET.OUT.{consumer}", b"")  # a gap: once more
                break
            found = False
            if (position is None or number > position) and "X" not in headers:
                rows = pa.ipc.open_stream(message.data).read_all().to_pylist()
                named = json.loads(headers["F"])
                for row in rows:
                    # a list of ids for all events, or such a list for each entry
                    place = row.pop("_entry", None)
                    ids = [
                        id.removeprefix(f"{client}/") for id in (named if place is None else named[place])
                    ]
                    print(json.dumps({"number": number, "subscriptions": ids, "event": row}, default=str))
                    found = found or row["id"] == until
            position = max(position or 0, number)  # store it here, with the effects, for exactly once
            await connection.publish(message.reply, b"+ACK")
            if found:
                await connection.flush()
                return position


async def main(url: str, client: str, key: str, sql: str) -> None:
    """See the module."""
    seed = Path(key).read_text().strip()
    connection = await nats.connect(
        url, nkeys_seed_str=seed, inbox_prefix=f"_I.client_{client}".encode(), max_reconnect_attempts=-1
    )
    answer = await control(
        connection, client, op="subscribe", id="example", filter={"sql": sql}, wait_s=5.0
    )
    for broker, why in answer.get("missing", {}).items():
        print(f"not active at {broker} yet: {why}", file=sys.stderr)
    event = {
        "specversion": "1.0",
        "id": uuid.uuid4().hex,
        "source": client,
        "type": "order.created",
        "data": {"price": 42},
    }
    print(f"accepted as {await publish(connection, client, seed.encode(), event)}", file=sys.stderr)
    print(f"read up to {await read(connection, client, None, event['id'])}", file=sys.stderr)
    await connection.close()


if __name__ == "__main__":
    if len(sys.argv) != 5:
        raise SystemExit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
