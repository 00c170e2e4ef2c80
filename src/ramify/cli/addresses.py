"""Addresses of servers as users give them. Owns what counts as one."""

from urllib.parse import urlsplit

from ramify.errors import InputError

__all__ = ["server_url"]


def server_url(text: str) -> str:
    """The URL of a server as it was given. Raises `InputError` for what can be none."""
    try:
        found = urlsplit(text)
        good = found.scheme in ("nats", "tls") and bool(found.hostname) and found.port != 0
    except ValueError:
        good = False
    if not good:
        raise InputError(f"{text!r} is not the URL of a server: give nats://host:port, or tls://host:port")
    return text
