"""`Where` and `Place`: the protocols with which commands reach topics, in a store or in a cluster.

Threads: one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, overload

if TYPE_CHECKING:
    from typing_extensions import Self

    from segstore.cli.places.queues import QueueRecord, QueueTerms
    from segstore.coordinator.group.admin import Moved, OffsetsLog, Reset
    from segstore.coordinator.group.descriptions import GroupDescription, GroupListing
    from segstore.coordinator.structs import TopicPartition
    from segstore.records.records import Record
    from segstore.storage.meta.topic_info import TopicInfo


class Where(Protocol):
    """The place that the user has named: a store or a cluster, not open yet. `name` is used in messages.

    Each method that opens the place raises StorageError or ClusterError if the place does not exist.
    """

    @property
    def name(self) -> str: ...

    def reading(self) -> AbstractContextManager[Place]:
        """Open the place for reading."""

    def changing(self, topic: str | None = None) -> AbstractContextManager[Place]:
        """Open the place for changes. Raises UnknownTopicOrPartitionError if `topic` does not exist."""

    def appending(self, topic: str) -> AbstractContextManager[Place]:
        """Open the place to append to an existing topic."""

    def creating(self, topic: str, config: Mapping[str, str]) -> AbstractContextManager[Place]:
        """Open the place to create a topic. A store is created if necessary, unless the topic's name or
        settings are invalid.
        """

    def check_offers(self, option: str) -> None:
        """Raise click.UsageError with the reason if the place does not support a command's option."""


class Place(Protocol):
    """An open store or cluster."""

    def topics(self) -> Mapping[str, TopicInfo]:
        """Return all topics by name. Topics of a cluster do not have their settings."""

    def describe(self, topics: Sequence[TopicInfo]) -> list[dict[str, Any]]:
        """Return the topics' fields for `segstore topics --json`. "bytes" is None if unknown; a partition
        that can't be described has an "error".
        """

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic. Raises TopicAlreadyExistsError, ConfigError, ClusterError."""

    def alter_topic(
        self, topic: str, changes: Mapping[str, str | None], partitions: int | None
    ) -> tuple[int, Mapping[str, Any]]:
        """Change settings (None restores a default) and the number of partitions; return that number, and all
        settings of the topic itself.
        """

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its records."""

    def appends(
        self, topic: str, partitions: Sequence[int], compression: str | None, batch_bytes: int
    ) -> Appends:
        """Return an `Appends` for these partitions."""

    def reading(self, topic: str, partitions: Sequence[int], isolation_level: str) -> PlaceReading:
        """Return a `PlaceReading` of these partitions, in this order."""

    def queue(self, terms: QueueTerms) -> Queue:
        """Return a `Queue` that takes records of a topic for a share group."""

    def groups(self) -> PlaceGroups:
        """Return the consumer groups."""

    def alter_group(self, group: str, changes: Mapping[str, str | None]) -> Mapping[str, Any]:
        """Change settings of a group; None restores a default. The group need not exist. Return all settings
        of the group itself.
        """


class Appends(Protocol):
    """The appends to partitions of a topic. `records` and `bytes` count acknowledged records and the bytes of
    their keys and values. `unknown` counts records that were sent, but neither acknowledged nor refused.

    It is a context manager: at the end of the block all records are acknowledged, or an error is raised;
    after an interrupt or an error no more records are sent.
    """

    @property
    def records(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def unknown(self) -> int: ...

    def append(self, partition: int, values: Any, keys: Any, timestamps: Any, headers: Any) -> None:
        """Append columns of records. The columns have the types that `PartitionLog.append_batch` accepts.
        Raises the errors of the append; a call may also raise the error of an earlier call's record.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, error: object, trace: object, /) -> None: ...


class Batch(Protocol):
    """Some records of a partition. The protocol has a part of the methods of `Records`."""

    @property
    def values(self) -> Sequence[bytes | None]: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int, /) -> Record: ...
    @overload
    def __getitem__(self, index: slice, /) -> Batch: ...
    def __iter__(self) -> Iterator[Record]: ...


class PlaceReading(Protocol):
    """Reads a topic's partitions, each from the offset that `seek` has set. It is a context manager."""

    @property
    def logs(self) -> Mapping[int, OffsetsLog]:
        """Return the partitions by number."""

    def seek(self, partition: int, offset: int, end: int | None = None) -> None:
        """Set the next offset of a partition. `drain` yields only records before the offset `end`."""

    def drain(self) -> Iterator[tuple[int, Batch]]:
        """Yield the records up to the current end of each partition, in order of partitions."""

    def follow(self) -> Iterator[tuple[int, Batch]]:
        """Yield the records after those of `drain` as they are appended; never stops."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, error: object, trace: object, /) -> None: ...


class Queue(Protocol):
    """The records of a share group. It is a context manager, and releases unacknowledged records on exit."""

    def poll(self, timeout_ms: int | None, most: int | None) -> Sequence[QueueRecord]:
        """Return at most `most` records. If there are none, wait up to `timeout_ms` for some, and return []
        if none come. None means no limit of the records or of the time.
        """

    def acknowledge(self) -> None:
        """Acknowledge the records of the last poll. Raises SegstoreError if that fails."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, error: object, trace: object, /) -> None: ...


class PlaceGroups(Protocol):
    """The consumer groups of a place. The protocol has a part of the methods of
    `segstore.coordinator.group.admin.Groups`.
    """

    def list(self) -> tuple[GroupListing, ...]: ...
    def describe(self, group: str, /) -> GroupDescription: ...

    def reset(
        self, group: str, to: Reset, partitions: Sequence[TopicPartition | str] | None, dry_run: bool = False
    ) -> tuple[Moved, ...]: ...

    def delete(self, group: str, /) -> None: ...
    def delete_offsets(
        self, group: str, partitions: Sequence[TopicPartition | str], /
    ) -> set[TopicPartition]: ...
