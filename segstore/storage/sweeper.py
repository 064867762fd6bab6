"""The sweeper of a store: retention and compaction, in the background and when asked for.

On disk: through `sweeping`; `sweep_states` keeps what is known of each partition's sweeps.
Threads: one thread of its own, and whoever calls `sweep`; one sweep at a time. An error in one partition is
noted, and the sweep goes on with the others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

from segstore import names
from segstore.config import StoreConfig
from segstore.errors import SegstoreError, StoreClosedError
from segstore.storage.cleaner import Throttle
from segstore.storage.context import Context
from segstore.storage.root_checkpoints import OffsetCheckpoint, TopicPartitionKey
from segstore.storage.scheduler import Scheduler
from segstore.storage.sweep_states import SweepState, SweepStates
from segstore.storage.sweeping import Compaction, Open, Retention, Step, Swept, Topics

log = logging.getLogger("segstore")


class Sweeper:
    """`topics()` are those there are now; `partition(topic, n)` opens one; `cleaned` is the cleaner's
    checkpoint.

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
    ) -> None:
        self._context, self._config, self._topics = context, config, topics
        self.states = SweepStates(context.files, context.root)
        self._scheduler = Scheduler("segstore-sweeper")
        self._sweeping, self._closing = threading.Lock(), threading.Event()
        self._uncleanable: set[TopicPartitionKey] = set()
        throttle = Throttle(config.log_cleaner_io_max_bytes_per_second, stopping=self._closing)
        self._retention = Retention(topics, partition)
        self._compaction = Compaction(topics, partition, config, cleaned, throttle)

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
        self._uncleanable.clear()
        return self._run(self._retention, self._compaction)

    def _run(self, *steps: Step) -> tuple[Swept, ...]:
        found: dict[TopicPartitionKey, Swept] = {}
        with self._sweeping:
            self._context.graveyard.clear()
            for step in steps:
                for done in self._step(step):
                    key = done.topic, done.partition
                    found[key] = found[key].plus(done) if key in found else done
            topics = self._topics()
            self.states.save(lambda key: key[0] in topics and key[1] in topics[key[0]].partition_ids)
        return tuple(found[key] for key in sorted(found))

    def _step(self, step: Step) -> Iterator[Swept]:
        now = self._context.clock()
        for key in step.due(now):
            if self._closing.is_set():
                return
            if step is self._compaction and key in self._uncleanable:
                continue
            try:
                done = step.run(key, now)
            except StoreClosedError:
                continue  # its topic was deleted meanwhile
            except (SegstoreError, OSError) as error:
                log.warning("%s could not be swept: %s", names.partition_dir(*key), error)
                done = Swept(*key, error=str(error))
                if step is self._compaction:
                    self._uncleanable.add(key)
            self.states.note(key, lambda state, done=done: _after(state, done, now))  # type: ignore[misc]
            if done is not None:
                yield done

    def stop(self) -> None:
        """Let the sweep that runs end soon, and wait for it."""
        self._closing.set()
        self._scheduler.close()

    def close(self) -> None:
        """As `stop`, and remove what waits to be. OSError."""
        self.stop()
        with self._sweeping:
            self._context.graveyard.clear(all_of_them=True)


def _after(state: SweepState, done: Swept | None, now: int) -> SweepState:
    if done is None:
        return state._replace(swept_ms=now)
    deleted = state.deleted_bytes + done.deleted_bytes
    return SweepState(now, done.error, deleted, state.compacted_bytes + done.compacted_bytes)
