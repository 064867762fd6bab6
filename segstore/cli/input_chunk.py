"""Columns of records on their way in. Nothing on disk. Threads: one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from segstore.errors import InvalidArgumentError

BLOCK = 1 << 20


class InputError(InvalidArgumentError):
    """Input that is no record; names the line, row or column."""


@dataclass(frozen=True)
class InputOptions:
    """Which fields or columns of an object or row are what; `separator`: between a line's key and value."""

    key_field: str | None = None
    value_field: str | None = None
    timestamp_field: str | None = None
    separator: str | None = None
    plain: bool = False


@dataclass
class Chunk:
    """Some records as columns: lists, or arrow arrays where the input had such. None: none has it.

    Timestamps are ms since the epoch, None for now; `partitions` None where the key decides.
    """

    values: Any
    keys: Any = None
    timestamps: list[int | None] | Any = None
    headers: list[list[tuple[str, bytes | None]]] | None = None
    partitions: list[int | None] | None = None

    def __len__(self) -> int:
        return len(self.values)


def line_blocks(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Lines without their ends, as many as are there: a pipe's are not waited for."""
    rest = b""
    read = getattr(stream, "read1", stream.read)
    while block := read(BLOCK):
        *lines, rest = (rest + block).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


def numbered(blocks: Iterable[list[bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Lines with their numbers from 1; blank ones are left out."""
    done = 0
    for lines in blocks:
        yield [(number, line) for number, line in enumerate(lines, done + 1) if line.strip()]
        done += len(lines)
