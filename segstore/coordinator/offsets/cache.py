"""`__consumer_offsets` in memory: its partitions, each read when one of its groups is first asked for.

On disk: through `offsets_write`. Threads: any; one lock for each partition of the topic, under which it is
read and written. What is in memory changes after the log did.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from segstore.coordinator.offsets.load import load
from segstore.coordinator.offsets.schema import group_key, offset_key
from segstore.coordinator.offsets.state import OffsetsState
from segstore.coordinator.offsets.topic import OffsetsTopic
from segstore.coordinator.offsets.write import Writer, check_group
from segstore.coordinator.structs import TopicPartition
from segstore.errors import SegstoreError
from segstore.mutex import Mutex, nesting
from segstore.storage.store.store import Store

T = TypeVar("T")


class Partition:
    """A partition of the topic, and what was read of it; `state` is None before that."""

    def __init__(self, number: int) -> None:
        self.number, self.lock = number, nesting()
        self.state: OffsetsState | None = None


class OffsetsCache:
    """The part of `GroupOffsets` that holds, reads and locks."""

    def __init__(self, store: Store) -> None:
        store._context.check_writable()
        self._store, self._topic = store, OffsetsTopic(store)
        self._config, self._clock = store._writer().config, store._context.clock
        self._lock = Mutex()
        self._partitions: dict[int, Partition] = {}

    def partition_for(self, group: str) -> int:
        """The partition of `__consumer_offsets` that holds the group's records. InvalidGroupIdError."""
        return self._topic.partition_for(check_group(group))

    def _held(self, partition: int, look: Callable[[OffsetsState], T]) -> T:
        """What `look` finds in what a partition says, whose lock is held meanwhile. (A generator that is a
        context manager would hold it as long as the exception of an interrupt has its frames.)
        """
        held = self._partition(partition)
        with held.lock:
            return look(self._state(held))

    def _partition(self, number: int) -> Partition:
        with self._lock:
            return self._partitions.setdefault(number, Partition(number))

    def _state(self, held: Partition) -> OffsetsState:
        if held.state is None:
            source = self._topic.log(held.number)
            if source is None:
                # Nothing is kept of what is not there: it may come with other partitions.
                return OffsetsState()
            held.state = load(source)
        return held.state

    def _writing(self, group: str, write: Callable[[OffsetsState, Writer], T], checked: bool = True) -> T:
        """Call `write` with the state and a writer of the group's partition; the topic is made where it is
        not there. Where an interrupt ends it, the partition is read anew: its log may say more than memory.
        """
        target = self._topic.writable(group)
        held = self._partition(target.partition)
        with held.lock:
            state = self._state(held)
            if checked:
                state.classic(group)
            held.state = None
            try:
                found = write(
                    state, Writer(target, self._config.offsets_topic_compression_codec, self._clock())
                )
            except SegstoreError:
                held.state = state  # nothing was written
                raise
            held.state = state
            return found

    def _drop(
        self,
        state: OffsetsState,
        writer: Writer,
        group: str,
        gone: Collection[TopicPartition],
        whole: bool,
    ) -> None:
        """Write tombstones; `whole`: the group's own too."""
        keys = [offset_key(group, tp) for tp in sorted(gone)] + [group_key(group)] * whole
        if not keys:
            return
        first = writer.write(keys, [None] * len(keys))
        for at, tp in enumerate(sorted(gone), first):
            state.drop_offset(group, tp, at)
        if whole:
            state.put_group(group, None)
