"""`log_bytes`: the size of an archive's logs, for the progress report of a `restore`.

The archive is only read. Threads: any; functions without state.
"""

from __future__ import annotations

from collections.abc import Collection

from segstore.archiving.chain import Objects, read_state
from segstore.archiving.remote import RemoteFiles
from segstore.archiving.segment_list import read_segments
from segstore.archiving.state import ArchivedPartition


def log_bytes(uri: str, topics: Collection[str] | None = None) -> int:
    """Return the number of bytes of the logs in an archive's newest state: of the topics `topics`, or of all
    topics if `topics` is None. Raises the errors of `read_state`.
    """
    objects = RemoteFiles(uri)
    wanted = [
        each for each in read_state(objects).partitions.values() if topics is None or each.key.topic in topics
    ]
    return sum(_of_partition(objects, each) for each in wanted)


def _of_partition(objects: Objects, partition: ArchivedPartition) -> int:
    segments = read_segments(objects, partition).current
    return sum(each.length for each in partition.pieces) + sum(each.size for each in segments)
