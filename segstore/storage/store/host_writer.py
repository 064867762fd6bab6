"""`HostWriter`, the writer of a shared store, which also answers the requests of guests: the other processes
that append to the store (docs/shared.md).

Writes `.segstore/shared` and `.segstore/members`, makes the socket `.segstore/host`, and writes the files
that every writer of a store writes. Threads: any.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from segstore.config import StoreConfig
from segstore.errors import first_of
from segstore.storage.context import StoreContext
from segstore.storage.log.partition import Partition
from segstore.storage.meta.published_ends import slot_key
from segstore.storage.meta.store_format import mark_shared, mark_unshared
from segstore.storage.shared.coherence import HostSocket
from segstore.storage.shared.sharing import Sharing
from segstore.storage.store.host import Host, unknown
from segstore.storage.store.store_member import StoreMember, store_members
from segstore.storage.store.writer import StoreWriter


class HostWriter(StoreWriter):
    """The host of a shared store. `sharing` is the membership of this process if it was a guest before; None
    if this process is no member yet.
    """

    shares = True
    on_host: Callable[[], object]
    """Not used: a guest that becomes the host calls `StoreGuest.on_host`."""

    def __init__(
        self,
        context: StoreContext,
        config: StoreConfig,
        sharing: Sharing | None = None,
        guest: Callable[[], object] | None = None,
    ) -> None:
        """`guest()` returns the guest that has become this host; None if the guest was garbage collected."""
        self._guest = guest
        self._member_sharing, self._lets_go = sharing, False
        self._keys: dict[int, tuple[str, int]] = {}
        super().__init__(context, config)

    @property
    def role(self) -> str:
        """Return the role of this process, "host"."""
        return "host"

    def members(self) -> list[StoreMember]:
        """Return the living members of the store, by slot."""
        assert self.sharing is not None
        return store_members(self.sharing.members.all())

    @property
    def is_lost(self) -> bool:
        """Return whether nothing refers to the store any more. If this host was a guest before, this is True
        if its `StoreGuest` was garbage collected.
        """
        return super().is_lost if self._guest is None else self._guest() is None

    # --- opening --------------------------------------------------------------------------

    def _share(self, root_names: Collection[str]) -> Sharing | None:
        return self._member_sharing or Sharing.begin(self.context.files, self.context.root, self.config)

    def _begin(self) -> None:
        sharing = self.sharing
        assert sharing is not None
        super()._begin()
        mark_shared(self.context.files, self.context.root)
        self.socket = HostSocket(self.context.files, self.context.root, sharing.file)
        self.host = Host(self.context, sharing.members, self._find, self.partitions.all_open)
        sharing.go_live()
        sharing.on_grown = self._ends.publish_sharing
        self._ends.publish_sharing()
        self.host.start()

    def _find(self, slot: int, key: int) -> Partition:
        """Return the partition with this slot key (a hash of topic id and partition). Raises
        UnknownTopicOrPartitionError.
        """
        if key not in self._keys:
            self._keys = {
                slot_key(info.topic_id, info.name, number): (info.name, number)
                for info in self.topics.values()
                for number in info.partition_ids
            }
        if key not in self._keys:
            raise unknown(key)
        return self.partition(*self._keys[key])

    # --- closing --------------------------------------------------------------------------

    def abandon(self) -> None:
        """Stop the host's threads and the store's threads, because nothing refers to the store. The next open
        recovers the store.
        """
        if hasattr(self, "host"):
            self.host.stop()
        super().abandon()
        if not self._lets_go and hasattr(self, "socket"):
            self.socket.close()

    def let_go(self) -> None:
        """Release the directory, and stop serving the members. May be repeated."""
        self._lets_go = True
        try:
            if hasattr(self, "socket"):
                self.socket.unlink()
            if self._member_sharing is not None:
                self._member_sharing.members.lead(leads=False)  # this process may continue as a guest
            super().let_go()
            if hasattr(self, "socket"):
                # The socket is closed after the lock was released, because members try to take the lock as
                # soon as the socket closes.
                self.socket.close()
        finally:
            if self.sharing is not None and self._member_sharing is None:
                self.sharing.members.close()

    def _close_cleanly(self, nonce: int) -> None:
        sharing = self.sharing
        assert sharing is not None
        if self._others_live():
            self._leave()
            return
        self.host.stop()
        self._take_over_all()
        self._cut_sealed(sharing)
        super()._close_cleanly(nonce)
        # After this line readers and the next open use `.segstore/ends`, not `.segstore/shared`.
        self._ends.end_sharing()
        mark_unshared(self.context.files, self.context.root)

    def _take_over_all(self) -> None:
        """Open the logs that an earlier host left open. Raises StorageError."""
        # The ends of logs that were left open are only in `.segstore/shared`, which nobody reads after this
        # close.
        assert self.sharing is not None
        try:
            for info in list(self.topics.values()):
                for number in info.partition_ids:
                    key = slot_key(info.topic_id, info.name, number)
                    slot = self._ends.slot(key)
                    if slot is not None and self.sharing.is_left(slot, key):
                        self.partition(info.name, number)
        except BaseException:
            self.sharing.file.live = True  # so the next host reads the file, and opens the logs
            raise

    def _others_live(self) -> bool:
        """Return whether another member is alive; if not, change `.segstore/shared` so that no member can
        join.
        """
        sharing = self.sharing
        assert sharing is not None
        if sharing.members.others_alive():
            return True
        sharing.file.close_to_others()
        if sharing.members.others_alive():  # a member has joined just before `close_to_others`
            sharing.file.live = True
            return True
        return False

    def _leave(self) -> None:
        """Close this host, and leave the logs open for the next host. The steps that wait for a disk come
        first, while this host still answers its guests.
        """
        self.inbox.close()
        self.inbox.settle()
        self.sweeper.close()
        self.context.scheduler.close()
        errors: list[Exception] = []
        for partition in self.partitions.all_open():
            try:
                partition.flush()
            except Exception as error:
                errors.append(error)
        self.host.stop()
        self.context.closed = True
        self.wake()
        with self.partitions.lock:
            for partition in self.partitions.all_open():
                try:
                    partition.leave_open()
                except Exception as error:
                    errors.append(error)
            self.partitions.checkpoint_held(0)
        self._ends.leave()
        if errors:
            raise first_of(errors)
