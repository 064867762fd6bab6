"""The sweeper of a store: retention and compaction, in the background and when asked for.

On disk: through `sweeping`; `sweep_states` keeps what is known of each partition's sweeps.
Threads: one thread of its own, and one for each call of `sweep`: Ctrl-C ends the wait for it, and leaves no
step of a sweep half done. One sweep at a time, but retention of the other
partitions that falls due while one is compacted is done in the midst of that, by the same thread. An error in
one partition is noted, and the sweep goes on with the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from segstore import names
from segstore.config import StoreConfig
from segstore.errors import SegstoreError, StoreClosedError
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.storage.cleaner.giving_way import GivingWay
from segstore.storage.context import Context
from segstore.storage.meta.root_checkpoints import OffsetCheckpoint, TopicPartitionKey
from segstore.storage.meta.sweep_states import SweepState, SweepStates
from segstore.storage.scheduler import Scheduler
from segstore.storage.store.sweeping import Compaction, Open, Retention, Step, Swept, Topics
from segstore.threads import Latch, apart

log = Logger("segstore")


class Sweeper:
    """`topics()` are those there are now; `partition(topic, n)` opens one; `cleaned` is the cleaner's
    checkpoint; `checkpoint` writes those of the store.

    A partition that could not be compacted is left alone by the background until the store is opened anew
    (Kafka: LogCleanerManager.markPartitionUncleanable); `sweep` tries it again.
    """

    def __init__(
        self,
        context: Context,
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
        self._failed: dict[TopicPartitionKey, dict[Step, str]] = {}
        self._ids = {name: info.topic_id for name, info in topics().items()}
        rate = config.log_cleaner_io_max_bytes_per_second
        throttle = GivingWay(rate, self._meanwhile, stopping=self._closing)
        self._retained = time.monotonic()  # when retention was last done, seconds
        self._compacted: TopicPartitionKey | None = None  # the one that is just being
        self._retention = Retention(topics, partition)
        self._compaction = Compaction(topics, partition, config, cleaned, throttle, checkpoint)

    def start(self) -> None:
        """Sweep from now on, as often as the settings say."""
        config = self._config
        self._every(config.log_retention_check_interval_ms, self._retention)
        if config.log_cleaner_threads:
            self._every(config.log_cleaner_backoff_ms, self._compaction)

    def _every(self, interval_ms: int, step: Step) -> None:
        self._scheduler.every(interval_ms / 1000, lambda: self._run(step))

    def sweep(self) -> tuple[Swept, ...]:
        """Retention, then compaction, of every partition whose topic's settings ask for it: what was done, or
        failed, in each where anything was. OSError of the note alone.
        """
        run = partial(self._run, self._retention, self._compaction, by_hand=True)
        return apart(run, "segstore-sweep")

    def _run(self, *steps: Step, by_hand: bool = False) -> tuple[Swept, ...]:
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

    def _meanwhile(self) -> float:
        """Retention where it falls due in the midst of a compaction, which may be held to a low rate for
        hours: in how many seconds it does next.
        """
        interval = self._config.log_retention_check_interval_ms / 1000
        left = self._retained + interval - time.monotonic()
        if left > 0 or self._closing.is_open:
            return max(left, 0.0)
        self._clear()
        for _ in self._step(self._retention, by_hand=False):
            pass  # it is in the notes
        with suppress(OSError):  # the compaction's end comes here again
            self._save()
        self._retained = time.monotonic()
        return interval

    def _save(self) -> None:
        topics = self._topics()
        self.states.save(lambda key: key[0] in topics and key[1] in topics[key[0]].partition_ids)

    def _forget_gone(self) -> None:
        """What is known of a topic that was deleted must not be said of one made anew under its name."""
        ids = {name: info.topic_id for name, info in self._topics().items()}
        same = {name for name, topic_id in ids.items() if self._ids.get(name, topic_id) == topic_id}
        self._ids = ids
        self._failed = {key: errors for key, errors in self._failed.items() if key[0] in same}
        self.states.keep(lambda key: key[0] in same)

    def _step(self, step: Step, by_hand: bool) -> Iterator[Swept]:
        now = self._context.clock()
        due = step.due(now)
        for key in self._failed.keys() - set(due):
            if self._failed[key].pop(step, None) is not None:  # its settings are others now
                self._note(key, None, self.states[key].swept_ms)
        for key in due:
            if self._closing.is_open:
                return
            failed = self._failed.setdefault(key, {})
            if key == self._compacted or (step is self._compaction and step in failed and not by_hand):
                continue
            try:
                done = self._swept(step, key, now)
            except StoreClosedError:
                continue  # its topic was deleted meanwhile
            except Exception as error:
                if not isinstance(error, (SegstoreError, OSError)):
                    log.exception("a defect, met in %s", names.partition_dir(*key))
                done = Swept(*key).failed(error)
            failed.pop(step, None)
            if done is not None and done.error is not None:
                log.warning("%s could not be swept: %s", names.partition_dir(*key), done.error)
                failed[step] = done.error
            self._note(key, done, now)
            if done is not None:
                yield done

    def _swept(self, step: Step, key: TopicPartitionKey, now: int) -> Swept | None:
        if step is not self._compaction:
            return step.run(key, now)
        self._compacted = key
        try:
            return step.run(key, now)
        finally:
            self._compacted = None

    def _note(self, key: TopicPartitionKey, done: Swept | None, now: int) -> None:
        """The error is that of any step, until this one goes well or is not asked for."""
        error = next(iter(self._failed[key].values()), None)
        deleted, compacted = (done.deleted_bytes, done.compacted_bytes) if done else (0, 0)

        def after(was: SweepState) -> SweepState:
            return SweepState(now, error, was.deleted_bytes + deleted, was.compacted_bytes + compacted)

        self.states.note(key, after)

    def stop(self) -> None:
        """Let the sweep that runs end soon, and wait for it."""
        self._closing.open()
        self._scheduler.close()

    def close(self) -> None:
        """As `stop`, and remove what waits to be, but for what an open has found or put aside."""
        self.stop()
        with self._sweeping:
            self._clear(closing=True)

    def _clear(self, *, closing: bool = False) -> None:
        """A file that can't be removed keeps nothing from being swept, nor the store from being closed."""
        try:
            self._context.graveyard.clear(closing=closing)
        except OSError as error:
            log.warning("deleted segments could not be removed: %s", error)
