"""History files: written as things happen, so that a killed run leaves what it saw; read with the place of
what is wrong."""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from ramify.errors import InputError, LiveError
from ramify.overlay.histories.conditions import check_condition
from ramify.overlay.histories.rows import FORMAT_VERSION, HistoryRow, RunRow, SubscribeRow

__all__ = ["HistoryFile", "read_history"]


class HistoryFile:
    """Appends rows to a new file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("xb")
        except FileExistsError:
            raise InputError(
                "is there already: name another file for the history", path=str(path)
            ) from None
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", path=str(path)) from None
        self._encoder = msgspec.json.Encoder()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, row: HistoryRow) -> None:
        """Write a row. Raises `LiveError` when there is no room."""
        try:
            self._file.write(self._encoder.encode(row) + b"\n")
        except OSError as error:
            raise LiveError(f"cannot write history {self.path}: {error.strerror}") from None

    def close(self) -> None:
        """Write what is in memory."""
        self._file.close()


def read_history(path: Path) -> Iterator[HistoryRow]:
    """The rows of a file. Raises `InputError` with the line of what is no row."""
    decoder = msgspec.json.Decoder(HistoryRow)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    row = decoder.decode(line)
                    if isinstance(row, RunRow) and row.version != FORMAT_VERSION:
                        raise InputError(f"version {row.version} of histories is not known")
                    if isinstance(row, SubscribeRow):
                        check_condition(row.condition)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise InputError(
                        f"not a row of a history: {error}", path=str(path), line=number
                    ) from None
                except InputError as error:
                    raise InputError(str(error), path=str(path), line=number) from None
                yield row
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=str(path)) from None
