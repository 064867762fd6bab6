"""`PartitionLoader` makes the partitions of a store, and opens them for writing.

It writes a new partition's directory, the leader epoch file, and the checkpoints in the store's root;
`log.open` and the partitions write the segments. Threads: any; the store's lock is held while a partition is
opened, and while topics or topic settings change.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from segstore import names
from segstore.errors import CorruptCheckpointError, StorageError
from segstore.logger import Logger
from segstore.storage.context import StoreContext
from segstore.storage.log.epoch_history import load_epochs
from segstore.storage.log.open import Expected, Opened, open_partition
from segstore.storage.log.partition import LogState, Partition
from segstore.storage.log.publisher import Publisher
from segstore.storage.log.recovery import Recovered
from segstore.storage.meta.clean_shutdown import Left
from segstore.storage.meta.close_note import OwedEpochs
from segstore.storage.meta.offset_checkpoints import LeaderEpochs, format_leader_epochs
from segstore.storage.meta.published_ends import Ends, EndsWriter, slot_key
from segstore.storage.meta.root_checkpoints import RootCheckpoints, TopicPartitionKey, agreed_start
from segstore.storage.meta.small_files import put_aside, reason
from segstore.storage.meta.topics import TopicFiles, TopicInfo
from segstore.storage.producers.state_manager import Producers
from segstore.storage.segment.segment_files import create_segment, list_segments, take_own

if TYPE_CHECKING:
    from segstore.storage.shared.sharing import AbandonedLog, Sharing

log = Logger("segstore")

_TEMPORARIES = frozenset(n + names.TEMPORARY for n in (names.LEADER_EPOCHS, names.PARTITION_METADATA))
_LAYOUTS = 1 << 32  # `.segstore/ends` has 32 bits for the layout, a count of changes of the segment list
_AT_ONCE = 32  # number of partitions whose files are written at the same time; each needs two open files
Content = tuple[str, bytes]
"""(path of a file, content of the file)."""


class PartitionLoader:
    """Makes partitions' directories, and opens partitions for writing. To open a log, it uses the offsets in
    the checkpoints and in `.segstore/ends`.

    Threads: one at a time, under the store's lock. `left` says how the last writer left the store. `clean` is
    True if no partition needs recovery. `expiration_ms` is the time after which unused producer ids are
    forgotten.
    """

    def __init__(
        self,
        context: StoreContext,
        topic_files: TopicFiles,
        ends: EndsWriter,
        checkpoints: RootCheckpoints,
        left: Left,
        expiration_ms: int,
        *,
        replicated: bool = False,
    ) -> None:
        """If `replicated`, each partition is opened as a replica (R7, R36)."""
        self._context, self._topic_files, self._replicated = context, topic_files, replicated
        self._ends, self._checkpoints = ends, checkpoints
        self.clean, self._left, self._expiration_ms = left.clean, left, expiration_ms
        self.sync = False
        """Whether the store is a primary in sync mode: each partition has a high watermark, and readers see a
        record only after the standby has it.
        """
        self.owed = OwedEpochs()
        self.sharing: Sharing | None = None
        """The membership of this process in a shared store; None if the store is not shared.
        `.segstore/shared` has the ends of the logs that an earlier host has left open.
        """
        self.adopted: set[TopicPartitionKey] = set()
        """Partitions to which an earlier host has added the records of a staged append, but without
        publishing the new log end. These records are above the log end offset in `.segstore/shared`, but are
        kept.
        """
        self._made: set[TopicPartitionKey] = set()
        self.recovered: list[Recovered] = []

    def make(self, info: TopicInfo) -> None:
        """Make the missing partitions of a topic. They are durable when this returns. Raises OSError."""
        ids, files, made = info.partition_ids, self._context.files, False
        for at in range(0, len(ids), _AT_ONCE):
            begun = [self._begin(info, partition) for partition in ids[at : at + _AT_ONCE]]
            missing = [contents for contents in begun if contents is not None]
            if missing:
                files.write_together([*chain.from_iterable(missing)])
                made = True
        if made:
            files.sync_dir(self._context.root)

    def _begin(self, info: TopicInfo, partition: int) -> list[Content] | None:
        """Make the directory and the first segment of a partition, if they are missing. Return the files that
        the caller must write next, with their contents; None if the partition is complete, or if its
        directory is a symbolic link.
        """
        files, directory = self._context.files, self._topic_files.partition_path(info.name, partition)
        if files.exists(directory) and files.is_symlink(directory):
            return None  # `load` raises the error
        if self._identified(info, partition):
            return None
        if not files.exists(directory):
            files.mkdir(directory)
        contents: list[Content] = []
        epochs = os.path.join(directory, names.LEADER_EPOCHS)
        if not files.exists(epochs) or not files.size(epochs):
            self._context.make_way(epochs)
            # A replica never begins an epoch by itself (R7), so the leader epoch file is empty until a leader
            # begins an epoch.
            contents.append((epochs, format_leader_epochs([] if self._replicated else [(0, 0)])))
        if not any(names.parse_segment_file(n) for n in files.listdir(directory)):
            create_segment(self._context.pool, directory, 0, info.settings)
        return [*contents, *self._metadata_file(info, partition, directory)]

    def _metadata_file(self, info: TopicInfo, partition: int, directory: str) -> list[Content]:
        """Return the partition metadata file with its content; an empty list if the topic has no id. The
        caller writes this file last, so a partition with this file is complete. Raises OSError.
        """
        files, metadata = self._context.files, os.path.join(directory, names.PARTITION_METADATA)
        logs = [names.segment_file(base, names.LOG) for base in list_segments(files, directory)]
        used = any(files.size(os.path.join(directory, log)) for log in logs)
        if not used:
            self._made.add((info.name, partition))
        if not info.topic_id:  # a broker made the topic before Kafka had topic ids
            return []
        self._context.make_way(metadata)
        # If there are records, the partition was complete before, so its metadata file was lost.
        if used:
            self._context.report(metadata, "missing or empty", "made anew from the topic's settings")
        return [(metadata, names.partition_metadata(info.topic_id))]

    def _identified(self, info: TopicInfo, partition: int) -> bool:
        """Return whether the partition has a metadata file with an id. A file that is damaged, or that has
        another id than the topic, is written anew. Raises OSError.
        """
        try:
            found_id = self._topic_files.read_id(info.name, partition)
            wrong = f"topic id {found_id}, but the topic's is {info.topic_id}"
        except (CorruptCheckpointError, StorageError) as error:
            found_id, wrong = "?", reason(error)
        if found_id and info.topic_id and found_id != info.topic_id:
            path = os.path.join(
                self._topic_files.partition_path(info.name, partition), names.PARTITION_METADATA
            )
            self._context.remake(path, names.partition_metadata(info.topic_id), wrong, "the topic's settings")
        return bool(found_id)

    def load(self, info: TopicInfo, partition: int, start_moved: Callable[[int], None]) -> Partition:
        """Open a partition, recover the partition if needed, and publish the log end offset. Raises
        StorageError, OSError.
        """
        context, name = self._context, (info.name, partition)
        key, directory = slot_key(info.topic_id, *name), self._topic_files.partition_path(*name)
        context.files.check_directory(directory)
        self._put_aside(directory)
        published = self._ends.get(key) if self._left.ends_hold else None
        expected = self._expected(info, name, published)
        left = None if self.sharing is None else self.sharing.take_over(self._ends.claim(key), key)
        if left is not None and name not in self.adopted:
            expected = self._taken_over(directory, key, left, expected)
        take_own(context.files, context.root, directory, every=not expected.clean)
        try:
            opened = open_partition(context.pool, directory, info.settings, expected)
        except OSError:
            self._doubt(key, published)
            raise
        if opened.claimed:
            self._checkpoints.claim(name, opened.start_offset)
        if opened.buried:
            context.graveyard.put_found(opened.buried, info.settings.file_delete_delay_ms)
        epochs = self._begin_epoch(directory, opened, expected.clean, published, self.owed.of(key))
        self.owed.begun(key)
        if self._replicated and opened.end_offset < expected.recovery_point:
            # The recovery point is lowered to the log end offset, because the next records that this replica
            # appends are not synced yet.
            self._checkpoints.recovery_points.update({name: opened.end_offset})
        self._report(directory, opened, expected)
        producers = self._producers(directory, opened)
        layout = _next_layout(published, left)
        state = LogState(opened, epochs, producers, layout, self._first_high_watermark(name, published))
        publisher = Publisher(self._ends, key, epochs.current)
        made = Partition(context, info.settings, state, publisher, start_moved)
        made.writer.follows = self._replicated
        if left is not None and left.end.is_sealed:
            made.leave_sealed()
        return made

    def _taken_over(self, directory: str, key: int, left: AbandonedLog, expected: Expected) -> Expected:
        """Cut a log that an earlier host has left open, at the end that `.segstore/shared` has. Return
        `expected` with the offsets of that file.
        """
        from segstore.storage.store.takeover import cut_to, expected_of

        assert self.sharing is not None
        # A stopped guest that continues now cuts its segment at the end that was recorded when the segment
        # was sealed, then removes this sealed end. So the sealed ends are read before the files, because an
        # uncut file must not be read without its sealed end.
        ends = self.sharing.sealed(self._ends.claim(key), key)
        cut_to(self._context, directory, left.end)
        return expected_of(left, expected)._replace(ends=ends)

    def _producers(self, directory: str, opened: Opened) -> Producers:
        found = Producers.load(
            self._context.files,
            directory,
            opened.segments,
            opened.end_offset,
            None if opened.recovered is None else opened.recovered.recovery_point,
            self._context.clock,
            self._expiration_ms,
        )
        if found.begun_anew:
            self._report_lost_producers(directory, opened.segments[0].base_offset)
        return found

    def _first_high_watermark(self, name: TopicPartitionKey, published: Ends | None) -> int | None:
        """Return the high watermark of a partition that is opened; None if the store has no replicas, and is
        no primary in sync mode.
        """
        if self.sync:
            # The published high watermark counts too, so that readers still see all records that they saw
            # before a kill.
            shown = 0 if published is None else published.high_watermark
            return max(self._high_watermark(name), shown)
        return self._high_watermark(name) if self._replicated else None

    def _high_watermark(self, key: TopicPartitionKey) -> int:
        return self._checkpoints.lines(names.HIGH_WATERMARKS).get(key, 0)

    def _report(self, directory: str, opened: Opened, expected: Expected) -> None:
        """Log the messages in `expected` and `opened`. If there are any, or if the log was recovered, add a
        `Recovered` to `recovered`.
        """
        messages = (*expected.messages, *opened.messages)
        for message in messages:
            log.warning("%s: %s", directory, message)
        done = opened.recovered
        if messages:
            done = done or Recovered(os.path.basename(directory), opened.durable_offset, opened.end_offset)
            done = replace(done, reason="; ".join(filter(None, (done.reason, *messages))))
        if done is not None:
            self.recovered.append(done)

    def _report_lost_producers(self, directory: str, base: int) -> None:
        """Report that the producer ids without batches in the log are lost, because no snapshot could be
        used.
        """
        path = os.path.join(directory, names.segment_file(base, names.SNAPSHOT))
        done = "producers are known by the batches that are left: one that has none is taken for a new one"
        self._context.report(path, "there is no sound snapshot, and the log does not begin at offset 0", done)

    def _expected(self, info: TopicInfo, key: TopicPartitionKey, published: Ends | None) -> Expected:
        checkpoints, messages = self._checkpoints, list[str]()
        flushed = checkpoints.recovery_points.get(key)
        # A replica copies offset gaps from its leader, so its log may have gaps above its recovery point too.
        known = flushed if self._left.gaps_known and not self._replicated else None
        # If a sync has failed, the bitwise complement of the recovery point, a negative number, is published.
        suspect = published.recovery_point < 0 if published is not None else self._ends.doubted
        checked = published is not None and self._ends.was_checked
        recovery_point = flushed or 0
        if published is not None:
            # The recovery point in `.segstore/ends` is newer than the recovery point in the checkpoint. If
            # this file has no checksums, the larger one of the two is used.
            recovery_point = published.synced if checked else max(recovery_point, published.synced)
        return Expected(
            clean=self.clean or key in self._made,
            recovery_point=recovery_point,
            log_start=self._log_start(key, published, messages),
            quarantine=names.below(self._context.root, f"{names.OURS}/{names.QUARANTINE}"),
            gaps_end=info.gaps_end(key[1], checkpoints.cleaner_offsets.get(key), known),
            suspect=suspect,
            recovery_point_checked=checked
            or checkpoints.is_checked(names.RECOVERY_POINTS, key)
            or not recovery_point,
            log_start_checked=checked or checkpoints.is_checked(names.LOG_STARTS, key),
            log_start_claimed=checkpoints.is_claim(key),
            now_ms=self._context.clock(),
            messages=tuple(messages),
            replicated=self._replicated,
            may_be_old=info.of_broker,
        )

    def durable_below(self, info: TopicInfo, partition: int) -> int:
        """Return the offset below which every record of a partition is durable or deleted, according to the
        checkpoints and `.segstore/ends`.
        """
        published = self._ends.get(slot_key(info.topic_id, info.name, partition))
        held = published if self._left.ends_hold else None
        expected = self._expected(info, (info.name, partition), held)
        return max(expected.recovery_point, expected.log_start)

    def _log_start(self, key: TopicPartitionKey, published: Ends | None, messages: list[str]) -> int:
        """Return the log start offset, from the checkpoint or from `published`, the partition's ends in
        `.segstore/ends`. If these differ, and a kill does not explain the difference, a message is added to
        `messages`.
        """
        checkpoint_start = self._checkpoints.log_starts.get(key)
        checked = self._checkpoints.is_checked(names.LOG_STARTS, key)
        if self._replicated and checked and checkpoint_start is not None:
            # A replica that empties its log writes the checkpoint first, so the checkpoint is newer than
            # `.segstore/ends`.
            return checkpoint_start
        taken = agreed_start(checkpoint_start, checked, published, self._ends.was_checked)
        # A kill after the write of the checkpoint and before the publication leaves a smaller offset in
        # `.segstore/ends`. This difference is not reported.
        behind = published is not None and published.start < (checkpoint_start or 0) and not self.clean
        if published is not None and published.start != (checkpoint_start or 0) and not behind:
            messages.append(
                f"log start offset {published.start} is published, but {checkpoint_start or 0} is in the"
                f" checkpoint: {taken} is taken"
            )
        return taken

    def _doubt(self, key: int, published: Ends | None) -> None:
        """Publish that a sync has failed during recovery, so that the next recovery writes the log's bytes
        again.
        """
        # After a failed sync the page cache may have bytes that are not on disk.
        if published is None:
            self._ends.doubt()
        elif published.recovery_point >= 0:
            doubted = published._replace(recovery_point=~published.recovery_point)
            self._ends.publish([self._ends.claim(key)], [doubted])

    def _put_aside(self, directory: str) -> None:
        """Move directories, links and other special files to `.segstore/quarantine` if they have the name of
        an index, a snapshot or a temporary file of a partition. Raises OSError.
        """
        for name in sorted(self._context.files.irregular(directory)):
            parsed, path = names.parse_segment_file(name), os.path.join(directory, name)
            if name in _TEMPORARIES or (parsed is not None and parsed[1] != names.LOG):
                aside = put_aside(self._context.files, self._context.root, path)
                done = "" if name.endswith(names.TEMPORARY) else ", and made anew from the log"
                self._context.report(path, "no regular file", f"moved to {aside}{done}")

    def _begin_epoch(
        self, directory: str, opened: Opened, clean: bool, published: Ends | None, step: int
    ) -> LeaderEpochs:
        """Return the leader epochs of a partition, and make them durable. Unless the log is a replica, a new
        epoch begins at the log's end if the last shutdown was not clean, if the leader epoch file was
        damaged, or if `step` is above 0. The new epoch is `step`, but at least 1, above the latest epoch (see
        `OwedEpochs`). Epochs below the log start offset are removed; in a replica, all epochs outside of the
        log (R7; Kafka: LogLoader).
        """
        path = f"{directory}/{names.LEADER_EPOCHS}"
        epochs, wrong = load_epochs(self._context.files, path, opened, replicated=self._replicated)
        latest, changed = epochs.latest, False
        if self._replicated:
            changed = epochs.truncate_from_start(opened.start_offset) or bool(wrong)
            # The epochs are cut at the log's end after they were cut at the log's start, so that an empty log
            # keeps no epoch.
            epochs.truncate_from_end(opened.end_offset)
            changed |= epochs.latest != latest
        elif latest is None or wrong or step or not clean or opened.recovered is not None:
            # If the leader epoch file is damaged, the epochs were read from the batches. A later epoch
            # without batches is found only in `.segstore/ends`.
            latest = max(-1 if latest is None else latest, published.epoch if published and wrong else -1)
            epochs.truncate_from_end(opened.end_offset)
            epochs.assign(latest + max(step, 1), opened.end_offset)
            changed = True
        aside = self._context.make_way(path) if wrong else ""
        if epochs.truncate_from_start(opened.start_offset) or changed:
            epochs.save()
        if wrong:
            anew = "made anew from the log" + ("" if self._replicated else ", with a new epoch at its end")
            self._context.report(path, wrong, f"{anew}{aside}")
        return epochs


def _next_layout(published: Ends | None, left: AbandonedLog | None) -> int:
    """Return the layout (a count of changes of the segment list) that the opened partition publishes."""
    if left is not None:
        before: int = left.end.layout
    elif published is not None:
        before = published.layout
    else:
        return 0
    return (before + 1) % _LAYOUTS
