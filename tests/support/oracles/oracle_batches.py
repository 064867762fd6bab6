"""Batches as the oracle of a log writes them: given records, encoded by the codec oracle, compressed by
frames that store.

Nothing here is segstore's. A batch gets its offset when it is written (DefaultRecordBatch.setLastOffset), and
its records stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import stored_codecs
from oracle import HEADER, Batch, Headers, Record, encode_records
from oracle_producers import SEQUENCES, Ids

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NOBODY = Ids()


class Given(NamedTuple):
    """A record as it is given to an append; without a `timestamp` it gets the clock's."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int | None = None

    def at(self, delta: int, now: int) -> Record:
        """Return the record of a batch that begins `delta` records earlier."""
        stamp = now if self.timestamp is None else self.timestamp
        headers: Headers = [(name.encode(), value) for name, value in self.headers]
        return Record(delta, stamp, self.key, self.value, headers)


class Draft(NamedTuple):
    """A batch that is ready to be written; `kind` is that of a marker, None of data."""

    batch: Batch
    payload: bytes
    kind: int | None = None

    @property
    def size(self) -> int:
        return HEADER.size + len(self.payload)


def packed(codec: int, plain: bytes) -> bytes:
    """Return records as `stored_codecs` compresses them."""
    made: bytes = getattr(stored_codecs, CODECS[codec])(memoryview(plain), None) if codec else plain
    return made


def draft(batch: Batch, codec: int = 0, kind: int | None = None) -> Draft:
    """Return a batch, which has no codec yet, with its records compressed."""
    return Draft(
        replace(batch, attributes=batch.attributes | codec), packed(codec, encode_records(batch)), kind
    )


def of_records(records: Sequence[Record], ids: Ids = NOBODY, codec: int = 0, before: int = 0) -> Draft:
    """Return one batch of these records, `before` records of the same append lie in others."""
    sequence = (ids.sequence + before) % SEQUENCES if ids.sequence >= 0 else -1
    batch = Batch(
        0, -1, ids.attributes, len(records) - 1, records[0].timestamp, max(r.timestamp for r in records),
        ids.producer_id, ids.epoch, sequence, list(records),
    )  # fmt: skip
    return draft(batch, codec)
