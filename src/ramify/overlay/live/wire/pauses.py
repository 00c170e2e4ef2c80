"""How long the live overlay waits: the values that several of its rooms share. One name, one value."""

__all__ = [
    "FULL_CODES",
    "LANES_AT_ONCE",
    "LANE_GAP_S",
    "REPEAT_LOG_S",
    "REQUEST_MARGIN_S",
    "REQUEST_PAUSE_S",
    "STORE_LIMIT_S",
    "TROUBLE_PAUSE_S",
]

TROUBLE_PAUSE_S = 0.5
"""After trouble with a server, before the next try."""

STORE_LIMIT_S = 2.0
"""For one answer of the control store, where a broker goes on without it."""

REPEAT_LOG_S = 30.0
"""Between two log lines that say the same trouble."""

LANE_GAP_S = 0.5
"""For the message that is missing on a lane, before what follows is asked for again."""

REQUEST_MARGIN_S = 5.0
"""For the way of a client's request and its answer, beside the wait that it asks for."""

REQUEST_PAUSE_S = 0.2
"""Between two tries of a client's request."""

LANES_AT_ONCE = 64
"""Lanes that are asked about at a time."""

FULL_CODES = frozenset({10077, 10047, 10023, 10025})
"""A server has no room: bytes or messages of the stream, its file store, the account."""
