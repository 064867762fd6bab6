"""What `compression` measures: one run of each kind. On disk: a topic a run, deleted behind it.

Threads: this one; segstore compresses on others, whose CPU time counts too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from segstore.bench.studies.common import new_log
from segstore.errors import StorageError
from segstore.records.codecs import compress, decompress
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

RATIO, WRITE, READ = "ratio", "write CPU s/GB", "read CPU s/GB"
USUAL_BYTES = 65536
LARGEST_MESSAGE = 4 << 20
Values = Sequence[bytes]


def each(store: Store, values: Values, codec: int) -> Mapping[str, float]:
    """Each value a frame of its own, appended as it is."""

    def write(log: PartitionLog) -> None:
        log.append_batch([bytes(compress(codec, value)) for value in values], batch_bytes=USUAL_BYTES)

    return _measured(store, values, write, lambda value: bytes(decompress(codec, value)))


def batches(store: Store, values: Values, codec: str, size: int) -> Mapping[str, float]:
    """Batches of `size` bytes before compression."""

    def write(log: PartitionLog) -> None:
        log.append_batch(values, compression=codec, batch_bytes=size)

    return _measured(store, values, write, bytes)


def _measured(
    store: Store,
    values: Values,
    write: Callable[[PartitionLog], None],
    plain: Callable[[bytes], bytes],
) -> Mapping[str, float]:
    log = new_log(store, "t", max_message_bytes=LARGEST_MESSAGE)
    began = time.process_time()
    write(log)
    written = time.process_time()
    found = _read(log, plain)
    ended = time.process_time()
    log.flush()
    size, raw = log.size, sum(map(len, values))
    store.delete_topic("t")
    if found != values:
        raise StorageError("what was read back is not what was written")
    gigabytes = raw / 1e9
    return {RATIO: raw / size, WRITE: (written - began) / gigabytes, READ: (ended - written) / gigabytes}


def _read(log: PartitionLog, plain: Callable[[bytes], bytes]) -> Values:
    found: list[bytes] = []
    at = 0
    while at < log.end_offset:
        records = log.read(at)
        at = records.next_offset
        found += [plain(value or b"") for value in records.values]
    return found
