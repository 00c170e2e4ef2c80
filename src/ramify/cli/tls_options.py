"""--tls-ca, --tls-cert and --tls-key, as all commands that connect to servers have them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import ssl

__all__ = ["InsecureOption", "TlsCa", "TlsCert", "TlsKey", "tls_context"]

TlsCa = Annotated[
    Path | None,
    typer.Option(help="Connect by TLS: PEM file of the authority that signed the server's certificate."),
]
TlsCert = Annotated[
    Path | None, typer.Option(help="Our certificate (PEM), for servers that verify clients.")
]
TlsKey = Annotated[Path | None, typer.Option(help="The key of --tls-cert, unless that file has it.")]

InsecureOption = Annotated[
    bool,
    typer.Option(
        "--insecure-clear-text",
        help="Speak to another machine without TLS: only where nobody else can listen.",
    ),
]


def tls_context(ca: Path | None, cert: Path | None, key: Path | None) -> "ssl.SSLContext | None":
    """The authorities to trust; None without a file. Raises `InputError` for one that cannot be used."""
    from ramify.overlay.live.wire.tls import TlsFiles

    return TlsFiles(ca, cert, key).context()
