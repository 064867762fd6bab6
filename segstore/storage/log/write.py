"""Appends that C leaves to Python: each is written by its own thread, with the append token held.

Encoding and compression are done before the token is taken (of a long append for its first bytes only),
fsync after it is let go of. Threads: any.
Appends that C makes need no token: they are written under the tail's lock (`_native/append.c`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from segstore.config.arguments import INT64_MAX
from segstore.mutex import check_apart, holds_any, refused, under_way

if TYPE_CHECKING:
    from segstore.records import Encoded
    from segstore.storage.log.partition import Partition
    from segstore.storage.producers.append_info import Claim, ExpectedEnd


def write(partition: Partition, chunks: Iterable[Encoded], claim: Claim | ExpectedEnd | None = None) -> int:
    """Write encoded batches with contiguous offsets, visible together; return the first offset. With a
    `claim` Kafka's rules for a producer with an id are applied first, or the log's end is compared with the
    offset that is expected.

    Raises StorageError, OffsetMismatchError, and the errors of `append_info.judge`; nothing is written then.
    After an interrupt the log has all of the append, visible, or nothing.
    """
    _check_apart(partition)
    with partition.token:
        try:
            return partition.writer.write(chunks, claim)
        finally:
            partition.show()
            partition.tail.open(partition.validator)


def write_long(
    partition: Partition, chunks: Iterator[Encoded], ahead: int, expected: ExpectedEnd | None = None
) -> int:
    """Write batches as `write`, while they are encoded: only the first `ahead` bytes are encoded before the
    token is taken.
    """
    ready: list[Encoded] = []
    size = 0
    for chunk in chunks:
        ready.append(chunk)
        size += chunk.size
        if size > ahead:
            return partition.put(chain(ready, chunks), expected)
    return partition.put(ready, expected)


def _check_apart(partition: Partition) -> None:
    """Raise ReentrantCallError, before anything is written, if a signal handler appends within a call that
    would keep the record from becoming visible or durable.
    """
    visible = partition.visible
    needed = visible.publishing, visible.flusher.lock, visible.publisher.lock
    # If no call is under way, an interrupt has left the lock taken (`Mutex.__enter__`).
    if holds_any(of=needed) and (outer := under_way()) is not None:
        raise refused(outer)
    if partition.writer.config.flush_messages != INT64_MAX:
        check_apart("append()")
