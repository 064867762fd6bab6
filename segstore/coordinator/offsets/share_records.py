"""`ShareRecords`: reads and writes the records of share groups (KIP-932) in `__consumer_offsets`.

On disk: records and tombstones of the topic. Threads: any; each partition of the topic has a lock.
"""

from __future__ import annotations

from collections.abc import Iterable

from segstore.coordinator.offsets.cache import OffsetsCache
from segstore.coordinator.offsets.share_schema import (
    ShareChange,
    ShareRecordKey,
    ShareValue,
    share_key,
    share_value,
)
from segstore.coordinator.offsets.state import OffsetsState
from segstore.coordinator.offsets.topic import OffsetsWriter, check_group


class ShareRecords(OffsetsCache):
    """The part of `GroupOffsets` that handles share groups."""

    def share(self, group_id: str) -> dict[ShareRecordKey, ShareValue]:
        """Return the records of a share group; an empty dict for a group of another type. Raises
        UnsupportedVersionError.
        """
        return self._look_up(self.partition_for(group_id), lambda state: dict(state.known(group_id).share))

    def share_groups(self) -> list[str]:
        """Return the ids of all share groups in the log. Raises OffsetNotAvailableError."""
        found: list[str] = []
        for partition in self._topic.ids:
            found += self._look_up(
                partition,
                lambda state: [name for name, group_state in state.groups.items() if group_state.share],
            )
        return sorted(found)

    def has(self, group_id: str) -> bool:
        """Return whether the log has a record of this group, whatever the record's type."""
        return self._look_up(self.partition_for(group_id), lambda state: group_id in state.names())

    def write_share(self, group_id: str, changes: Iterable[ShareChange]) -> None:
        """Write records of a share group as one batch, all or none. Raises the errors of
        `GroupOffsets.commit`.
        """
        group, records = check_group(group_id), list(changes)

        def write(state: OffsetsState, writer: OffsetsWriter) -> None:
            keys = [share_key(group, key) for key, _ in records]
            values = [None if value is None else share_value(key.kind, value) for key, value in records]
            writer.write(keys, values)
            for key, value in records:
                state.put_share(group, key, value)

        self._writing(group, write)
