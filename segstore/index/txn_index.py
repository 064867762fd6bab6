"""The transaction index of a segment, `.txnindex`: the transactions that a marker in this segment aborted.

An entry has 34 bytes, big-endian: version int16 = 0, then as int64 producer id, first offset, last offset
(the marker's) and last stable offset (org.apache.kafka.storage.internals.log.AbortedTxn). Last offsets rise.
There is no file before a segment's first abort. Like every index the file is only a hint: the entries before
the first impossible entry are used, and if other bytes follow these entries, the log's control batches are
read. Threads: any; functions without state.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from segstore.arrays import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

ENTRY_SIZE = 34


@cache
def entry_type() -> np.dtype[np.void]:
    """Return the packed numpy type of an entry on disk."""
    return np.dtype(
        [
            ("version", ">i2"),
            ("producer_id", ">i8"),
            ("first_offset", ">i8"),
            ("last_offset", ">i8"),
            ("last_stable_offset", ">i8"),
        ]
    )


VERSION = 0


class AbortedTxn(NamedTuple):
    """An aborted transaction: its producer's batches from `first_offset` to `last_offset`, which is the
    marker's offset.

    When the marker was written, every transaction below `last_stable_offset` had ended.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def parse(data: bytes, base_offset: int = 0) -> NDArray[np.void]:
    """Return the entries before the first entry that can't belong to the segment with `base_offset`: an array
    of `entry_type`, which is a view of `data`. All entries of the file are valid if `len(result) * ENTRY_SIZE
    == len(data)`.
    """
    found = np.frombuffer(data, entry_type(), len(data) // ENTRY_SIZE)
    first, last = found["first_offset"], found["last_offset"]
    good = (found["version"] == VERSION) & (found["producer_id"] >= 0) & (found["last_stable_offset"] >= 0)
    # A transaction has a record before its marker, so the zeros that a power cut may leave are no entry.
    good &= (first >= 0) & (first < last) & (last >= base_offset)
    good[1:] &= last[1:] > last[:-1]
    return found if good.all() else found[: int(good.argmin())]


def format_entries(txns: Iterable[AbortedTxn]) -> bytes:
    """Return the bytes that store these transactions in the file."""
    return np.array([(VERSION, *txn) for txn in txns], entry_type()).tobytes()


def aborted(entries: NDArray[np.void], fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTxn], bool]:
    """Return (the `entries` that overlap offsets [fetch_offset, upper_bound), whether later segments have no
    more such entries). `entries` is an array of `entry_type` (Kafka: TransactionIndex.collectAbortedTxns).
    """
    decided = np.flatnonzero(entries["last_stable_offset"] >= upper_bound)
    looked_at = entries[: int(decided[0]) + 1] if len(decided) else entries
    hit = (looked_at["last_offset"] >= fetch_offset) & (looked_at["first_offset"] < upper_bound)
    return [AbortedTxn(*fields[1:]) for fields in looked_at[hit].tolist()], bool(len(decided))
