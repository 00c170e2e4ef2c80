"""TLS of connections to servers: the authorities to trust, and nothing sent before the handshake.

Owns the contexts made from PEM files, and the transport under a connection that is to be secret. A server
may begin with the handshake (`handshake_first`), or greet in the clear and then ask for it, as servers do
unless told otherwise; both are met. The greeting can be forged, so a server that asks for no TLS is refused
rather than believed.
"""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import ParseResult

import nats.errors
from nats.aio.transport import TcpTransport

from ramify.errors import InputError

__all__ = ["NoTlsError", "TlsFiles", "TlsTransport", "why_hopeless"]

# a server that has not greeted by then waits for the handshake; it gives up after two seconds
_GREETING_S = 1.0


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: `ca` signs servers (without it, those that this system trusts); `cert` and `key` are
    our own, for servers that verify clients."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def context(self) -> ssl.SSLContext | None:
        """None without any file. Raises `InputError` for a file that cannot be used."""
        if self.ca is self.cert is self.key is None:
            return None
        if self.key is not None and self.cert is None:
            raise InputError("a TLS key needs its certificate: give tls_cert too", path=str(self.key))
        return _loaded(self)


def _loaded(files: TlsFiles) -> ssl.SSLContext:
    at = files.ca
    try:
        context = ssl.create_default_context(cafile=None if files.ca is None else str(files.ca))
        if files.cert is not None:
            at = files.cert
            # asked for a password it would wait for a terminal
            context.load_cert_chain(files.cert, files.key, password=lambda: "")
    except ssl.SSLError as error:
        reason = error.reason or "it does not fit its key, or the key has a password"
        raise InputError(f"cannot be used for TLS: {reason}. Give PEM files", path=str(at)) from None
    except OSError as error:
        where = f" ({files.key})" if at is files.cert and files.key is not None else ""
        raise InputError(f"cannot be read{where}: {error.strerror}", path=str(at)) from None
    return context


class NoTlsError(nats.errors.Error):
    """The server asks for no TLS."""

    def __str__(self) -> str:
        return "the server offers no TLS, so nothing was sent to it"


class TlsTransport(TcpTransport):
    """Sends nothing in the clear."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._context = context
        self._is_secret = False
        self._begins = False
        self._greeting: bytes | None = None

    def __bool__(self) -> bool:
        # or nats-py would put a plain one in its place before the first connection
        return True

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """Connect, and shake hands if the server waits for that."""
        self._is_secret, self._greeting = False, None
        await super().connect(uri, buffer_size, connect_timeout)
        if not self._begins:
            try:
                async with asyncio.timeout(_GREETING_S):
                    self._greeting = await super().readline()  # type: ignore[no-untyped-call]
                return
            except TimeoutError:
                pass
        # only what has worked is done again without looking
        self._begins = False
        await self.connect_tls(uri.hostname or "", self._context, buffer_size, connect_timeout)
        self._begins = True

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: int,
    ) -> None:
        """Shake hands, once in a connection."""
        if not self._is_secret:
            await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)
            self._is_secret = True

    async def readline(self) -> bytes:
        """The greeting, if it was read already."""
        line, self._greeting = self._greeting, None
        return await super().readline() if line is None else line  # type: ignore[no-untyped-call]

    def write(self, payload: bytes) -> None:
        """Raises `NoTlsError` in the clear."""
        self._check()
        super().write(payload)  # type: ignore[no-untyped-call]

    def writelines(self, payload: list[bytes]) -> None:
        """As `write`."""
        self._check()
        super().writelines(payload)  # type: ignore[no-untyped-call]

    def _check(self) -> None:
        if not self._is_secret:
            raise NoTlsError


def why_hopeless(error: Exception) -> str | None:
    """What to mend, where connecting again will not help; None where it may."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({error.verify_message}). Give the file of the authority that "
            "signed it (tls_ca, --tls-ca), and connect by a name that the certificate has"
        )
    if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
        return (
            f"it refused the handshake ({error.reason}). Where it verifies clients, give a certificate "
            "that its authority signed, and the key (tls_cert, tls_key; --tls-cert, --tls-key)"
        )
    if isinstance(error, NoTlsError):
        return f"{error}. Give the server TLS, or a nats:// URL if it is on this machine"
    return None
