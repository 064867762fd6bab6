"""Owns `.segstore/producer-ids`: up to where producer ids were handed out, in blocks of 1,000.

One line: version 1, the first id that no block has, and the CRC-32 (hex) of what is before it. It is written
and synced before the first id of a block is used (Kafka: ProducerIdManager). Where it is missing, or is no
such line, ids go on above all that any partition or transaction knows: two producers with one id would take
each other's batches for duplicates.
Threads: any; one lock.
"""

from __future__ import annotations

import logging
import os
import threading
import zlib

from segstore import names
from segstore.client.transactions.state_log import TransactionStateLog
from segstore.errors import SegstoreError, StorageError
from segstore.storage import markers
from segstore.storage.context import os_errors
from segstore.storage.store import Store

log = logging.getLogger("segstore")

BLOCK = 1000
_MOST = 256  # bytes of the file
_LAST = (1 << 63) - 1 - BLOCK
_DIGITS = len(str(_LAST))


class ProducerIds:
    """Producer ids that nobody had before; one of these a store."""

    def __init__(self, store: Store) -> None:
        self._store, self._files = store, store._context.files
        self._path = os.path.join(store.path, names.OURS, names.PRODUCER_IDS)
        self._lock = threading.Lock()
        self._next = self._end = 0

    def next(self, above: int = -1) -> int:
        """A new producer id, larger than `above`. StorageError: none was given, asking again may help."""
        with self._lock:
            if self._next == self._end or self._next <= above:
                self._take_block(above)
            self._next += 1
            return self._next - 1

    def close(self) -> None:
        """What is left of the block is not used."""

    def _take_block(self, above: int) -> None:
        with os_errors():
            first = self._read()
            if first is None:
                above, first = max(above, self._known()), 0
            if above >= first:
                first = (above // BLOCK + 1) * BLOCK
            if first > _LAST:
                raise StorageError(f"there is no producer id above {above}")
            line = f"1 {first + BLOCK}"
            self._files.write_atomic(self._path, f"{line} {zlib.crc32(line.encode()):08x}\n".encode())
        self._next, self._end = first, first + BLOCK

    def _read(self) -> int | None:
        if not self._files.exists(self._path):
            return None
        found = parse(self._files.read_file(self._path, _MOST))
        if found is None:
            log.warning("%s is damaged: producer ids go on above all that are known", self._path)
        return found

    def _known(self) -> int:
        """The largest id that the logs know."""
        found = [-1]
        for topic, info in self._store.topics().items():
            for partition in info.partition_ids:
                try:
                    found.append(markers.max_producer_id(self._store.partition(topic, partition)))
                except StorageError:
                    raise
                except SegstoreError as error:  # nobody can write there either
                    log.warning("producer ids of %s-%d are not known: %s", topic, partition, error)
        for known in TransactionStateLog(self._store).load().values():
            found += [known.producer_id, known.previous_producer_id, known.next_producer_id]
        return max(found)


def parse(data: bytes) -> int | None:
    """The id in the file's content; None for what was never written."""
    line, _, crc = data.rpartition(b" ")
    if crc != b"%08x\n" % zlib.crc32(line):
        return None
    version, _, number = line.partition(b" ")
    if version != b"1" or not number.isdigit() or len(number) > _DIGITS or int(number) > _LAST:
        return None
    return int(number)
