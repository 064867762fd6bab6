"""`__consumer_offsets` in memory: its partitions, each read when one of its groups is first asked for.

On disk: through `offsets_write`. Threads: any; one lock for each partition of the topic, under which it is
read and written. What is in memory changes after the log did.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from segstore.client.groups.offsets_load import load
from segstore.client.groups.offsets_state import OffsetsState
from segstore.client.groups.offsets_topic import OffsetsTopic
from segstore.client.groups.offsets_write import Writer, check_group
from segstore.client.groups.schemas import group_key, offset_key
from segstore.client.structs import TopicPartition
from segstore.mutex import Mutex, nesting
from segstore.storage.store import Store


class _Partition:
    """A partition of the topic, and what was read of it; `state` is None before that."""

    def __init__(self) -> None:
        self.lock = nesting()
        self.state: OffsetsState | None = None


class OffsetsCache:
    """The part of `GroupOffsets` that holds, reads and locks."""

    def __init__(self, store: Store) -> None:
        store._context.check_writable()
        self._store, self._topic = store, OffsetsTopic(store)
        self._config, self._clock = store._writer().config, store._context.clock
        self._lock = Mutex()
        self._partitions: dict[int, _Partition] = {}

    def partition_for(self, group: str) -> int:
        """The partition of `__consumer_offsets` that holds the group's records. InvalidGroupIdError."""
        return self._topic.partition_for(check_group(group))

    @contextmanager
    def _held(self, partition: int) -> Iterator[OffsetsState]:
        """What a partition says, with its lock held."""
        with self._lock:
            held = self._partitions.setdefault(partition, _Partition())
        with held.lock:
            if held.state is None:
                source = self._topic.log(partition)
                if source is None:
                    # Nothing is kept of what is not there: it may come with other partitions.
                    yield OffsetsState()
                    return
                held.state = load(source)
            yield held.state

    def _all(self) -> Iterator[OffsetsState]:
        for partition in self._topic.ids:
            with self._held(partition) as state:
                yield state

    @contextmanager
    def _writing(self, group: str, checked: bool = True) -> Iterator[tuple[OffsetsState, Writer]]:
        """The state and a writer of the group's partition; the topic is made where it is not there."""
        target = self._topic.writable(group)
        with self._held(target.partition) as state:
            if checked:
                state.classic(group)
            yield state, Writer(target, self._config.offsets_topic_compression_codec, self._clock())

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
