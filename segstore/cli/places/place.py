"""`Where` and `Place`: what commands may ask of the topics that they work on, wherever these are.

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
    """What the user has named: a store or a cluster, which is not open yet. `name` stands in messages.

    Each way to open it raises what the place has to say where it is not there.
    """

    @property
    def name(self) -> str: ...

    def reading(self) -> AbstractContextManager[Place]:
        """Open it to look."""

    def changing(self, topic: str | None = None) -> AbstractContextManager[Place]:
        """Open it to change it; nothing is made where it has no such topic."""

    def appending(self, topic: str) -> AbstractContextManager[Place]:
        """Open it to append to a topic that is there."""

    def creating(self, topic: str, config: Mapping[str, str]) -> AbstractContextManager[Place]:
        """Open it to create a topic, and make it where it may be made; it is not where name or settings of
        the topic are refused.
        """

    def check_offers(self, option: str) -> None:
        """Raise click.UsageError, which says why, where a command's option can't be had here."""


class Place(Protocol):
    """A store or a cluster that is open."""

    def topics(self) -> Mapping[str, TopicInfo]:
        """Return all topics, by name; of a cluster without their settings."""

    def describe(self, topics: Sequence[TopicInfo]) -> list[dict[str, Any]]:
        """Return the fields of topics as `segstore topics --json` shows them. "bytes" is None where they are
        not told; a partition that can't be told of has an "error".
        """

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic. Raises TopicAlreadyExistsError, ConfigError, ClusterError."""

    def alter_topic(
        self, topic: str, changes: Mapping[str, str | None], partitions: int | None
    ) -> tuple[int, Mapping[str, Any]]:
        """Change settings, None for the default, and the number of partitions; return that number and all
        settings that were made.
        """

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its records."""

    def appends(
        self, topic: str, partitions: Sequence[int], compression: str | None, batch_bytes: int
    ) -> Appends:
        """Return what appends to these partitions."""

    def reading(self, topic: str, partitions: Sequence[int], isolation_level: str) -> PlaceReading:
        """Return what reads these partitions, in their order."""

    def queue(self, terms: QueueTerms) -> Queue:
        """Return what takes records of a topic for a share group."""

    def groups(self) -> PlaceGroups:
        """Return the consumer groups."""

    def alter_group(self, group: str, changes: Mapping[str, str | None]) -> Mapping[str, Any]:
        """Change settings of a group, which need not exist, None for the default; return all settings that
        were made.
        """


class Appends(Protocol):
    """Appends to partitions of a topic. `records` and `bytes` (of keys and values) count what was
    acknowledged, `unknown` what was sent and neither acknowledged nor refused.

    It is a context manager: at the end of the block all that was given is acknowledged, or an error is
    raised; after an interrupt or an error no more is sent.
    """

    @property
    def records(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def unknown(self) -> int: ...

    def append(self, partition: int, values: Any, keys: Any, timestamps: Any, headers: Any) -> None:
        """Append columns of records, as `PartitionLog.append_batch` takes them. Raises what the append
        raises, also for records of an earlier call.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, error: object, trace: object, /) -> None: ...


class Batch(Protocol):
    """Some records of a partition; see `Records`."""

    @property
    def values(self) -> Sequence[bytes | None]: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int, /) -> Record: ...
    @overload
    def __getitem__(self, index: slice, /) -> Batch: ...
    def __iter__(self) -> Iterator[Record]: ...


class PlaceReading(Protocol):
    """Reads partitions of a topic, each from the offset that `seek` was given for it. It is a context
    manager.
    """

    @property
    def logs(self) -> Mapping[int, OffsetsLog]:
        """Return the partitions."""

    def seek(self, partition: int, offset: int, end: int | None = None) -> None:
        """Read a partition from this offset on; `drain` ends before the offset `end`."""

    def drain(self) -> Iterator[tuple[int, Batch]]:
        """Yield the records up to the present end of each partition, one partition after the other."""

    def follow(self) -> Iterator[tuple[int, Batch]]:
        """Yield the records after those of `drain`, as they come, without end."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, error: object, trace: object, /) -> None: ...


class Queue(Protocol):
    """Takes records for a share group. It is a context manager: at its end records that were not acknowledged
    are released.
    """

    def poll(self, timeout_ms: int | None, most: int | None) -> Sequence[QueueRecord]:
        """Return some records, `most` at most, that are there now or come within the time, None for no
        limits; nothing once that is over.
        """

    def acknowledge(self) -> None:
        """Acknowledge the records of the last poll. Raises SegstoreError if that fails."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, error: object, trace: object, /) -> None: ...


class PlaceGroups(Protocol):
    """Consumer groups; see `segstore.coordinator.group.admin.Groups`."""

    def list(self) -> tuple[GroupListing, ...]: ...
    def describe(self, group: str, /) -> GroupDescription: ...

    def reset(
        self, group: str, to: Reset, partitions: Sequence[TopicPartition | str] | None, dry_run: bool = False
    ) -> tuple[Moved, ...]: ...

    def delete(self, group: str, /) -> None: ...
    def delete_offsets(
        self, group: str, partitions: Sequence[TopicPartition | str], /
    ) -> set[TopicPartition]: ...
