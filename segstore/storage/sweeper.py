"""The sweeper of a store: retention and compaction, in the background and when asked for.

On disk: through its parts; `sweep_states` keeps what is known of each partition's sweeps.
Threads: one thread of its own, and whoever calls `sweep`; one sweep at a time. An error in one partition is
noted, and the sweep goes on with the others. A topic without settings of ours (a broker's) is never swept.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from segstore import names
from segstore.config import StoreConfig
from segstore.errors import SegstoreError, StoreClosedError
from segstore.storage import retention
from segstore.storage.context import Context
from segstore.storage.partition import Partition
from segstore.storage.root_checkpoints import TopicPartitionKey
from segstore.storage.scheduler import Scheduler
from segstore.storage.sweep_states import SweepState, SweepStates
from segstore.storage.topics import TopicInfo

log = logging.getLogger("segstore")


class Swept(NamedTuple):
    """What a sweep did to a partition: segments and bytes that retention let go; `error` where it failed."""

    topic: str
    partition: int
    deleted_segments: int = 0
    deleted_bytes: int = 0
    error: str | None = None


class Sweeper:
    """`topics()` are those there are now; `partition(topic, n)` opens one."""

    def __init__(
        self,
        context: Context,
        config: StoreConfig,
        topics: Callable[[], dict[str, TopicInfo]],
        partition: Callable[[str, int], Partition],
    ) -> None:
        self._context, self._config, self._topics, self._partition = context, config, topics, partition
        self.states = SweepStates(context.files, context.root)
        self._scheduler = Scheduler("segstore-sweeper")
        self._sweeping = threading.Lock()
        self._closing = threading.Event()

    def start(self) -> None:
        """Sweep from now on, as often as the settings say."""
        self._scheduler.every(self._config.log_retention_check_interval_ms / 1000, self.sweep)

    def sweep(self) -> tuple[Swept, ...]:
        """Sweep every partition whose topic's settings ask for it: what was done, or failed, in each that
        anything was. OSError of the note alone.
        """
        with self._sweeping:
            self._context.graveyard.clear()
            swept = [self._sweep(*key) for key in self._due()]
            topics = self._topics()
            self.states.save(lambda key: key[0] in topics and key[1] in topics[key[0]].partition_ids)
        return tuple(done for done in swept if done is not None)

    def _due(self) -> Iterator[TopicPartitionKey]:
        for info in self._topics().values():
            if info.ours and info.error is None and retention.applies(info.settings):
                yield from ((info.name, number) for number in info.partition_ids)

    def _sweep(self, topic: str, number: int) -> Swept | None:
        if self._closing.is_set():
            return None
        now = self._context.clock()
        try:
            partition = self._partition(topic, number)
            partition.roll_if_old(now)
            gone = partition.retain(now)
        except StoreClosedError:
            return None  # its topic was deleted meanwhile
        except (SegstoreError, OSError) as error:
            log.warning("%s could not be swept: %s", names.partition_dir(topic, number), error)
            done = Swept(topic, number, error=str(error))
        else:
            done = Swept(topic, number, gone.segments, gone.bytes)
        self.states.note((topic, number), lambda state: _after(state, done, now))
        return done if done.deleted_segments or done.error else None

    def stop(self) -> None:
        """Let the sweep that runs end at its next partition, and wait for it."""
        self._closing.set()
        self._scheduler.close()

    def close(self) -> None:
        """As `stop`, and remove what waits to be. OSError."""
        self.stop()
        with self._sweeping:
            self._context.graveyard.clear(all_of_them=True)


def _after(state: SweepState, done: Swept, now: int) -> SweepState:
    return state._replace(
        swept_ms=now, error=done.error, deleted_bytes=state.deleted_bytes + done.deleted_bytes
    )
