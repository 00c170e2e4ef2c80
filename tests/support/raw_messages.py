"""Messages as bytes on the wire, past the checks of the library; and some that nobody should send."""

from nats.aio.client import Client as Nats

BAD_BLOCKS = [
    b"BADS/1.0 \xff\xfe\xfd\r\n\r\n",
    b"NATS/1.0 \xff\xfe\xfd\r\n\r\n",
    b"NATS/1.0 404 \xff\r\nA: b\r\n\r\n",
    b"NATS/1.0\r\n\xff\xfe: \xff\r\n\r\n",
    b"NATS/1.0\r\n: \r\n:::\r\n\r\n",
    b"\xff" * 90,
    b" ",
    b"\r\n\r\n",
]
"""Header blocks that are none."""

BAD_MESSAGES = [*((block, b"") for block in BAD_BLOCKS), (b"NATS/1.0\r\n\r\n", b"\xff\xfe")]
"""(header block, subject to answer to), as any client may send them."""


async def send_raw(connection: Nats, subject: bytes, block: bytes, reply: bytes, payload: bytes) -> None:
    """Send a message with a header block, and wait until the server has taken it."""
    to = b" " + reply if reply else b""
    line = b"HPUB %s%s %d %d\r\n" % (subject, to, len(block), len(block) + len(payload))
    connection._transport.write(line + block + payload + b"\r\n")
    await connection._transport.drain()
    await connection.flush(60)
