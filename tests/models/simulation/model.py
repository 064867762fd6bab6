"""What must be in the store: plain objects, no files. Threads: one."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

Key = tuple[str, int]
Content = tuple["bytes | None", "bytes | None", tuple[tuple[str, "bytes | None"], ...], int]
"""Key, value, headers, timestamp (ms)."""


class Sent(NamedTuple):
    """An offset of a group; `place`: which of all that were written; `sure`: whether it was acknowledged."""

    key: tuple[str, str, int]
    offset: int
    place: int
    sure: bool


class Wrong(AssertionError):
    """The store is not as it must be."""


def hold(good: bool, *told: object) -> None:
    """`Wrong`, unless it is good."""
    if not good:
        raise Wrong(" ".join(map(str, told)))


@dataclass(eq=False)
class Transaction:
    """`outcomes`: what may become of it: "commit", "abort" or both. `first`: where it begins in each
    partition that has records of it; `ended`: what the marker there says, which is at `marks`. `offsets`:
    what it commits for groups. `durable`: whether a commit survives a power cut.
    """

    name: str
    producer: tuple[int, int]
    outcomes: set[str] = field(default_factory=lambda: {"abort"})
    first: dict[Part, int] = field(default_factory=dict)
    ended: dict[Part, str] = field(default_factory=dict)
    marks: dict[Part, int] = field(default_factory=dict)
    offsets: list[Sent] = field(default_factory=list)
    decided: bool = False  # it was said to be ended
    over: bool = False
    durable: bool = False


@dataclass(eq=False)
class Attempt:
    """Records that somebody tried to write together. `status`: "maybe" until it is known whether they are
    there; "staged" while a manifest waits; "done"; "failed" where an error said that they are not there: only
    a power cut may bring them back, since the cut of the file is not synced; "gone" where nothing may.
    """

    tag: str
    part: Part
    records: list[Content]
    transaction: Transaction | None = None
    sequence: tuple[int, int, int] | None = None  # producer id, epoch, first sequence
    status: str = "maybe"
    at: int = -1
    seen: int = 0  # how many of them are in the log


@dataclass(eq=False)
class Entry:
    """A record in the log. `written`: the largest time that the clock had shown by then."""

    offset: int
    content: Content
    attempt: Attempt
    written: int
    removed: bool = False  # by compaction


class Part:
    """A partition. `controls`: offset to ("commit" or "abort", producer). `durable`: below it nothing may be
    lost, whatever happens. `owner`: by (leader epoch, offset), what was ever seen there. `sequences`: of each
    producer, (first sequence, records, offset, whose they are) of its appends.
    """

    def __init__(self, topic: Topic, number: int) -> None:
        self.topic, self.number = topic, number
        self.start = self.end = self.durable = 0
        self.entries: dict[int, Entry] = {}
        self.controls: dict[int, tuple[str, tuple[int, int]]] = {}
        self.owner: dict[tuple[int, int], object] = {}
        self.sequences: dict[tuple[int, int], list[tuple[int, int, int, Attempt]]] = {}
        self.attempts: list[Attempt] = []
        self.starts: set[int] = set()  # where it may begin: somebody asked for it

    def __repr__(self) -> str:
        return f"{self.topic.name}-{self.number}"

    @property
    def key(self) -> Key:
        return self.topic.name, self.number

    def live(self) -> Iterator[Entry]:
        """What a reader of everything gets, in order."""
        return (e for e in self.entries.values() if e.offset >= self.start and not e.removed)

    def outcome(self, entry: Entry) -> str:
        """ "commit", "abort" or "open"."""
        transaction = entry.attempt.transaction
        return "commit" if transaction is None else transaction.ended.get(self, "open")

    def stable(self, transactions: list[Transaction]) -> int:
        """The last stable offset."""
        open_ones = [t.first[self] for t in transactions if self in t.first and self not in t.ended]
        return min([max(o, self.start) for o in open_ones], default=self.end)

    def add(self, offset: int, content: Content, attempt: Attempt, written: int) -> None:
        self.entries[offset] = Entry(offset, content, attempt, written)
        attempt.seen += 1
        if attempt.transaction is not None:
            attempt.transaction.first.setdefault(self, offset)

    def cut(self, end: int) -> None:
        """A power cut has taken what is behind."""
        for offset in [o for o in self.entries if o >= end]:
            entry = self.entries.pop(offset)
            entry.attempt.status = "gone"
            transaction = entry.attempt.transaction
            if transaction is not None and transaction.first.get(self) == offset:
                del transaction.first[self]
        self.controls = {o: told for o, told in self.controls.items() if o < end}
        self.sequences = {
            who: kept for who, rows in self.sequences.items() if (kept := [r for r in rows if r[2] < end])
        }
        self.end = end


class Topic:
    """`was_compacted`: whether its settings ever let compaction remove records. `doubts`: settings that it
    may have got instead; `total`: partitions that it may have got.
    """

    def __init__(self, name: str, partitions: int, config: dict[str, object]) -> None:
        self.name, self.config = name, dict(config)
        self.was_compacted = self.compacted
        self.doubts: list[dict[str, object]] = []
        self.total = partitions
        self.parts = [Part(self, n) for n in range(partitions)]

    @property
    def policy(self) -> str:
        return str(self.config.get("cleanup.policy", "delete"))

    @property
    def compacted(self) -> bool:
        return "compact" in self.policy


def drawn_records(tag: str, n: int, now: int, keyed: bool, stamps: str) -> list[Content]:
    """`n` records whose content says whose they are: by the value, or by a header where it is None."""
    made: list[Content] = []
    for i in range(n):
        h = zlib.crc32(f"{tag}.{i}".encode())
        key = b"k%d" % (h % 7) if keyed else None
        name = f"{tag}.{i}".encode()
        gone = keyed and h >> 8 & 3 == 0
        value = None if gone else name + b"|" + b"v" * (h >> 10 & 63)
        headers: tuple[tuple[str, bytes | None], ...] = (("tag", name),) if gone else ()
        if h >> 20 & 7 == 0:
            headers += (("x", None), ("ü", b""))
        stamp = now + {"rising": i, "mixed": (h >> 12) % 4000 - 3000, "far": (h >> 5) % 3_000_000}[stamps]
        made.append((key, value, headers, stamp))
    return made


def tag_of(content: Content) -> tuple[str, int]:
    """Whose record this is, and which of them."""
    _, value, headers, _ = content
    told = dict(headers)["tag"] if value is None else value.split(b"|")[0]
    tag, _, number = (told or b"").decode().rpartition(".")
    return tag, int(number)


def same(wanted: Content, found: Content) -> bool:
    """A timestamp of -1 stands for any."""
    return wanted[:3] == found[:3] and wanted[3] in (-1, found[3])
