"""A guest: a process that writes a shared store beside its host (docs/shared.md).

A guest itself appends to segment files and reads them. It also changes its own slot in
`.segstore/shared`, and writes the files of long appends (`guest_staging`). Only the host creates and removes
topics and segments, and writes checkpoints. Threads: any.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from segstore._native import held, lib
from segstore.config import StoreConfig, TopicConfig
from segstore.errors import HostUnavailableError, SegstoreError, StoreClosedError
from segstore.records import Encoded
from segstore.storage.context import StoreContext
from segstore.storage.finding import Repaired
from segstore.storage.handle_pool import HandlePool
from segstore.storage.log.guest_partition import GuestPartition
from segstore.storage.log.recovery import Recovered
from segstore.storage.meta.published_ends import slot_key
from segstore.storage.meta.topic_info import INTERNAL
from segstore.storage.meta.topics import TopicInfo, find_topic
from segstore.storage.scheduler import Scheduler
from segstore.storage.shared.coherence import HostLine
from segstore.storage.shared.members import Members
from segstore.storage.shared.refused_calls import refused_in_guest
from segstore.storage.shared.shared_file import SharedFile
from segstore.storage.shared.sharing import Sharing, new_share
from segstore.storage.shared.verdicts import Asking, MemberRequest
from segstore.storage.store.host_writer import HostWriter
from segstore.storage.store.reader import StoreReader
from segstore.storage.store.store_member import StoreMember, store_members
from segstore.storage.store.succession import Succession

if TYPE_CHECKING:
    from segstore.storage.log.partition import Partition
    from segstore.storage.store.writing_side import WritingSide

_CONNECT = 5.0  # the longest wait for the host when the store is opened, in seconds


def _same(topics: Mapping[str, TopicInfo], topic: str, partition: int, key: int) -> TopicInfo:
    """Return the topic if `key` is the slot key (a hash of topic id and partition) of its partition. Raises
    StoreClosedError if the topic was deleted, even if a new topic has the same name.
    """
    info = topics.get(topic)
    if info is None or slot_key(info.topic_id, topic, partition) != key:
        raise StoreClosedError(f"{topic}-{partition}: the topic was deleted")
    return info


def _nothing() -> None:
    """Do nothing."""


class StoreGuest(StoreReader):
    """The guest's side of a shared store: a reader that also appends."""

    def __init__(
        self,
        context: StoreContext,
        config: StoreConfig,
        shared: SharedFile,
        members: Members,
        *,
        may_host: bool,
    ) -> None:
        super().__init__(context)
        self.config, self.shared, self._members = config, shared, members
        self._asking = Asking(context.root, members, context.check_open)
        self._guests: dict[tuple[str, int, str], GuestPartition] = {}
        self._mapped: Any = None
        self.host: HostWriter | None = None
        """The host's writer, if this process has become the host."""
        self.on_host: Callable[[], object] = _nothing
        """This function is called after this process has become the host."""
        self._succession = Succession(context, members, self._become_host) if may_host else None

    def begin(self) -> None:
        """Check that the host and this process see the same memory in `.segstore/shared`. If this process
        may become the host, start the thread that waits until the host closes or dies. Raises
        NotShareableError, HostUnavailableError.
        """
        HostLine(self.context.files, self.context.root, self._members, _CONNECT).close()
        if self._succession is not None:
            self._succession.start()

    @property
    def role(self) -> str:
        """Return the role of this process, "guest", or "host" after it has replaced the former host."""
        return "guest" if self.host is None else "host"

    @property
    def recovered(self) -> list[Recovered]:
        """Return a `Recovered` for each partition that this process has recovered as the host; an empty list
        in a guest.
        """
        return [] if self.host is None else self.host.recovered

    @property
    def mended(self) -> tuple[Repaired, ...]:
        """Return the repairs of damaged files that this process has made as the host."""
        return () if self.host is None else tuple(self.host.context.mended)

    def _become_host(self) -> None:
        """Open the store as its host, while the guest's partitions stay open. Raises StorageError, and
        StoreLockedError if another member became the host first.
        """
        mine = self.context
        pool = HandlePool(mine.files, mine.pool.limit)
        context = StoreContext(mine.root, mine.files, pool, Scheduler(), mine.clock, True, mine.pid)
        self.host = HostWriter(
            context, self.config, Sharing(self._members, self.shared, found=True), weakref.ref(self)
        )
        if not mine.closed:  # if this guest is closed, `close` or `_leave` closes the host
            self.on_host()

    @property
    def host_pid(self) -> int:
        """Return the host's pid; 0 if no host lives."""
        host = self._members.host()
        return 0 if host is None else host.pid

    def members(self) -> list[StoreMember]:
        """Return the living members of the store, by slot."""
        return store_members(self._members.all())

    # --- partitions -----------------------------------------------------------------------

    def appender(self, topic: str, partition: int) -> Partition:
        """Return a `GuestPartition`, which has those methods of a `Partition` that append. Raises
        UnknownTopicOrPartitionError.
        """
        info = find_topic(self.topics, topic, partition)
        key = (topic, partition, info.topic_id)
        follower = self.partition(topic, partition)
        found = self._guests.get(key)
        if found is None:
            made = GuestPartition(
                self.context,
                self,
                topic,
                partition,
                slot_key(info.topic_id, topic, partition),
                follower,
                lambda: self._settings(topic, info.topic_id),
            )
            found = self._guests.setdefault(key, made)
        return cast("Partition", found)

    def _settings(self, topic: str, topic_id: str) -> TopicConfig:
        info = self.topics.get(topic)
        if info is None or info.topic_id != topic_id:
            raise StoreClosedError(f"{topic}: the topic was deleted")
        return info.settings

    def share_of(self, key: int) -> tuple[int, Any] | None:
        """Return (the partition's slot in `.segstore/ends`, a new `seg_share *`, by which C code uses the
        log's part of `.segstore/shared`). Return None if the host has not opened the partition.
        """
        slot = self._slot(key)
        if slot is None or self.shared.log_if_there(slot) is None:
            return None
        return slot, new_share(self._members, self.shared, slot, key, lib.SEG_OF_GUEST, grow=False)

    def _slot(self, key: int) -> int | None:
        ends = self._ends.found()
        return None if ends is None else ends.slot(key)

    def slot_of(self, key: int) -> int:
        """Return the partition's slot in `.segstore/ends`. Raises StoreClosedError if the partition has no
        slot, because the topic was deleted or is just being created.
        """
        slot = self._slot(key)
        if slot is None:
            raise StoreClosedError(f"{self.context.root}: the topic was deleted, or is only being made")
        return slot

    @property
    def ends(self) -> tuple[Any, int]:
        """Return (writable memory mapping of `.segstore/ends`, size of the mapping in bytes)."""
        if self._mapped is None:
            files = self.context.files
            with files.open(self._ends.path, write=True) as handle:
                size = files.size(handle)
                self._mapped = held("uint8_t[]", files.map(handle, size, write=True)), size
        return self._mapped  # type: ignore[no-any-return]

    @property
    def patience(self) -> float:
        """Return the seconds after which an append that waits for the host raises `unavailable()`."""
        return int(self.shared.header.answer_ms) / 1000

    def unavailable(self) -> HostUnavailableError:
        """Return the error for an append that waited too long for the host."""
        return self._asking.unavailable()

    def ask(self, what: int, request: MemberRequest) -> None:
        """Send the host a request of the kind `what` (SEG_ASKS_...), and wait for its answer."""
        self._asking.ask(what, request)

    def stage(self, topic: str, partition: int, key: int, chunks: Iterable[Encoded]) -> int:
        """Write records to a staged file, wait until the host has added the file to the log, and return the
        first offset. The records become visible all at once. Raises the errors of `StagedAppend.run`.
        """
        from segstore.storage.store.guest_staging import StagedAppend  # only long appends need this import

        info = _same(self.topics, topic, partition, key)
        append = StagedAppend(self.context, info, partition, self.unavailable)
        return append.run(chunks, self.patience)

    def flush(self) -> None:
        """Sync all partitions to which this process has appended. An error of one partition does not stop the
        sync of the next partition. The first error is raised at the end: StorageError, HostUnavailableError.
        """
        errors: list[SegstoreError] = []
        for each in list(self._guests.values()):
            try:
                each.flush()
            except StoreClosedError:
                self.context.check_writable()
                continue  # the topic was deleted
            except SegstoreError as error:
                errors.append(error)
        try:
            if self.host is not None:
                self.host.partitions.flush()  # this syncs the partitions that this process writes as the host
            if errors:
                raise errors[0]
        finally:
            # This breaks a reference cycle: each error's traceback refers to this frame, whose `errors`
            # refers to the error.
            errors.clear()

    def _forget_all_but(self, found: dict[str, TopicInfo]) -> None:
        super()._forget_all_but(found)
        for topic, number, topic_id in list(self._guests):
            if topic not in found or found[topic].topic_id != topic_id:
                self._guests.pop((topic, number, topic_id), None)

    def writing(self) -> WritingSide:
        """Return the host's writer if this process has become the host, else raise IllegalStateError."""
        if self.host is not None:
            return self.host
        raise refused_in_guest("a call that changes more than a log's end")

    def led(self, topic: str, partition: int, key: int) -> Partition | None:
        """Return the `Partition` that this process writes if it is the host, else None. The host raises
        StoreClosedError if the topic was deleted. A guest raises IllegalStateError if the topic is internal,
        because only a host writes internal topics.
        """
        if self.host is not None:
            _same(self.host.topics, topic, partition, key)
            return self.host.partition(topic, partition)
        if topic in INTERNAL:
            raise refused_in_guest(f"a write to {topic}")
        return None

    # --- closing --------------------------------------------------------------------------

    def undo(self) -> None:
        """Stop what a failed `begin` has started. The context stays open, because the caller uses it for its
        next try.
        """
        if self._succession is not None:
            self._succession.stop()
        if self.host is not None:
            self.host.let_go()

    def abandon(self) -> None:
        """Stop the threads of the store, because nothing refers to the store."""
        if self._succession is not None:
            self._succession.stop()
        if self.host is not None:
            self.host.abandon()
        super().abandon()

    @property
    def locks(self) -> list[Any]:
        """Return the locks that an interrupted call may hold when the store is closed."""
        return [*super().locks, *(each.token for each in list(self._guests.values()))]

    def close(self) -> None:
        """Close the store, and end the membership of this process."""
        # `closed` is set first, so that no thread resumes appends to a partition that `each.close` has
        # closed. `_members` is closed last, because a process counts as dead after it has released the lock
        # of its member slot.
        self.context.closed = True
        if self._succession is not None:
            self._succession.stop()
        for each in list(self._guests.values()):
            each.close()  # `each.close` does not sync records that only the host can sync
        try:
            if self.host is not None:
                self.host.close()
        finally:
            super().close()
            if self._succession is None:
                self._members.close()
            else:
                self._succession.at_end(self._leave)

    def _leave(self) -> None:
        """End the membership of this process, after the succession's thread has ended. Close the host first
        if this process has become the host after `close` has looked for it.
        """
        try:
            if self.host is not None:
                self.host.close()
        finally:
            self._members.close()
