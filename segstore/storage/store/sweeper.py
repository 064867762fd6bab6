"""`Sweeper`: runs retention and compaction on one store, in the background and on request.

Retention removes segments by the methods of `Partition`, and the cleaner rewrites segments.
`meta.sweep_states` writes a file with the results of each partition's sweeps. Threads: one background thread,
and one for each call of `sweep` or `upgrade`, so that Ctrl-C ends the caller's wait and not the sweep. Only
one sweep or upgrade runs at a time. If retention falls due during a long compaction or upgrade of one
partition, the same thread runs retention for all other partitions. An error in one partition is recorded, and
the sweep goes on with the next partition. A topic without segstore's settings, which a broker has made, is
never swept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from segstore import names
from segstore.config import StoreConfig
from segstore.errors import SegstoreError, StorageError, StoreClosedError
from segstore.files.reserve import NO_ROOM
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.storage.cleaner import CleanResult, Throttler, clean, cleanable
from segstore.storage.cleaner.throttle import GivingWay
from segstore.storage.context import StoreContext
from segstore.storage.log import retention
from segstore.storage.log.partition import Partition
from segstore.storage.meta.root_checkpoints import OffsetCheckpoint, TopicPartitionKey
from segstore.storage.meta.sweep_states import SweepState, SweepStates
from segstore.storage.meta.topics import TopicInfo
from segstore.storage.scheduler import Scheduler
from segstore.storage.store.upgrader import Upgraded, Upgrader
from segstore.threads import Latch, apart

# --- sweeping ----------------------------------------------------------------------------------

Topics = Callable[[], Mapping[str, TopicInfo]]
Open = Callable[[str, int], Partition]


class Swept(NamedTuple):
    """The result of a sweep of a partition: the numbers of segments and bytes that retention removed, and of
    records and bytes that compaction removed. `error` is the text of the sweep's error, or None.
    """

    topic: str
    partition: int
    deleted_segments: int = 0
    deleted_bytes: int = 0
    compacted_records: int = 0
    compacted_bytes: int = 0
    error: str | None = None

    def failed(self, error: Exception) -> Swept:
        """Return a copy of this result with the text of `error`."""
        return self._replace(error=str(error) or type(error).__name__)

    def plus(self, other: Swept) -> Swept:
        """Return the sum of two results of the same partition. The sum has the error of `other`; if `other`
        has none, the error of this result.
        """
        counts = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        return self._replace(error=other.error or self.error, **counts)


_COUNTS = ("deleted_segments", "deleted_bytes", "compacted_records", "compacted_bytes")


class SweepStep(Protocol):
    """One kind of sweep: retention or compaction."""

    def due(self, now: int) -> list[TopicPartitionKey]:
        """Return the partitions that may need this step, in the order in which to sweep them."""

    def run(self, key: TopicPartitionKey, now: int) -> Swept | None:
        """Sweep a partition, and return the result; None if there was nothing to do. A failure is raised
        (SegstoreError, OSError), or its text is in the result's `error`.
        """


def _swept(topics: Topics, wanted: Callable[[TopicInfo], bool]) -> Iterator[TopicPartitionKey]:
    for info in topics().values():
        if info.ours and info.error is None and wanted(info):
            yield from ((info.name, number) for number in info.partition_ids)


class RetentionSweep:
    """Rolls old segments, and removes segments by the retention settings."""

    def __init__(self, topics: Topics, partition: Open, failed: Callable[[Exception], object]) -> None:
        self._topics, self._partition, self._failed = topics, partition, failed

    def due(self, now: int) -> list[TopicPartitionKey]:
        return list(_swept(self._topics, lambda info: _kept_for_a_time(info) or _is_compacted(info)))

    def run(self, key: TopicPartitionKey, now: int) -> Swept | None:
        partition = self._partition(*key)
        failed: StorageError | None = None
        try:
            partition.roll_if_old(now)
        except StorageError as error:
            # Retention goes on, because removing segments may make room for the next try to roll.
            failed = error
            self._failed(error)
        with partition.context.reserve:
            result = partition.log_start.retain(now)
        done = Swept(*key, result.segments, result.bytes)
        return done.failed(failed) if failed else done if result.segments else None


class Compaction:
    """Compacts logs with the log cleaner, the dirtiest log first (Kafka:
    LogCleanerManager.grabFilthiestCompactedLog).
    """

    def __init__(
        self,
        topics: Topics,
        partition: Open,
        config: StoreConfig,
        cleaned: OffsetCheckpoint,
        throttle: Throttler,
        checkpoint: Callable[[], None],
        failed: Callable[[Exception], object],
    ) -> None:
        """`checkpoint()` makes the recovery points durable. `failed(error)` is called if a compaction raises
        an error; `run` returns the text of the error in `Swept.error`.
        """
        self._failed = failed
        self._topics, self._partition, self._config = topics, partition, config
        self._cleaned, self._throttle, self._checkpoint = cleaned, throttle, checkpoint
        self.no_room: set[TopicPartitionKey] = set()
        """Partitions whose last compaction found no room for new segments."""

    def due(self, now: int) -> list[TopicPartitionKey]:
        ranked = [(self._rank(key, now), key) for key in _swept(self._topics, _is_compacted)]
        return [key for rank, key in sorted(ranked, reverse=True) if rank >= 0]

    def _rank(self, key: TopicPartitionKey, now: int) -> float:
        try:
            dirty = cleanable(self._partition(*key), self._cleaned.get(key), now)
        except (SegstoreError, OSError):
            # `run` must be called for this partition, because it raises the same error, which is reported.
            return math.inf
        return -1.0 if dirty is None else dirty.ratio

    def run(self, key: TopicPartitionKey, now: int) -> Swept | None:
        self.no_room.discard(key)
        partition, cleaned = self._partition(*key), self._cleaned
        dirty = cleanable(partition, cleaned.get(key), now)
        if dirty is None:
            return None

        def advanced(offset: int) -> None:
            # While this lock is held, the topic can't be deleted, so the offset is not written for a new
            # topic of the same name.
            with partition.context.reserve, partition.names_held():
                cleaned.update({key: offset})

        freed: Swept | None = None

        def swapped(done: CleanResult) -> None:
            nonlocal freed
            records, size = done.records_before - done.records_after, done.bytes_before - done.bytes_after
            counts = Swept(*key, compacted_records=records, compacted_bytes=size)
            freed = counts if freed is None else freed.plus(counts)

        try:
            clean(
                partition,
                self._config,
                now,
                self._throttle,
                cleaned.get(key),
                advanced,
                swapped,
                self._checkpoint,
            )
        except StoreClosedError:
            raise
        except (SegstoreError, OSError) as error:
            self._failed(error)
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                self.no_room.add(key)
            # The result counts the segments that were swapped before the error.
            return (freed or Swept(*key)).failed(error)
        return freed


def _kept_for_a_time(info: TopicInfo) -> bool:
    return retention.applies(info.settings)


def _is_compacted(info: TopicInfo) -> bool:
    return "compact" in info.settings.cleanup_policy


# --- sweeper ------------------------------------------------------------

log = Logger("segstore")


class Sweeper:
    """Sweeps one store. `topics()` returns the current topics; `partition(topic, n)` opens a partition;
    `cleaned` is the cleaner's checkpoint; `checkpoint()` writes the checkpoints of the store.

    If the compaction of a partition has failed for another reason than a full disk, background sweeps don't
    compact the partition again until the store is opened anew (Kafka:
    LogCleanerManager.markPartitionUncleanable). A call of `sweep` tries again.
    """

    def __init__(
        self,
        context: StoreContext,
        config: StoreConfig,
        topics: Topics,
        partition: Open,
        cleaned: OffsetCheckpoint,
        checkpoint: Callable[[], None],
    ) -> None:
        self._context, self._config, self._topics = context, config, topics
        self.states = SweepStates(context.files, context.root)
        self._scheduler = Scheduler("segstore-sweeper", background=True)
        self._sweeping, self._closing = Mutex(), Latch()
        self._failed: dict[TopicPartitionKey, dict[SweepStep, str]] = {}
        self._ids = {name: info.topic_id for name, info in topics().items()}
        rate = config.log_cleaner_io_max_bytes_per_second
        throttle = GivingWay(rate, self._run_due_retention, stopping=self._closing)
        self._retained = time.monotonic()  # the time of the last retention, in monotonic seconds
        # The error of the last try to write the file of sweep results; None if there was none.
        self._unsaved: str | None = None
        # The partition that is being compacted or upgraded, else None.
        self._compacted: TopicPartitionKey | None = None
        self._retention = RetentionSweep(topics, partition, self._met)
        self._compaction = Compaction(topics, partition, config, cleaned, throttle, checkpoint, self._met)
        self._upgrader = partial(Upgrader, partition, config, throttle, checkpoint)

    def start(self) -> None:
        """Begin to sweep in the background, at the intervals in the settings."""
        config = self._config
        self._every(config.log_retention_check_interval_ms, self._retention)
        if config.log_cleaner_threads:
            self._every(config.log_cleaner_backoff_ms, self._compaction)

    def _every(self, interval_ms: int, step: SweepStep) -> None:
        self._scheduler.every(interval_ms / 1000, lambda: self._run(step))

    def sweep(self) -> tuple[Swept, ...]:
        """Apply retention, then compaction, to the partitions whose settings require them. Return the results
        of the partitions that were changed, or could not be swept.
        """
        run = partial(self._run, self._retention, self._compaction, by_hand=True)
        return apart(run, "segstore-sweep")

    def upgrade(self, keys: Sequence[TopicPartitionKey]) -> tuple[Upgraded, ...]:
        """Upgrade these partitions, which may belong to topics of a broker. Return the results of the
        partitions that have messages of magic 0 or 1. Raises StoreClosedError if the store is closed during
        this call, or if one of the topics is deleted during this call.
        """
        return apart(lambda: tuple(self._upgrade(keys)), "segstore-upgrade")

    def _upgrade(self, keys: Sequence[TopicPartitionKey]) -> Iterator[Upgraded]:
        with self._sweeping:
            for key in keys:
                self._compacted = key
                try:
                    done = self._upgrader().run(key)
                finally:
                    self._compacted = None
                if done is not None:
                    yield done

    def _run(self, *steps: SweepStep, by_hand: bool = False) -> tuple[Swept, ...]:
        found: dict[TopicPartitionKey, Swept] = {}
        with self._sweeping:
            self._clear()
            self._forget_gone()
            for step in steps:
                for done in self._step(step, by_hand):
                    key = done.topic, done.partition
                    found[key] = found[key].plus(done) if key in found else done
                if step is self._retention:
                    self._retained = time.monotonic()
            self._save()
        return tuple(found[key] for key in sorted(found))

    def _run_due_retention(self) -> float:
        """Run retention if it is due, also during a long compaction, and return the seconds until it is due
        again.
        """
        interval = self._config.log_retention_check_interval_ms / 1000
        left = self._retained + interval - time.monotonic()
        if left > 0 or self._closing.is_open:
            return max(left, 0.0)
        self._clear()
        for _ in self._step(self._retention, by_hand=False):
            pass  # `_step` has recorded the results, so they are not used here
        self._save()
        self._retained = time.monotonic()
        return interval

    def _save(self) -> None:
        """Write the file of sweep results; an error is only logged, because the next sweep tries again."""
        topics, reported = self._topics(), self._unsaved
        try:
            self.states.save(lambda key: key[0] in topics and key[1] in topics[key[0]].partition_ids)
            self._unsaved = None
        except OSError as error:
            self._unsaved = str(error)
            if self._unsaved != reported:
                log.warning("the notes of sweeps could not be written: %s", error)

    def _forget_gone(self) -> None:
        """Forget the errors and sweep results of deleted topics, so that no new topic of the same name gets
        them.
        """
        ids = {name: info.topic_id for name, info in self._topics().items()}
        same = {name for name, topic_id in ids.items() if self._ids.get(name, topic_id) == topic_id}
        self._ids = ids
        self._failed = {key: errors for key, errors in self._failed.items() if key[0] in same}
        self.states.keep(lambda key: key[0] in same)

    def _step(self, step: SweepStep, by_hand: bool) -> Iterator[Swept]:
        now = self._context.clock()
        due = step.due(now)
        for key in self._failed.keys() - set(due):
            # The topic was altered, and its settings don't require this step any more.
            if self._failed[key].pop(step, None) is not None:
                self._note(key, None, self.states[key].swept_ms)
        for key in due:
            if self._closing.is_open:
                return
            failed = self._failed.setdefault(key, {})
            if key == self._compacted or (self._skips(step, key) and not by_hand):
                continue
            try:
                done = self._swept(step, key, now)
            except StoreClosedError:
                continue  # the partition's topic was deleted
            except Exception as error:
                if not isinstance(error, (SegstoreError, OSError)):
                    log.exception("a defect, met in %s", names.partition_dir(*key))
                self._met(error)
                done = Swept(*key).failed(error)
            reported = failed.pop(step, None)
            if done is not None and done.error is not None:
                if done.error != reported:
                    log.warning("%s could not be swept: %s", names.partition_dir(*key), done.error)
                failed[step] = done.error
            self._note(key, done, now)
            if done is not None:
                yield done

    def _skips(self, step: SweepStep, key: TopicPartitionKey) -> bool:
        """Return whether background sweeps skip this step: it is compaction, and the partition's last
        compaction failed for another reason than a full disk.
        """
        return step is self._compaction and step in self._failed[key] and key not in self._compaction.no_room

    def _met(self, error: Exception) -> None:
        self._context.on_background_error(error)

    def _swept(self, step: SweepStep, key: TopicPartitionKey, now: int) -> Swept | None:
        if step is not self._compaction:
            return step.run(key, now)
        self._compacted = key
        try:
            return step.run(key, now)
        finally:
            self._compacted = None

    def _note(self, key: TopicPartitionKey, done: Swept | None, now: int) -> None:
        """Add the result of a step (retention or compaction) to the partition's `SweepState`, with the error
        of the first failed step.
        """
        error = next(iter(self._failed[key].values()), None)
        deleted, compacted = (done.deleted_bytes, done.compacted_bytes) if done else (0, 0)

        def after(was: SweepState) -> SweepState:
            return SweepState(now, error, was.deleted_bytes + deleted, was.compacted_bytes + compacted)

        self.states.note(key, after)

    def stop(self) -> None:
        """Make the running sweep stop soon, and wait until it has stopped."""
        self._closing.open()
        self._scheduler.close()

    def close(self) -> None:
        """Stop as `stop` does, and remove the files of deleted segments at once, without waiting for
        file.delete.delay.ms. Deleted files that the open of this store has found stay.
        """
        self.stop()
        with self._sweeping:
            self._clear(closing=True)

    def _clear(self, *, closing: bool = False) -> None:
        """Remove the files of deleted segments whose delay is over (of all deleted segments if `closing`, or
        if the disk is full); an error is only logged.
        """
        try:
            self._context.graveyard.clear(closing=closing or self._context.full.note is not None)
        except OSError as error:
            log.warning("deleted segments could not be removed: %s", error)
