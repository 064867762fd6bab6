"""The protocol of a peer: what it is called, how it is set, and how a log of it is opened and used.

On disk: a log lies in the directory that it is given. Threads: one, but for `follow`, which is iterated in
a thread of its own beside the one that appends.
"""

from __future__ import annotations

import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .records import Batch, Row, Seen, drained

POLL = 1e-4
"""Seconds between two looks of a follower that can't wait for records, but has to ask for them."""

POLLS = f"can't wait: asks every {POLL * 1000:g} ms"

PACKED = struct.Struct(">q")
"""A timestamp, before the value, where a peer stores one string of bytes a record."""


class AbsentError(Exception):
    """This peer can't run here; why."""


class NotOfferedError(Exception):
    """This peer can't do that; why."""


class Log(ABC):
    """An append-only log as a peer can do it. Offsets count from 0."""

    @abstractmethod
    def append(self, batch: Batch) -> None:
        """All of it together, where the peer can; after `acknowledge` as safe as the log was opened for."""

    def acknowledge(self) -> None:  # noqa: B027
        """Wait until all that was appended is acknowledged; nothing, where `append` waits for that."""

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """All records in order."""

    def scan(self) -> Seen:
        """Look at all records, as this peer does it best."""
        return drained(self.rows())

    def read(self, offset: int) -> Row:
        """One record."""
        raise NotOfferedError("no read by offset")

    def follow(self) -> Iterator[list[Row]]:
        """New records as they come, for ever; an empty list once it looks, and now and then another."""
        raise NotOfferedError("no follower beside a writer")

    def apart(self) -> tuple[str, ...]:
        """What follows the log in another process: module:function, and its arguments (see `apart`)."""
        raise NotOfferedError("no follower in another process")

    @abstractmethod
    def close(self) -> None: ...


@dataclass(frozen=True)
class Peer:
    """`settings`: what gives each level, and what else was set. `open(directory, synced)`. `works`: those
    that it does; None: all.

    `synced` False: acknowledged once in the operating system's page cache. True: once an fdatasync or fsync
    has made it durable.
    """

    name: str
    versions: Mapping[str, str]
    settings: Mapping[str, str]
    open: Callable[[Path, bool], Log]
    works: tuple[str, ...] | None = None

    def does(self, work: str) -> bool:
        return self.works is None or work in self.works


def polled(look: Callable[[int], list[Row]]) -> Iterator[list[Row]]:
    """A follower that asks `look` for records from an offset on, again and again."""
    at = 0
    yield []
    while True:
        rows = look(at)
        if not rows:
            time.sleep(POLL)
        at += len(rows)
        yield rows


def packed(stamp: int, value: bytes) -> bytes:
    return PACKED.pack(stamp) + value


def unpacked(data: bytes) -> Row:
    return PACKED.unpack_from(data)[0], data[PACKED.size :]
