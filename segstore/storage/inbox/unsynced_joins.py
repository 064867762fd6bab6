"""The segments that adoptions of a store have joined from staged files, and that are not synced yet.

After the sync of the segments that a note (`joined`) lists, the note and its staged files are removed. A note
is moved to the quarantine if the note or one of its staged files is damaged, or a staged file is missing.
Threads: one at a time, the holder of the inbox's lock, or the thread that opens the store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from segstore import names
from segstore.errors import (
    CorruptCheckpointError,
    StagedFilesError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
)
from segstore.logger import Logger
from segstore.storage.inbox.adopted_ids import AdoptedIds
from segstore.storage.inbox.cleanup import put_aside
from segstore.storage.inbox.joined import JoinNote, all_joined, forget_joined, join_again, remove_joined
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.staged_file import StagedFile
from segstore.storage.log.partition import Partition
from segstore.storage.meta.topic_info import TopicInfo
from segstore.storage.reported_failures import ReportedFailures

log = Logger("segstore")


class UnsyncedJoins:
    """The segments that were joined from small staged files, and must still be synced. `partition(topic,
    number)` returns a partition of the store. `report` is called with (path, damage, repair) of each damaged
    note.
    """

    def __init__(
        self,
        folder: Folder,
        report: Callable[[str, str, str], None],
        partition: Callable[[str, int], Partition],
    ) -> None:
        self._folder, self._report, self._partition = folder, report, partition
        self._joined: dict[str, JoinNote] = {}  # the keys are the notes' stems
        self._reported = ReportedFailures()

    def add(self, joined: JoinNote) -> None:
        """Add the note of the segments that a finished adoption has joined. The note is on disk already."""
        self._joined[joined.stem] = joined

    def files(self, stem: str) -> set[StagedFile]:
        """Return the staged files that an adoption still needs, because its segments may have to be joined
        again after a power cut.
        """
        joined = self._joined.get(stem)
        return set() if joined is None else set(joined.files)

    def settle(self) -> None:
        """Sync the joined segments, and then remove their notes and staged files. If a sync or removal fails,
        for example because a partition is fenced (takes no appends), the note stays for the next call, or the
        next open.
        """
        for stem, joined in tuple(self._joined.items()):
            try:
                self._sync(joined)
                remove_joined(self._folder, joined)
                del self._joined[stem]
            except (OSError, StoreClosedError) as error:
                if self._reported.is_new(stem, error):
                    log.warning("what %s has joined can't be synced now: %s", stem, error)

    def _sync(self, joined: JoinNote) -> None:
        for topic, number in sorted(joined.partitions):
            try:
                self._partition(topic, number).flush()
            except UnknownTopicOrPartitionError:
                """The topic was deleted after the adoption."""

    # --- at open ----------------------------------------------------------------------------

    def join_again(
        self,
        topics: Mapping[str, TopicInfo],
        ids: AdoptedIds,
        durable_below: Callable[[TopicInfo, int], int],
    ) -> None:
        """After a crash, join the segments of the notes again from their staged files, durably, except
        segments that are durable, or whose adoption will be undone. Raises OSError.
        """
        for path in self._folder.temporaries():
            # Nothing depends on a note that was not renamed to its final name before the crash.
            if path.endswith(names.JOINED + names.TEMPORARY):
                self._folder.unlink(path)
        for joined in all_joined(self._folder, self._give_up):
            begun = self._folder.files.exists(self._folder.intent(joined.stem))
            if begun and ids.find(joined.id) is None:  # the adoption will be undone
                forget_joined(self._folder, joined.stem)
                continue
            try:
                join_again(self._folder, topics, joined, durable_below)
            except StagedFilesError as error:
                path = self._folder.joined(joined.stem)
                self._give_up(joined.stem, CorruptCheckpointError(path, 1, str(error)))
            else:
                remove_joined(self._folder, joined)

    def _give_up(self, stem: str, error: CorruptCheckpointError) -> None:
        """Move a note of joined segments to the quarantine, because the note or its staged files are damaged.
        The log stays unchanged. A crash does not cause this damage.
        """
        path = self._folder.joined(stem)
        put_aside(self._folder, stem, path)
        self._report(path, error.reason, f"moved to {os.path.join(self._folder.quarantine, stem)}")
