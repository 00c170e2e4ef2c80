"""Where clients are attached, as the overlay's operator says: the file `clients.json` of `ramify keys`.

Owns the reading of it. A broker may ask for clients of its own only. The record of a client says whose it
is; of one that has asked for nothing yet, this does. A file that cannot be read counts as it was before.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

__all__ = ["ClientHomes"]

_log = logging.getLogger(__name__)


class ClientHomes:
    """Call it for the broker of each client. Costs a look at the file; it is read when it changed."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._stamp: object = None
        self._found: dict[str, str] = {}

    def __call__(self) -> Mapping[str, str]:
        """The broker of each client."""
        if self._file is None:
            return self._found
        try:
            seen = self._file.stat()
            stamp = seen.st_mtime_ns, seen.st_ino
            if stamp != self._stamp:
                self._stamp = stamp
                self._found = msgspec.json.decode(self._file.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("%s cannot be read, so clients are where it said before: %s", self._file, error)
        return self._found
