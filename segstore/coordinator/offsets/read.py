"""`ReadOffsets`: what groups have committed, for a process that does not write the store.

On disk: reads only. It is as of the moment at which it was made. Threads: any; nothing changes.
"""

from __future__ import annotations

from segstore.coordinator.offsets.load import load
from segstore.coordinator.offsets.schema import GroupRecord
from segstore.coordinator.offsets.state import OffsetsState
from segstore.coordinator.offsets.topic import OffsetsTopic
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.errors import StoreClosedError
from segstore.storage.store.store import Store


class ReadOffsets:
    """Answers as `GroupOffsets` does. All partitions are read, wherever a group's records should lie."""

    def __init__(self, store: Store) -> None:
        self._topic = OffsetsTopic(store)
        self._states = [_load(store, self._topic, partition) for partition in self._topic.ids]

    def groups(self) -> set[str]:
        return {name for state in self._states for name in state.names()}

    def fetch(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        return self._topic.held(self._of(group).usable(group).offsets)

    def pending(self, group: str) -> set[TopicPartition]:
        return self._of(group).pending_of(group)

    def group(self, group: str) -> GroupRecord | None:
        return self._of(group).classic(group).record

    def _of(self, group: str) -> OffsetsState:
        return next((state for state in self._states if group in state.names()), OffsetsState())


def _load(store: Store, topic: OffsetsTopic, partition: int) -> OffsetsState:
    """A partition that the writer is just making, or has deleted meanwhile, says nothing."""
    try:
        source = topic.log(partition)
        return OffsetsState() if source is None else load(source)
    except StoreClosedError:
        store._context.check_open()
        return OffsetsState()
