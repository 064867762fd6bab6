"""`WritingSide`, a protocol with the calls that a `Store` makes to its writer. `StoreWriter` implements the
protocol for one directory, and `ReplicatedWriter` for the directories of a replicated store. Threads: any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from segstore.config import StoreConfig
from segstore.storage.inbox.known_ids import Adoption
from segstore.storage.log.partition import Partition
from segstore.storage.log.recovery import Recovered
from segstore.storage.meta.root_checkpoints import TopicPartitionKey
from segstore.storage.meta.tailed_ends import TailedEnds
from segstore.storage.meta.topics import TopicInfo
from segstore.storage.store.kept_files import Keeping
from segstore.storage.store.sweeper import Swept
from segstore.storage.store.upgrader import Upgraded

if TYPE_CHECKING:
    from segstore.storage.store.store_member import StoreMember


class WritingTopics(Protocol):
    """The calls of a `TopicAdmin` that a store makes."""

    def create(self, name: str, partitions: int, config: Mapping[str, Any]) -> TopicInfo:
        """Create a topic, and return it. The topic is durable when this returns."""

    def alter(self, name: str, config: Mapping[str, Any]) -> TopicInfo:
        """Change a topic's settings, and return the topic."""

    def add_partitions(self, name: str, total: int) -> TopicInfo:
        """Add partitions to a topic, so that it has `total`, and return the topic."""

    def delete(self, name: str) -> None:
        """Delete a topic."""


class WritingPartitions(Protocol):
    """The calls of `Partitions` that a store makes."""

    def flush(self) -> None:
        """Make all partitions durable, and write the checkpoints."""

    def checkpoint(self) -> None:
        """Write the checkpoints in the store's root."""


class Sweeping(Protocol):
    """The calls of a `Sweeper` that a store makes."""

    def sweep(self) -> tuple[Swept, ...]:
        """Apply retention, then compaction. Return the result of each partition that was changed, or could
        not be swept.
        """

    def upgrade(self, keys: Sequence[TopicPartitionKey]) -> tuple[Upgraded, ...]:
        """Rewrite the messages of magic 0 and 1 in these partitions as record batches of magic 2."""


class Adopting(Protocol):
    """The calls of an `Inbox` that a store makes."""

    def adopt(self, id_: str, files: Any, /) -> Adoption:
        """Add the records of the staged append with this id to their logs. The records become visible all at
        once.
        """


class WritingSide(Protocol):
    """The writer of a store. `config` has the store's settings. `owner()` returns the store, or None after
    the store was garbage collected.
    """

    config: StoreConfig
    owner: Callable[[], object] | None

    @property
    def role(self) -> str:
        """Return the role of this process, as `Store.role` returns it."""

    @property
    def host_pid(self) -> int:
        """Return the pid of the writing process; 0 if it is not known."""

    def members(self) -> list[StoreMember]:
        """Return the living members of a shared store."""

    def announce(self, address: str) -> None:
        """Write the store's address, "PROTOCOL://HOST:PORT", into the lock file; "" removes it. Raises
        OSError.
        """

    @property
    def topics(self) -> Mapping[str, TopicInfo]:
        """Return all topics by name. Each change of a topic makes a new mapping."""

    @property
    def topic_admin(self) -> WritingTopics:
        """Return the object that changes topics."""

    @property
    def partitions(self) -> WritingPartitions:
        """Return the object that flushes all partitions."""

    @property
    def sweeper(self) -> Sweeping:
        """Return the object that runs retention and compaction."""

    @property
    def inbox(self) -> Adopting:
        """Return the object that adds staged appends to their logs."""

    @property
    def staging_path(self) -> str:
        """Return the path of a directory into which staged appends may be written. Raises ReplicaOfflineError
        if all data directories are offline.
        """

    @property
    def kept(self) -> Keeping:
        """Return the object that keeps quotas, credentials, settings of groups, and the first free producer
        id.
        """

    @property
    def recovered(self) -> Sequence[Recovered]:
        """Return a `Recovered` for each partition that was recovered, in the order of the recoveries (in a
        replicated store, of each directory's recoveries).
        """

    def partition(self, topic: str, partition: int) -> Partition:
        """Return the partition. In a replicated store this is the partition of the replica that leads now.
        Raises UnknownTopicOrPartitionError, StorageError, NotLeaderOrFollowerError.
        """

    def opened(self) -> list[TopicPartitionKey]:
        """Return the partitions that are open."""

    def unstable(self) -> list[TopicPartitionKey]:
        """Return the partitions with an open transaction."""

    def cleaned_offset(self, topic: str, partition: int) -> int | None:
        """Return the offset below which a partition was cleaned; None if it was never cleaned."""

    def forget_cleaned(self, topic: str, partition: int) -> None:
        """Forget the offset that `cleaned_offset` returns for a partition."""

    @property
    def publications(self) -> int:
        """Return the number of publications in this store."""

    @property
    def news(self) -> int:
        """Return a number that changes if a topic or partition is created or deleted, or a group changes."""

    def wait(self, seen: int, seconds: float) -> None:
        """Sleep until `publications` differs from `seen`, or `seconds` have passed."""

    def tail(self, keys: list[int]) -> TailedEnds | None:
        """Return an object by which `wait_for` waits until the log ends of the partitions with these slot
        keys (hashes of topic id and partition) change. Return None if the log end of a key is not published.
        The caller must use `wait` then.
        """

    def wait_for(self, tailed: TailedEnds, nudges: int, seconds: float) -> int:
        """Sleep until one of the log ends in `tailed` changes, `tailed.nudges()` no longer returns `nudges`,
        or `seconds` have passed. Return the result of `TailedEnds.wait`.
        """

    def nudge(self) -> None:
        """Wake the threads in `wait`, although nothing was published."""

    def wake(self) -> None:
        """Wake all threads in `wait`, so that they return early."""

    def abandon(self) -> None:
        """Stop the store's threads, because nothing refers to the store."""

    @property
    def closed(self) -> bool:
        """Return whether the locks of all directories are released."""

    def close(self) -> None:
        """Close cleanly, and release the locks of all directories."""
