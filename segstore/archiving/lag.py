"""`lags`: an archive's lag behind its store. Nothing is on disk. Threads: any."""

from __future__ import annotations

from collections.abc import Mapping

from segstore.archiving.archiver import Archiver
from segstore.archiving.moment import Moments
from segstore.archiving.object_names import TopicIdPartition
from segstore.archiving.state import ArchivedPartition
from segstore.errors import StoreClosedError, UnknownTopicOrPartitionError
from segstore.replica_fetcher.source_end import UNKNOWN, Lag
from segstore.storage.meta.published_ends import Ends


def lags(moments: Moments, archiver: Archiver | None) -> dict[tuple[str, int], Lag]:
    """Return {(topic, partition): lag} of all archived partitions. Raises StoreClosedError, OSError."""
    moments.store.context.check_open()
    now = moments.ends_now(moments.slots)
    if archiver is None or archiver.carried is None:
        return {(key.topic, key.partition): UNKNOWN for key in now}
    had = archiver.state.partitions
    ms = max(moments.store.context.clock() - archiver.carried.time, 0)
    found = {}
    for key, ends in now.items():
        there = had.get(key)
        end = ends.start if there is None else there.end
        records = max(ends.high_watermark - end, 0)
        behind = _lag_bytes(moments, key, ends, there) if records else 0
        found[key.topic, key.partition] = Lag(records, behind, ms if records else 0)
    return found


def total_of(found: Mapping[tuple[str, int], Lag]) -> Lag:
    """Return the sums of records and bytes of all known lags, and the largest number of ms."""
    known = [lag for lag in found.values() if lag.records >= 0]
    if found and not known:
        return UNKNOWN
    return Lag(
        sum(lag.records for lag in known),
        sum(lag.bytes for lag in known),
        max((lag.ms for lag in known), default=0),
    )


def _lag_bytes(moments: Moments, key: TopicIdPartition, ends: Ends, had: ArchivedPartition | None) -> int:
    """Return the size in bytes of the part of a log that is not archived, or 0 if the log can't be read."""
    try:
        view = moments.view(key)
    except (StoreClosedError, UnknownTopicOrPartitionError, OSError):
        return 0
    pieces = had.pieces if had is not None else ()
    base, position = (pieces[-1].base, pieces[-1].position + pieces[-1].length) if pieces else (-1, 0)
    if not pieces and had is not None:
        base = had.end
    sizes = (view.end_of(slot) for slot, each in enumerate(view.bases) if each >= base)
    return max(sum(sizes) - position, 0)
