"""Batches as producers send them, given to `append_as_leader`: written whole, or refused by name with nothing
written.

On disk: a store in a temporary directory, removed with the process.
"""

from __future__ import annotations

from functools import cache

import memory
import sent
from stores import Clock

import segstore
from fuzz import batches
from fuzz.target import Target
from segstore._native import ffi
from segstore.errors import (
    CorruptRecordError,
    DuplicateSequenceError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
)

_TOPICS = ({}, {"compression.type": "zstd"}, {"message.timestamp.type": "LogAppendTime"})
_REFUSALS = (
    CorruptRecordError,
    InvalidRecordError,
    RecordTooLargeError,
    OutOfOrderSequenceError,
    DuplicateSequenceError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
)


class _Log:
    """The logs of topics with different settings; the store goes with its directory."""

    def __init__(self) -> None:
        self._work = memory.directory()
        self._store = segstore.open(self._work.name, clock=Clock(sent.NOW))
        self.logs = []
        for number, config in enumerate(_TOPICS):
            self._store.create_topic(f"t{number}", config={"cleanup.policy": "compact", **config})
            self.logs.append(self._store.partition(f"t{number}"))


@cache
def _opened() -> _Log:
    return _Log()


def seeds() -> list[bytes]:
    """Batches in each codec, of producers and transactions; and what logs hold, with base offset 0."""
    made = [sent.batch(codec) for codec in range(5)]
    made += [sent.of_producer(seq, 2) for seq in range(0, 10, 2)]
    made += [sent.of_producer(0, 3, pid=9, attributes=0x10)]
    return [*map(bytes, made), *(bytes(8) + data[8:] for data in batches.made())]


def append(data: bytes) -> str:
    """The same to each topic: what was taken is read back, with the offsets that were told."""
    return ", ".join(_appended(log, data) for log in _opened().logs)


def _appended(log: segstore.PartitionLog, data: bytes) -> str:
    # Exactly as large, so that the sanitizer sees a step beyond it.
    received = memoryview(ffi.buffer(ffi.new("uint8_t[]", max(len(data), 1)), len(data)))
    received[:] = data
    end, size = log.end_offset, log.size
    try:
        appended = log.append_as_leader(received, verified=True)
    except _REFUSALS as error:
        assert (log.end_offset, log.size) == (end, size), "something was written"
        return type(error).__name__
    if appended.duplicate:
        assert log.end_offset == end
        return "duplicate"
    first, after = appended.base_offset, log.end_offset
    assert (first, after) == (end, end + appended.records)
    assert log.read(first, 1).offsets.tolist() == list(range(first, after))
    return "written"


TARGETS = {"sent batches": Target(append, seeds, batches.MUTATORS, batches.with_crcs, allowed=())}
