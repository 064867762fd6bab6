"""`Where` and `Place`: the protocols (typing.Protocol) through which commands use topics, in a store or in a
cluster.

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
    """The place that the user has named: a store or a cluster that is not open yet. Messages have its `name`.

    If the store or cluster does not exist, each method that opens it raises StorageError or ClusterError.
    """

    @property
    def name(self) -> str: ...

    def reading(self) -> AbstractContextManager[Place]:
        """Open the store or cluster for reading."""

    def changing(self, topic: str | None = None) -> AbstractContextManager[Place]:
        """Open the store or cluster for changes. Raises UnknownTopicOrPartitionError if `topic` does not
        exist.
        """

    def appending(self, topic: str) -> AbstractContextManager[Place]:
        """Open the store or cluster for appends to an existing topic."""

    def creating(self, topic: str, config: Mapping[str, str]) -> AbstractContextManager[Place]:
        """Open the store or cluster for the creation of a topic. If the store does not exist, and the topic's
        name and settings are valid, the store is created.
        """

    def check_offers(self, option: str) -> None:
        """Raise click.UsageError, whose message has the reason, if the store or cluster does not support a
        command's option.
        """


class Place(Protocol):
    """An open store or cluster."""

    def topics(self) -> Mapping[str, TopicInfo]:
        """Return all topics by name. If this is a cluster, the `TopicInfo` objects lack the settings."""

    def describe(self, topics: Sequence[TopicInfo]) -> list[dict[str, Any]]:
        """Return the topics' fields for `segstore topics --json`. "bytes" is None if the number is unknown.
        If a partition can't be described, it has a field "error".
        """

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic. Raises TopicAlreadyExistsError, ConfigError, ClusterError."""

    def alter_topic(
        self, topic: str, changes: Mapping[str, str | None], partitions: int | None
    ) -> tuple[int, Mapping[str, Any]]:
        """Change settings and the number of partitions. A setting with the value None gets its default.
        Return (number of partitions, all settings of the topic itself, without defaults).
        """

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its records."""

    def appends(
        self, topic: str, partitions: Sequence[int], compression: str | None, batch_bytes: int
    ) -> Appends:
        """Return an `Appends` for these partitions."""

    def reading(self, topic: str, partitions: Sequence[int], isolation_level: str) -> PlaceReading:
        """Return a `PlaceReading` that reads these partitions, in this order."""

    def queue(self, terms: QueueTerms) -> Queue:
        """Return a `Queue` that delivers records of a topic to a share group."""

    def groups(self) -> PlaceGroups:
        """Return a `PlaceGroups`, through which consumer groups are described and changed."""

    def alter_group(self, group: str, changes: Mapping[str, str | None]) -> Mapping[str, Any]:
        """Change settings of a group. A setting with the value None gets its default. The group need not
        exist. Return all settings of the group itself, without defaults.
        """


class Appends(Protocol):
    """Appends records to partitions of a topic. `records` counts acknowledged records, and `bytes` the bytes
    of their keys and values. `unknown` counts records that were sent, and neither acknowledged nor refused.

    `Appends` is a context manager. At the end of the `with` block it waits until all records are
    acknowledged, and raises an error if a record is not acknowledged. If an interrupt or an error ends the
    block, no more records are sent.
    """

    @property
    def records(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def unknown(self) -> int: ...

    def append(self, partition: int, values: Any, keys: Any, timestamps: Any, headers: Any) -> None:
        """Append records, given as columns. The columns have the types that `PartitionLog.append_batch`
        accepts. If an append fails, this call or a later one raises the error.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, error: object, trace: object, /) -> None: ...


class Batch(Protocol):
    """Records of a partition. The protocol has some of the methods of `Records`."""

    @property
    def values(self) -> Sequence[bytes | None]: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int, /) -> Record: ...
    @overload
    def __getitem__(self, index: slice, /) -> Batch: ...
    def __iter__(self) -> Iterator[Record]: ...


class PlaceReading(Protocol):
    """Reads a topic's partitions. `seek` sets the offset at which the read of a partition begins. A
    `PlaceReading` is a context manager.
    """

    @property
    def logs(self) -> Mapping[int, OffsetsLog]:
        """Return the logs of the partitions, by partition number."""

    def seek(self, partition: int, offset: int, end: int | None = None) -> None:
        """Set the offset of the next record to read in a partition. `drain` yields only records below the
        offset `end`.
        """

    def drain(self) -> Iterator[tuple[int, Batch]]:
        """Yield (partition number, records), one partition after another, each up to the end offset that it
        has when its first records are read.
        """

    def follow(self) -> Iterator[tuple[int, Batch]]:
        """Yield (partition number, records) after the records of `drain`, whenever new records are appended.
        This iterator never ends.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, error: object, trace: object, /) -> None: ...


class Queue(Protocol):
    """Records that are delivered to a share group. `Queue` is a context manager. At the end of the `with`
    block, records that were not acknowledged are released.
    """

    def poll(self, timeout_ms: int | None, most: int | None) -> Sequence[QueueRecord]:
        """Return at most `most` records. If there are none, wait for records for at most `timeout_ms`, and
        return [] if none come. If `most` is None, the number is not limited. If `timeout_ms` is None, the
        time is not limited.
        """

    def acknowledge(self) -> None:
        """Acknowledge the records that the last `poll` returned. Raises SegstoreError if they can't be
        acknowledged.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, error: object, trace: object, /) -> None: ...


class PlaceGroups(Protocol):
    """The consumer groups of a store or cluster. The protocol has some of the methods of
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
