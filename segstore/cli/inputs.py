"""What `produce` reads: lines, NDJSON, CSV, Parquet and Arrow IPC as columns, some thousand rows at a time.

On disk: reads the input that the user names. Threads: one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from segstore.cli import input_arrow, input_rows, input_text
from segstore.cli.input_chunk import Chunk, InputOptions

FORMATS: dict[str, Callable[[BinaryIO, InputOptions], Iterator[Chunk]]] = {
    "lines": input_rows.lines,
    "ndjson": input_text.ndjson,
    "csv": input_rows.csv_rows,
    "parquet": input_arrow.parquet,
    "arrow": input_arrow.arrow,
}
SUFFIXES = {
    **dict.fromkeys((".ndjson", ".jsonl", ".json"), "ndjson"),
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), "arrow"),
    ".csv": "csv",
    ".parquet": "parquet",
}


@dataclass(frozen=True)
class Input:
    """An open input; `size` in bytes where it is a file."""

    stream: BinaryIO
    name: str
    size: int | None

    def format(self, wanted: str) -> str:
        """The format: as wanted, else by the file's suffix, else lines."""
        return wanted if wanted != "auto" else SUFFIXES.get(os.path.splitext(self.name)[1].lower(), "lines")

    def chunks(self, wanted: str, options: InputOptions) -> Iterator[Chunk]:
        """Records of the input. InputError names the line or column."""
        return FORMATS[self.format(wanted)](self.stream, options)

    def position(self) -> int:
        """Bytes read up to now, of a file."""
        return 0 if self.size is None else self.stream.tell()


def of_stream(stream: Any) -> Input:
    """A file that click has opened, or standard input ("-")."""
    name = str(getattr(stream, "name", "-"))
    regular = name not in ("-", "<stdin>") and os.path.isfile(name)
    return Input(stream, name, os.path.getsize(name) if regular else None)
