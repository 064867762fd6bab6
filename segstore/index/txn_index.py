"""Owns the bytes of a segment's .txnindex: the transactions that were aborted by a marker in this segment.

34 bytes an entry, big-endian: version int16 = 0, producer id, first offset, last offset (the
marker's) and last stable offset, int64 each (org.apache.kafka.storage.internals.log.AbortedTxn). Last
offsets rise. There is no file before a segment's first abort. Like every index it is a hint: one that
can't be is taken for none, and the log's control batches are asked.

Threads: any; functions without state.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from segstore.errors import CorruptCheckpointError

VERSION = 0

_ENTRY = struct.Struct(">hqqqq")


class AbortedTxn(NamedTuple):
    """An aborted transaction: all of its producer's batches from `first_offset` to `last_offset`, its marker.

    Below `last_stable_offset` every transaction was decided when the marker was written.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def parse_txn_index(data: bytes, where: str) -> list[AbortedTxn]:
    """The entries of a whole file. CorruptCheckpointError, which names `where` (Kafka: CorruptIndexException)."""
    if len(data) % _ENTRY.size:
        raise CorruptCheckpointError(where, 0, f"{len(data)} bytes are not entries of {_ENTRY.size}")
    found: list[AbortedTxn] = []
    for version, *fields in _ENTRY.iter_unpack(data):
        txn = AbortedTxn(*fields)
        wrong = _wrong(version, txn, found[-1].last_offset if found else -1)
        if wrong:
            raise CorruptCheckpointError(where, 0, f"entry {len(found)}: {wrong}")
        found.append(txn)
    return found


def _wrong(version: int, txn: AbortedTxn, before: int) -> str | None:
    if version != VERSION:
        return f"version {version} is unknown, {VERSION} is known"
    if min(txn) < 0:
        return "a number is negative"
    if txn.first_offset > txn.last_offset:
        return f"first offset {txn.first_offset} is above the last, {txn.last_offset}"
    if txn.last_offset <= before:
        return f"last offset {txn.last_offset} is not above {before} of the entry before"
    return None


def format_txn_index(txns: Iterable[AbortedTxn]) -> bytes:
    """The bytes of some entries, which `parse_txn_index` takes back; those of a file may be appended to."""
    return b"".join(_ENTRY.pack(VERSION, *txn) for txn in txns)


def aborted(txns: Sequence[AbortedTxn], fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTxn], bool]:
    """Those that overlap offsets [fetch_offset, upper_bound), and whether these are all there are.

    False: later segments may have more (Kafka: TransactionIndex.collectAbortedTxns).
    """
    found: list[AbortedTxn] = []
    for txn in txns:
        if txn.last_offset >= fetch_offset and txn.first_offset < upper_bound:
            found.append(txn)
        if txn.last_stable_offset >= upper_bound:
            return found, True
    return found, False
