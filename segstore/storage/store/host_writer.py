"""The writing side of a shared store: a writer as any, which lets other processes append (docs/shared.md).

On disk are `.segstore/shared` and `.segstore/members` beside a writer's files. Threads: any; a thread of the
host answers what guests ask.
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
from segstore.storage.store.store_member import StoreMember, told_of
from segstore.storage.store.writer import StoreWriter


class HostWriter(StoreWriter):
    """The host of a shared store. With `sharing` this process is a member already."""

    shares = True
    on_host: Callable[[], object]
    """See `StoreGuest`: this side is the host from its beginning on."""

    def __init__(
        self,
        context: StoreContext,
        config: StoreConfig,
        sharing: Sharing | None = None,
        guest: Callable[[], object] | None = None,
    ) -> None:
        """`guest` gives the guest that has become the host, None once nothing refers to that."""
        self._guest = guest
        self._given, self._lets_go = sharing, False
        self._keys: dict[int, tuple[str, int]] = {}
        super().__init__(context, config)

    @property
    def role(self) -> str:
        """See `Store.role`."""
        return "host"

    def members(self) -> list[StoreMember]:
        """See `Store.members`."""
        assert self.sharing is not None
        return told_of(self.sharing.members.all())

    @property
    def is_lost(self) -> bool:
        """See `StoreWriter`."""
        return super().is_lost if self._guest is None else self._guest() is None

    # --- opening --------------------------------------------------------------------------

    def _share(self, root_names: Collection[str]) -> Sharing | None:
        return self._given or Sharing.begin(self.context.files, self.context.root, self.config)

    def _begin(self) -> None:
        sharing = self.sharing
        assert sharing is not None
        super()._begin()
        mark_shared(self.context.files, self.context.root)
        self.socket = HostSocket(self.context.files, self.context.root, sharing.file)
        self.host = Host(self.context, sharing.members, self._find, self.partitions.all_open)
        sharing.go_live()
        sharing.on_grown = self._ends.tell_shared
        self._ends.tell_shared()
        self.host.start()

    def _find(self, slot: int, key: int) -> Partition:
        """Return the partition that a guest asks for. Raises UnknownTopicOrPartitionError."""
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
        """See `StoreWriter`."""
        if hasattr(self, "host"):
            self.host.stop()
        super().abandon()
        if not self._lets_go and hasattr(self, "socket"):
            self.socket.close()

    def let_go(self) -> None:
        """See `StoreWriter`."""
        self._lets_go = True
        try:
            if hasattr(self, "socket"):
                self.socket.unlink()
            if self._given is not None:
                self._given.members.lead(leads=False)  # it may go on as a guest
            super().let_go()
            if hasattr(self, "socket"):
                self.socket.close()  # behind the lock, which those that hear of this try at once
        finally:
            if self.sharing is not None and self._given is None:
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
        self._ends.end_sharing()  # from here on readers, and the next open, go by the published ends
        mark_unshared(self.context.files, self.context.root)

    def _take_over_all(self) -> None:
        """Take over the logs that another host has left, and that this one has not needed: once the store is
        not shared, nobody knows their ends. Raises StorageError.
        """
        assert self.sharing is not None
        try:
            for info in list(self.topics.values()):
                for number in info.partition_ids:
                    key = slot_key(info.topic_id, info.name, number)
                    slot = self._ends.slot(key)
                    if slot is not None and self.sharing.is_left(slot, key):
                        self.partition(info.name, number)
        except BaseException:
            self.sharing.file.live = True  # the next host does it
            raise

    def _others_live(self) -> bool:
        """Return whether another member lives; if none does, nobody can come any more."""
        sharing = self.sharing
        assert sharing is not None
        if sharing.members.others_alive():
            return True
        sharing.file.close_to_others()
        if sharing.members.others_alive():  # it has come just before
            sharing.file.live = True
            return True
        return False

    def _leave(self) -> None:
        """Leave the store to the next host, with its logs open. What waits for a disk comes first, while this
        one still answers.
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
