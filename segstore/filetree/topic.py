"""Creates and writes a file tree's topic, a compacted topic with one partition. On disk is the topic, which
the engine writes.

Threads: any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from segstore.errors import ConfigError, RecordTooLargeError, TopicAlreadyExistsError
from segstore.filetree import nodes
from segstore.filetree.nodes import File, Node
from segstore.records import HEADER_SIZE, Columns
from segstore.storage.log.append import append_batches
from segstore.storage.meta.topic_info import check_not_internal
from segstore.storage.meta.topics import find_topic
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

CHUNK_BYTES = 1 << 20
SETTINGS: Mapping[str, Any] = {
    "cleanup.policy": "compact",
    "max.message.bytes": 8 << 20,
    "segment.bytes": 64 << 20,
    "flush.ms": 1000,
}
"""The settings of the topic. Records are synced within a second, or earlier by a call of `flush`. A batch of
8 MiB has room for a rename of some 20,000 files.
"""


def files_log(store: Store, topic: str) -> PartitionLog:
    """Return the topic's log to read. Raises UnknownTopicOrPartitionError, and ConfigError if the topic can't
    hold files.
    """
    info = find_topic(store.topics(), topic)
    if info.partition_ids != (0,):
        raise ConfigError(f"topic {topic!r} has partitions {list(info.partition_ids)}: files are kept in one")
    policy = info.settings.cleanup_policy
    if info.ours and "compact" not in policy:
        raise ConfigError(f"topic {topic!r} has cleanup.policy={policy}: files are kept in a compacted topic")
    return store.partition(topic, 0)


def make_topic(store: Store, topic: str, config: Mapping[str, Any]) -> None:
    """Create the topic if it is missing. `config` overrides SETTINGS. Raises ConfigError, StorageError."""
    check_not_internal(topic, "files are kept in a topic of their own")
    if topic in store.topics():
        return
    try:
        store.create_topic(topic, config={**SETTINGS, **config})
    except TopicAlreadyExistsError:
        store.await_topic(topic)  # another thread has just created the topic


# --- writing -----------------------------------------------------------------------------------

# A change of a tree is a list of entries, each a key and a value. A batch writes its entries together or not
# at all.

Entry = tuple[bytes, "bytes | None"]
_RECORD_BYTES = 36  # the varints and attributes of a record have at most this many bytes
_BESIDE = 16 << 10  # a batch with a chunk keeps this many bytes for paths
_AT_A_TIME = 10_000


def puts(changed: Mapping[str, Node]) -> Iterator[Entry]:
    """Yield the entries that store these nodes."""
    return ((nodes.path_key(path), nodes.path_value(node)) for path, node in changed.items())


def gone_chunks(node: Node | None) -> list[Entry]:
    """Return tombstones of a file's chunks; an empty list for a directory or None."""
    if not isinstance(node, File):
        return []
    return [(nodes.chunk_key(node.id, n), None) for n in range(len(node.chunks))]


def chunk_bytes(log: PartitionLog) -> int:
    """Return the chunk size of a new file: CHUNK_BYTES, or fewer bytes if the topic's limit for a batch
    requires that.
    """
    most = log.partition_for_write().validator.largest_batch
    return min(CHUNK_BYTES, max(most - _BESIDE, most // 2, 1))


def append(log: PartitionLog, entries: Sequence[Entry]) -> int:
    """Write the entries as one batch; return the first offset. Raises RecordTooLargeError, StorageError;
    nothing was written then.
    """
    size = HEADER_SIZE + sum(len(key) + len(value or b"") + _RECORD_BYTES for key, value in entries)
    limit = log.partition_for_write().validator.largest_batch
    if size > limit:
        raise RecordTooLargeError(
            f"{len(entries):,} records of files make a batch of {size:,} bytes: max.message.bytes allows "
            f"{limit:,}, since they are written together or not at all"
        )
    return _append(log, entries)


def append_all(log: PartitionLog, entries: Sequence[Entry]) -> None:
    """Write the entries in as many batches as necessary. If the process is killed during the call, the log
    may have only the first batches.
    """
    for at in range(0, len(entries), _AT_A_TIME):
        _append(log, entries[at : at + _AT_A_TIME])


def _append(log: PartitionLog, entries: Sequence[Entry]) -> int:
    keys, values = [key for key, _ in entries], [value for _, value in entries]
    return append_batches(log, Columns(values, keys, timestamp=log.context.clock())).first
