"""`StoreWriter` opens a store for writing. It makes and closes the objects that work on parts of the store:
`Partitions`, `TopicAdmin`, `Sweeper`, `Inbox`, `Primary`.

Writes `.lock`, the format file, the clean shutdown marker and the close note; these objects write most other
files. Threads: any; each object documents its locks.
"""

from __future__ import annotations

import errno
import gc
import os
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from segstore import names
from segstore.config import StoreConfig
from segstore.errors import InvalidArgumentError, StorageError, StoreLockedError, first_of
from segstore.files import Files, Handle
from segstore.files.reserve import NO_ROOM, PIECE, SIZE
from segstore.mutex import Mutex, calls_out
from segstore.storage.context import StoreContext
from segstore.storage.inbox.inbox import Inbox
from segstore.storage.log.partition import Partition
from segstore.storage.log.recovery import Recovered
from segstore.storage.meta.aside import check_readable, set_aside
from segstore.storage.meta.clean_shutdown import (
    Left,
    broker_epoch_of,
    new_nonce,
    put_marker,
    replicated_nonce,
    take_marker,
)
from segstore.storage.meta.close_note import CLOSE_NOTE, FoundNote, OwedEpochs, owed_by, write_note
from segstore.storage.meta.directory_safety import is_store, kept_mode, remove_begun
from segstore.storage.meta.published_ends import EndsWriter, slot_key
from segstore.storage.meta.role import MIRROR, ROLE, STANDBY
from segstore.storage.meta.root_checkpoints import RootCheckpoints, TopicPartitionKey
from segstore.storage.meta.store_format import check_format, has_living_members, mark_unshared
from segstore.storage.meta.tailed_ends import TailedEnds
from segstore.storage.meta.topics import TopicFiles, TopicInfo
from segstore.storage.store.kept_files import KeptFiles
from segstore.storage.store.partition_loader import PartitionLoader
from segstore.storage.store.partitions import Partitions
from segstore.storage.store.primary import Primary, check_not_fenced
from segstore.storage.store.small_mending import mend_small, state_format
from segstore.storage.store.sweeper import Sweeper
from segstore.storage.store.topic_admin import TopicAdmin
from segstore.threads import others_are_gone

if TYPE_CHECKING:
    from segstore.storage.shared.sharing import Sharing
    from segstore.storage.store.store_member import StoreMember

_LINES = 16
"""The number of partitions whose lines in the root's checkpoints fit into one piece (`PIECE` bytes) of the
disk reserve.
"""


class StoreWriter:
    """Opens a store for writing. After a crash it finishes changes of topics and swaps of segments, and cuts
    torn writes at the ends of logs.

    If `replicated`, the directory belongs to a replicated store: each of its partitions is a replica, which
    readers see up to its high watermark. `clean_epoch` is the broker epoch in the clean shutdown marker, -1
    if there was no marker (Kafka: PreviousBrokerEpoch, R26). `role` is the role that the directory must have,
    MIRROR or STANDBY of `meta.role`; None if it must have no role.
    """

    shares = False
    """Whether other processes may write the store, too."""
    sharing: Sharing | None = None
    """The membership of this process in a shared store; None if the store is not shared."""

    def __init__(
        self, context: StoreContext, config: StoreConfig, *, replicated: bool = False, role: str | None = None
    ) -> None:
        self.context, self.config, self._replicated, self._role = context, config, replicated, role
        self.clean_epoch = -1
        self.is_new: bool | None = None
        """Whether the directory had no store before this open; None while this is not known."""
        self.kept = KeptFiles(context)
        self._closing, self._tried = Mutex(), False
        self._thread = threading.get_ident()
        # `owner()` returns the store, or None after the store was garbage collected.
        self.owner: Callable[[], object] | None = None
        root, me = context.files.real_path(context.root), weakref.ref(self)
        self._held = _take_lock(context)
        # There must be no call between the line above and the line below, so that Ctrl-C can't come between.
        _begun[root] = me
        try:
            with context.reserve:
                self._open()
            context.reserve.take(self._reserve_size())
        except BaseException as error:
            try:
                if isinstance(error, Exception):
                    self.undo()
                self.let_go()
            finally:  # a second interrupt may have stopped the first `let_go`
                self.let_go()
            raise

    def announce(self, address: str) -> None:
        """Write the store's address, "PROTOCOL://HOST:PORT", into the lock file; "" removes it. Raises
        OSError.
        """
        self.context.files.announce(self._held, address)

    # --- opening --------------------------------------------------------------------------

    def _open(self) -> None:
        """Open the store. If this raises an error, the caller stops the threads that were started."""
        context = self.context
        files, root = context.files, context.root
        root_names = check_readable(files, root)
        self.is_new = not is_store(files, root, root_names)
        has_format = f"{names.OURS}/{names.FORMAT}" in root_names
        format_wrong = check_format(files, root) if has_format else ""
        self._check_may_write(root_names)
        if f"{names.OURS}/{names.FULL}" in root_names:  # a writer that has died left its note of a full disk
            context.full.forget()
            context.reserve.forget_looks()
        moved = set_aside(files, root)
        has_marker = names.CLEAN_SHUTDOWN in root_names
        note = None if self._replicated else FoundNote(files, root, has_marker=has_marker)
        marker = take_marker(files, root) if has_marker else None
        self._topic_files = self._prepare(format_wrong, stated=has_format and not format_wrong)
        mend_small(context, root_names)
        self.sharing = sharing = self._share(root_names)
        self._open_ends()
        nonce = self._ends.nonce if self._ends.found else None
        self._checkpoints = RootCheckpoints(
            files, root, root_names, marker, nonce, copied=self._ends.was_checked
        )
        left = Left.of(marker, nonce or 0, ours=self._ends.found or self._checkpoints.copied)
        if sharing is not None and sharing.found:  # the ends of the logs come from `.segstore/shared`
            left, note = Left(True, True, left.gaps_known), None
        if left.clean and left.ends_hold:
            self.clean_epoch = broker_epoch_of(marker)
        self._begin_ends(left)
        self._make_parts(left, root_names)
        damaged = self._report_damage(moved, unclean=marker == 0 and not left.clean)
        if note is not None and (not left.clean or note.is_of_ours(marker or 0, nonce or 0)):
            self._loader.owed = self._owed_epochs(note, was_closed=left.clean)
        self._open_adopted()
        self._open_partitions(left, every=damaged or (sharing is not None and not self.shares))
        if note is not None and (note.is_restored or not left.clean):
            if self._loader.owed.step and note.is_restored:
                self.kept.skip_producer_ids()
            self._note(0)
        if damaged:
            self.partitions.checkpoint()
        self._begin()

    def _open_ends(self) -> None:
        """Open `.segstore/ends`, with the ends of the shared logs if the store is or was shared."""
        files, root, sharing = self.context.files, self.context.root, self.sharing
        self._ends = EndsWriter(files, names.below(root, f"{names.OURS}/{names.ENDS}"))
        if sharing is not None:
            sharing.members.lead(leads=True)  # opening logs of a dead host may take its locks
            sharing.finish_together(self._ends.mapping[0])
            if sharing.found:
                self._ends.restore(sharing.left())
            self._ends.sharing = sharing if self.shares else None

    def _begin_ends(self, left: Left) -> None:
        """Record in `.segstore/ends` that the store is open. Slots that can't be used are cleared first."""
        if not left.ends_hold:
            # The slots are cleared first. After `begin` the file counts as this store's, so the open after a
            # crash would use old slots that are still in it.
            self._ends.clear()
        if self._ends.lost and not left.clean:
            self._ends.doubt()
        self._ends.begin()

    def _make_parts(self, left: Left, root_names: Collection[str]) -> None:
        """Make the objects for partitions, the standby, topics and the inbox. No log is opened yet."""
        context, checkpoints = self.context, self._checkpoints
        self._loader = loader = PartitionLoader(
            context,
            self._topic_files,
            self._ends,
            checkpoints,
            left,
            self.config.producer_id_expiration_ms,
            replicated=self._replicated,
        )
        loader.sharing = self.sharing
        self.partitions = Partitions(context, lambda: self.topic_admin.topics, loader, checkpoints)
        lag_time = self.config.replica_lag_time_max_ms
        self.primary = Primary(context, lag_time, root_names, lambda: self.topics, lambda: self.partitions)
        # A standby that was the primary before is `replicated`, and ignores its old registration.
        if not self._replicated and self.primary.registration.is_there:
            self.primary.begin_notes()
        if self._role is None and self.primary.registration.sync:
            loader.sync = True
            self.partitions.on_opened = self.primary.opened
        self.topic_admin = TopicAdmin(
            context, self._topic_files, self._ends, checkpoints, loader, self.partitions
        )
        self.inbox = Inbox(
            context,
            self.config,
            root_names,
            lambda: self.topic_admin.topics,
            self.partition,
            self._ends.wake_sealers,
        )

    def _share(self, root_names: Collection[str]) -> Sharing | None:
        """If the store is shared, and all its members have died, become its only member, and return the
        membership. Return None if the store was not shared, or if its last host has closed it. Raises
        StorageError.
        """
        files, root = self.context.files, self.context.root
        if f"{names.OURS}/{names.SHARED}" not in root_names:
            return None
        from segstore.storage.meta.shared_header import end_old
        from segstore.storage.shared.shared_file import SharedFile
        from segstore.storage.shared.sharing import Sharing

        if SharedFile.is_live(files, root):
            return Sharing.begin(files, root, self.config)
        end_old(files, names.below(root, f"{names.OURS}/{names.SHARED}"))
        mark_unshared(files, root)
        return None

    def _check_may_write(self, root_names: Collection[str]) -> None:
        """Raise an error if the store has another role than `self._role`, belongs to a replicated store, was
        demoted, or has living members.
        """
        files, root = self.context.files, self.context.root
        if not self._replicated and names.META_PROPERTIES in root_names:
            check_plain(files, root)
        if (
            not self.shares
            and f"{names.OURS}/{names.MEMBERS}" in root_names
            and has_living_members(files, root)
        ):
            # The store has no host, but guests are alive [H3].
            raise StoreLockedError(root, None, shared=True)
        if self._role is not None or f"{names.OURS}/{names.ROLE}" in root_names:
            check_role(files, root, self._role)
        if f"{names.OURS}/{names.FENCE}" in root_names and self.may_have_standby:
            check_not_fenced(self.context)

    def _owed_epochs(self, note: FoundNote, *, was_closed: bool) -> OwedEpochs:
        """Return the partitions that must begin a leader epoch when they are opened: all partitions of a
        restored store, else the partitions in the close note. If there is no note, a restored store is
        reported only if `was_closed`, because a killed broker leaves no note.
        """
        if not note.is_restored:
            return note.owed()
        keys = [
            slot_key(info.topic_id, info.name, partition)
            for info in self.topic_admin.topics.values()
            for partition in info.partition_ids
        ]
        if keys and (note.note is not None or was_closed):
            self.context.report(
                CLOSE_NOTE.path(self.context.root),
                "the files are not those that are noted there: the store was copied or restored since",
                "each partition begins a new leader epoch when it is opened",
            )
        return owed_by(keys)

    def _note(self, number: int) -> None:
        """Write the close note; `number` is the number in the clean shutdown marker, or 0 if there is no
        marker.
        """
        self.context.make_way(CLOSE_NOTE.path(self.context.root))
        write_note(self.context.files, self.context.root, number, self._loader.owed, self._ends.keys())

    def _report_damage(self, moved: list[tuple[str, str]], *, unclean: bool) -> bool:
        """Report the damaged files of the root and of `.segstore/`; return whether there are any."""
        root, report = self.context.root, self.context.report
        for path, where in moved:
            report(path, "no regular file", f"moved to {where}")
        for damage in self._ends.damage:
            report(os.path.join(root, names.OURS, names.ENDS), damage, "made anew")
        for name, message, done in self._checkpoints.damages:
            report(os.path.join(root, name), message, done)
        if unclean:
            report(
                os.path.join(root, names.CLEAN_SHUTDOWN), "holds no number", "taken for an unclean shutdown"
            )
        return bool(moved or self._ends.damage or self._checkpoints.damages or unclean)

    def _prepare(self, format_wrong: str, *, stated: bool) -> TopicFiles:
        """Make the directories `.segstore` and `.segstore/topics`, and the format file if no undamaged one
        exists (`stated` is False).
        """
        files, root = self.context.files, self.context.root
        ours = names.below(root, names.OURS)
        files.file_mode = kept_mode(files, root, files.file_mode)
        files.ensure_directory(ours)
        if not stated:
            state_format(self.context, format_wrong)
        topic_files = TopicFiles(files, root)
        topic_files.prepare()
        return topic_files

    def _open_adopted(self) -> None:
        """Finish or undo the adoptions of staged appends (their addition to the logs) that a crash
        interrupted, and show readers all added records at once.
        """
        self.inbox.join_again(self._loader.durable_below)
        finished = self.inbox.undo_unfinished()
        if finished:
            self._loader.clean, self._loader.adopted = False, finished
            with self._ends.together():
                for key in sorted(finished):
                    self.partitions.open(*key)

    def _open_partitions(self, left: Left, *, every: bool) -> None:
        """Open the partitions that need recovery. If `every`, open all partitions, because damaged
        checkpoints are made anew from all partitions. A partition that is not opened here is opened when it
        is first used.
        """
        known = self._ends.keys()
        live = set()
        for info in self.topic_admin.topics.values():
            if info.ours:
                self._loader.make(info)
            for partition in info.partition_ids:
                key = slot_key(info.topic_id, info.name, partition)
                live.add(key)
                if every or not (self._loader.clean and left.ends_hold and key in known):
                    self.partitions.open(info.name, partition)
        for key in known - live:
            self._ends.release(key)

    def _cut_sealed(self, sharing: Sharing) -> None:
        """Cut each sealed segment (a segment that was closed to appends) at the end that was recorded when it
        was sealed, because members may have written bytes after that end. Raises OSError.
        """
        from segstore.storage.store.takeover import cut_all_sealed

        # The segments are cut now, because `.segstore/shared`, which has the sealed ends, is not used after
        # this call.
        for info in self.topics.values():
            for number in info.partition_ids:
                key = slot_key(info.topic_id, info.name, number)
                slot = self._ends.slot(key)
                log = None if slot is None else sharing.file.log_if_there(slot)
                if log is not None and log.key == key:
                    directory = self._topic_files.partition_path(info.name, number)
                    cut_all_sealed(self.context, directory, log, info.settings.index_interval_bytes)

    def _begin(self) -> None:
        """End the sharing of the store if this writer is no host, then start the background work."""
        context, config = self.context, self.config
        if self.sharing is not None and not self.shares:
            self._cut_sealed(self.sharing)
            self._ends.publish_sharing()
            self._ends.end_sharing()
            self.sharing.members.close()
            mark_unshared(context.files, context.root)
        seconds = config.log_flush_offset_checkpoint_interval_ms / 1000
        context.scheduler.every(seconds, self._checkpoint_on_time)
        seconds = config.producer_id_expiration_check_interval_ms / 1000
        context.scheduler.every(seconds, self.expire_producers)
        cleaned, checkpoint = self._checkpoints.cleaner_offsets, self.partitions.checkpoint
        self.sweeper = Sweeper(
            context, config, lambda: self.topic_admin.topics, self.partition, cleaned, checkpoint
        )
        self.sweeper.start()
        if not self._replicated:
            self.inbox.begin()

    def _checkpoint_on_time(self) -> None:
        """Write the checkpoints; a full disk is only recorded, because the next call tries again."""
        try:
            self.partitions.checkpoint()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self.context.full.met(error)

    def _reserve_size(self) -> int:
        """Return the number of bytes to reserve on the disk for the deletion of a topic, which rewrites the
        root's checkpoints: the checkpoints have a line for each partition.
        """
        partitions = sum(len(info.partition_ids) for info in self.topic_admin.topics.values())
        return SIZE + partitions // _LINES * PIECE

    def expire_producers(self) -> None:
        """Forget producer ids that were not used for producer.id.expiration.ms."""
        self.partitions.expire_producers(self.config.producer_id_expiration_ms)

    # --- what there is --------------------------------------------------------------------

    @property
    def role(self) -> str:
        """Return the role of this process, "writer"."""
        return "writer"

    @property
    def host_pid(self) -> int:
        """Return the pid of this process."""
        return self.context.pid

    def members(self) -> list[StoreMember]:
        """Return an empty list, because the store is not shared."""
        return []

    @property
    def may_have_standby(self) -> bool:
        """Return whether this store may have a standby: the store has no role, and is not replicated."""
        return self._role is None and not self._replicated

    @property
    def topics(self) -> dict[str, TopicInfo]:
        """Return all topics by name."""
        return self.topic_admin.topics

    @property
    def recovered(self) -> list[Recovered]:
        """Return a `Recovered` for each partition that this process has recovered, in the order of the
        recoveries.
        """
        return self._loader.recovered

    @property
    def staging_path(self) -> str:
        """Return the path of the store's root, because files of staged appends are written into an inbox
        below the root.
        """
        return self.context.root

    def partition(self, topic: str, partition: int) -> Partition:
        """Return the partition, and open it first if needed. Raises UnknownTopicOrPartitionError,
        StorageError.
        """
        return self.partitions.get(topic, partition)

    def opened(self) -> list[TopicPartitionKey]:
        """Return the keys of the open partitions. After an unclean shutdown all partitions are open, except
        those that can't be opened.
        """
        return self.partitions.keys()

    def unstable(self) -> list[TopicPartitionKey]:
        """Return the partitions with an open transaction. They are found in `.segstore/ends`, without opening
        a partition.
        """
        found = []
        for info in self.topic_admin.topics.values():
            for partition in info.partition_ids:
                ends = self._ends.get(slot_key(info.topic_id, info.name, partition))
                if ends is not None and ends.stable < ends.high_watermark:
                    found.append((info.name, partition))
        return found

    def leader_epochs(self, topic: str, numbers: Sequence[int]) -> list[int]:
        """Return the leader epochs of a topic's partitions, -1 if an epoch is not known. For a partition that
        is not open, this is the epoch that it will have when it is opened: the published epoch plus the step
        in `OwedEpochs`. No partition is opened.
        """
        epochs = self.partitions.epochs(topic, numbers)
        if -1 not in epochs:
            return epochs
        pairs = zip(epochs, numbers, strict=True)
        return [epoch if epoch >= 0 else self._published_epoch(topic, number) for epoch, number in pairs]

    def _published_epoch(self, topic: str, partition: int) -> int:
        info = self.topic_admin.topics.get(topic)
        key = 0 if info is None else slot_key(info.topic_id, topic, partition)
        ends = self._ends.get(key) if key else None
        return -1 if ends is None else ends.epoch + self._loader.owed.of(key)

    def cleaned_offset(self, topic: str, partition: int) -> int | None:
        """Return the offset of a partition in cleaner-offset-checkpoint; None if the partition has no line in
        this file.
        """
        return self._checkpoints.cleaner_offsets.get((topic, partition))

    def forget_cleaned(self, topic: str, partition: int) -> None:
        """Remove a partition's line from cleaner-offset-checkpoint, so that the partition's whole log counts
        as dirty. Raises OSError.
        """
        self._checkpoints.cleaner_offsets.update({(topic, partition): None})

    @property
    def publications(self) -> int:
        return self._ends.publications

    def call_after_publications(self, call: Callable[[], None]) -> None:
        """Call `call()` after each publication from now on (`EndsWriter.on_published`)."""
        self._ends.on_published = (*self._ends.on_published, call)

    def stop_calling(self, call: Callable[[], None]) -> None:
        """Undo `call_after_publications`; a second call does nothing."""
        self._ends.on_published = tuple(each for each in self._ends.on_published if each != call)

    @property
    def news(self) -> int:
        """Return a number that changes if a topic or partition is created or deleted, or a group changes."""
        return self._ends.news

    def wait(self, seen: int, seconds: float) -> None:
        """Sleep until `publications` differs from `seen`, or `seconds` have passed."""
        self._ends.wait(seen, seconds)

    def tail(self, keys: list[int]) -> TailedEnds | None:
        """Return an object by which `wait_for` waits until the log ends of the partitions with these slot
        keys (hashes of topic id and partition) change; None if one of the keys has no slot in
        `.segstore/ends`.
        """
        try:
            return self._ends.tail(keys)
        except LookupError:
            return None

    @calls_out  # a signal handler that runs during the sleep may call the store
    def wait_for(self, tailed: TailedEnds, nudges: int, seconds: float) -> int:
        """Sleep until one of the log ends in `tailed` changes, `tailed.nudges()` no longer returns `nudges`,
        or `seconds` have passed. Return the result of `TailedEnds.wait`.
        """
        return tailed.wait(nudges, seconds)

    def nudge(self) -> None:
        """Wake the threads in `wait`, although nothing was published."""
        self._ends.nudge()

    def wake(self) -> None:
        """Wake all threads in `wait`, so that they return early."""
        self.nudge()

    # --- closing --------------------------------------------------------------------------

    def abandon(self) -> None:
        """Stop the store's threads, because nothing refers to the store. The next open recovers the store."""
        if hasattr(self, "inbox"):  # `inbox` is missing if an interrupt came within `_open`
            self.inbox.close()
        if hasattr(self, "sweeper"):
            self.sweeper.stop()
        self.context.scheduler.close()

    def undo(self) -> None:
        """Remove the files of a new store whose open failed; an existing store stays. Errors are ignored,
        because the next open removes the remaining files. The caller calls `let_go` afterwards.
        """
        context = self.context
        self.abandon()
        context.closed = True
        context.pool.close()
        with suppress(OSError):
            if self.is_new is None:
                self.is_new = not is_store(
                    context.files, context.root, set(context.files.listdir(context.root))
                )
            if self.is_new:
                remove_begun(context.files, context.root, made=context.made)

    @property
    def is_lost(self) -> bool:
        """Return whether the store was garbage collected. If Ctrl-C has interrupted the open before there was
        a store, return whether this thread called the open.
        """
        return self._thread == threading.get_ident() if self.owner is None else self.owner() is None

    def let_go(self) -> None:
        """Stop the store's threads, close the store's files, and release the store's lock last. May be
        repeated.
        """
        self.abandon()
        self.context.closed = True
        self.context.pool.close()
        # After a failed open this process must not stay a member.
        if self.sharing is not None and not self.shares:
            self.sharing.members.close()
        if hasattr(self, "_held"):
            self._held.close()

    @property
    def closed(self) -> bool:
        """Return whether the store's lock is released."""
        return self._held.closed

    def close(self, broker_epoch: int | None = None) -> None:
        """Close cleanly. In a replicated store the clean shutdown marker gets `broker_epoch`, which the next
        writer reads as `clean_epoch`. After an error or an interrupt the lock is released too, and the next
        open recovers the store. A second call only releases the lock. Raises the first error of closing.
        Raises InvalidArgumentError, and closes nothing, if `broker_epoch` is below 1.
        """
        nonce = new_nonce() if broker_epoch is None else replicated_nonce(broker_epoch)
        with self._closing:
            first, self._tried = not self._tried, True
            try:
                if first:
                    with self.context.reserve:
                        self._close_cleanly(nonce)
            finally:
                self.let_go()

    def _close_cleanly(self, nonce: int) -> None:
        self.inbox.close()
        if not self._replicated:
            self.inbox.settle()
        self.sweeper.close()
        self.context.closed = True
        self.wake()  # this makes the threads in `wait` notice that the store is closed
        self.context.scheduler.close()
        self.context.full.forget()
        with self.partitions.lock:
            errors = self.partitions.close()
            if errors:
                raise first_of(errors)
            # If the interpreter has stopped threads, their work may be half done. Then no marker is written,
            # so the next open recovers the store.
            if self.partitions.is_clean() and not others_are_gone():
                self.topic_admin.finish_deletions()
                self.partitions.checkpoint_held(nonce)
                # `.segstore/ends` is synced before the clean shutdown marker is written, because the marker
                # is valid only with this content of the file.
                self._ends.sync()
                put_marker(self.context.files, self.context.root, nonce)
                self._note(nonce)
                self._ends.set_nonce(nonce)


_begun: dict[str, weakref.ref[StoreWriter]] = {}


def let_go_of_lost(files: Files, root: str) -> None:
    """Release a writer of this directory if nothing refers to its store, because Ctrl-C interrupted the open
    or close. The garbage collector runs first, because the store may be part of a reference cycle. A writer
    that this process has inherited by a fork is not released: it belongs to the parent, and its threads are
    not in this process.
    """
    gc.collect()
    begun = _begun.get(files.real_path(root))
    writer = None if begun is None else begun()
    if writer is not None and not writer.context.inherited and writer.is_lost:
        writer.let_go()


def check_plain(files: Files, root: str) -> None:
    """Raise InvalidArgumentError if the directory belongs to a replicated store, because a single writer
    would begin leader epochs that the other replicas don't know (R7). A broker's directory is accepted.
    Raises CorruptCheckpointError, OSError.
    """
    if TopicFiles(files, root).is_replicated():
        raise InvalidArgumentError(
            f"{root} is a directory of a replicated store: `segstore.open_replicated` writes all of its "
            'directories, and mode="r" reads this one'
        )


_COMMANDS = {MIRROR: "end-mirror", STANDBY: "promote"}
"""For each role, the command that turns a directory with this role into a plain store."""


def check_role(files: Files, root: str, kind: str | None) -> None:
    """Raise InvalidArgumentError if the role of the directory is not `kind` (None: no role). Raises
    CorruptCheckpointError, OSError.
    """
    held = ROLE.read(files, root)
    if held is not None and held.kind != kind:
        raise InvalidArgumentError(
            f"{root} is a {held.kind} of cluster {held.cluster_id} ({held.source}): nothing else is written"
            f' there, mode="r" reads it, and `segstore {_COMMANDS[held.kind]}` makes an ordinary store of it'
        )
    if held is None and kind is not None:
        raise InvalidArgumentError(f"{root} is no {kind}, but a store of its own")


def locked(files: Files, root: str) -> StoreLockedError:
    """Return the error to raise for a store that is open for writing already. Raises OSError."""
    path = names.below(root, names.LOCK)
    return StoreLockedError(
        root,
        files.lock_holder(path),
        files.is_locked_here(path),
        files.lock_address(path),
        has_living_members(files, root),
    )


def _remove_lock_file(context: StoreContext) -> None:
    """Remove the lock file after an error, and the directory if this open made it, unless the directory is a
    store.
    """
    files, root = context.files, context.root
    with suppress(OSError), files.lock(names.below(root, names.LOCK)):
        if not is_store(files, root, set(files.listdir(root))):
            remove_begun(files, root, made=context.made)


def _take_lock(context: StoreContext) -> Handle:
    path = names.below(context.root, names.LOCK)
    try:
        return context.files.lock(path)
    except BlockingIOError:
        raise locked(context.files, context.root) from None
    except OSError as error:
        _remove_lock_file(context)
        if error.errno != errno.EISDIR:
            raise
        hint = (
            "A directory lies in the place of the lock file: move it away, and open the store again "
            "(`segstore check --repair` moves it to the quarantine)"
        )
        raise StorageError(error.errno, hint, path) from error
