"""Addresses of servers as users give them: what counts as one, and the control server of an overlay."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from ramify.errors import InputError, LiveError

if TYPE_CHECKING:
    import ssl

    from ramify.overlay.live.wire.streams import Endpoint

__all__ = ["Attempts", "ControlKeyOption", "ControlOption", "control_endpoint", "server_url"]

ControlOption = Annotated[str | None, typer.Option(help="A control server elsewhere, with --key.")]
ControlKeyOption = Annotated[Path | None, typer.Option(help="The seed file of one of its users.")]


def server_url(text: str) -> str:
    """The URL of a server as it was given. Raises `InputError` for what can be none."""
    try:
        found = urlsplit(text)
        good = found.scheme in ("nats", "tls") and bool(found.hostname) and found.port != 0
    except ValueError:
        good = False
    if not good:
        raise InputError(
            f"{text!r} is not the URL of a server: give tls://host:port, or nats://127.0.0.1:port"
        )
    return text


def control_endpoint(
    control: str,
    key: Path | None,
    name: str,
    tls: "ssl.SSLContext | None" = None,
    *,
    insecure: bool = False,
) -> "Endpoint":
    """A control server elsewhere, as one of its users. Raises `InputError` without a usable key."""
    from ramify.overlay.live.wire.security import ControlRole, read_seed
    from ramify.overlay.live.wire.streams import Endpoint

    if key is None:
        raise InputError("give --key with --control: the seed file of a user of the control server")
    role = ControlRole("viewer")
    seed = read_seed(key).seed
    return Endpoint(server_url(control), seed, role.inbox_prefix, name, tls, insecure, key)


class Attempts:
    """Failed attempts to reach a control server: called with each, and told of in one message."""

    def __init__(self, url: str) -> None:
        self._url, self._last = url, ""

    def __call__(self, error: Exception) -> None:
        """Note an attempt."""
        self._last = str(error)

    def error(self, limit_s: float) -> LiveError:
        """What to raise when the time is over."""
        return LiveError(
            f"cannot connect to the control server at {self._url} within {limit_s:g} s: "
            f"{self._last or 'no answer'}. Is it running, and does it know the key?"
        )
