"""`WritingSide`: what a `Store` asks of the side that writes. `StoreWriter` is that of a store in one
directory; a layer above may have one over several.

Threads: any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from segstore.config import StoreConfig
from segstore.storage.inbox.known_ids import Adoption
from segstore.storage.log.partition import Partition
from segstore.storage.log.recovery import Recovered
from segstore.storage.meta.root_checkpoints import TopicPartitionKey
from segstore.storage.meta.tailed_ends import FollowedEnds
from segstore.storage.meta.topics import TopicInfo
from segstore.storage.store.kept_files import Keeping
from segstore.storage.store.sweeper import Swept
from segstore.storage.store.upgrader import Upgraded

if TYPE_CHECKING:
    from segstore.storage.store.store_member import StoreMember


class WritingTopics(Protocol):
    """See `TopicAdmin`."""

    def create(self, name: str, partitions: int, config: Mapping[str, Any]) -> TopicInfo:
        """See `TopicAdmin.create`."""

    def alter(self, name: str, config: Mapping[str, Any]) -> TopicInfo:
        """See `TopicAdmin.alter`."""

    def add_partitions(self, name: str, total: int) -> TopicInfo:
        """See `TopicAdmin.add_partitions`."""

    def delete(self, name: str) -> None:
        """See `TopicAdmin.delete`."""


class WritingPartitions(Protocol):
    """See `Partitions`."""

    def flush(self) -> None:
        """See `Partitions.flush`."""

    def checkpoint(self) -> None:
        """See `Partitions.checkpoint`."""


class Sweeping(Protocol):
    """See `Sweeper`."""

    def sweep(self) -> tuple[Swept, ...]:
        """See `Sweeper.sweep`."""

    def upgrade(self, keys: Sequence[TopicPartitionKey]) -> tuple[Upgraded, ...]:
        """See `Sweeper.upgrade`."""


class Adopting(Protocol):
    """See `Inbox`."""

    def adopt(self, id_: str, files: Any, /) -> Adoption:
        """See `Inbox.adopt`."""


class WritingSide(Protocol):
    """What is behind a store that is open for writing. `config` has its settings; `owner` gives the store,
    None once it is not referred to.
    """

    config: StoreConfig
    owner: Callable[[], object] | None

    @property
    def role(self) -> str:
        """See `Store.role`."""

    @property
    def host_pid(self) -> int:
        """See `Store.host_pid`."""

    def members(self) -> list[StoreMember]:
        """See `Store.members`."""

    def announce(self, address: str) -> None:
        """Write into the lock file where the store is served, "PROTOCOL://HOST:PORT"; "" where it is no more.
        Raises OSError.
        """

    @property
    def topics(self) -> Mapping[str, TopicInfo]:
        """Return all topics by name; the mapping is replaced whole where one came or went."""

    @property
    def topic_admin(self) -> WritingTopics:
        """Return what changes topics."""

    @property
    def partitions(self) -> WritingPartitions:
        """Return what flushes all partitions."""

    @property
    def sweeper(self) -> Sweeping:
        """Return what runs retention and compaction."""

    @property
    def inbox(self) -> Adopting:
        """Return what adopts staged appends."""

    @property
    def staging_path(self) -> str:
        """Return the path of a directory in whose inbox may be staged. Raises ReplicaOfflineError where none
        works.
        """

    @property
    def kept(self) -> Keeping:
        """Return what keeps quotas and producer ids."""

    @property
    def recovered(self) -> Sequence[Recovered]:
        """Return what recovery did, in order."""

    def partition(self, topic: str, partition: int) -> Partition:
        """Return the partition's log, which may be another one later: see `PartitionLog._follow_leader`.
        Raises UnknownTopicOrPartitionError, StorageError, NotLeaderOrFollowerError.
        """

    def opened(self) -> list[TopicPartitionKey]:
        """See `StoreWriter.opened`."""

    def unstable(self) -> list[TopicPartitionKey]:
        """See `StoreWriter.unstable`."""

    def cleaned_offset(self, topic: str, partition: int) -> int | None:
        """See `StoreWriter.cleaned_offset`."""

    def forget_cleaned(self, topic: str, partition: int) -> None:
        """See `StoreWriter.forget_cleaned`."""

    @property
    def publications(self) -> int:
        """See `Store.publications`."""

    @property
    def news(self) -> int:
        """See `Store.news`."""

    def wait(self, seen: int, seconds: float) -> None:
        """See `Store.wait`."""

    def follow(self, keys: list[int]) -> FollowedEnds | None:
        """See `Store._follow`; None where only `wait` waits."""

    def wait_for(self, followed: FollowedEnds, nudges: int, seconds: float) -> int:
        """See `Store.wait_for`."""

    def nudge(self) -> None:
        """See `Store._nudge`."""

    def wake(self) -> None:
        """See `Store._wake`."""

    def abandon(self) -> None:
        """End the threads, since nobody can close the store."""

    @property
    def closed(self) -> bool:
        """Return whether the files are released."""

    def close(self) -> None:
        """Close cleanly, and release the files."""
