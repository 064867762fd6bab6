"""`PublishedPartition` finds the log end offsets that the writer has published in `.segstore/ends`, and the
log start offset, for one partition and a reader of the store. It also finds out whether the partition still
exists.

Files are only read. Threads: any.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from segstore.storage.context import StoreContext
from segstore.storage.meta.published_ends import Ends, EndsGlance, EndsReader, slot_key
from segstore.storage.meta.root_checkpoints import LOG_START_FILES, read_log_start
from segstore.storage.meta.topics import TopicFiles, TopicInfo
from segstore.storage.store.believed_ends import BelievedEnds


class _KnownEnds(NamedTuple):
    """The ends that `PublishedPartition.ends` returned last (`shown`), the `reader` of the file that has
    these ends, and an `EndsGlance`, which finds out whether the file's ends of this partition have changed.
    """

    reader: EndsReader
    glance: EndsGlance
    shown: Ends


class PublishedPartition:
    """Implements `segstore.storage.log.read_only_partition.PublishedLog` for a topic's partition `number`."""

    def __init__(
        self, context: StoreContext, ends: BelievedEnds, topic_files: TopicFiles, info: TopicInfo, number: int
    ) -> None:
        self._files, self._root = context.files, context.root
        self._ends, self._topic_files, self._info, self._number = ends, topic_files, info, number
        self._directory = topic_files.partition_path(info.name, number)
        self._key = slot_key(info.topic_id, info.name, number)
        self._known: _KnownEnds | None = None
        # The value of each dict's only entry is the log start offset that was read last. In `_starts` the key
        # is the published log start offset. In `_unpublished` the key has the identity (device, inode, birth
        # time) of each file that was read.
        self._starts: dict[int, int] = {}
        self._unpublished: dict[tuple[object, ...], int] = {}
        # The topic id in the partition's metadata file, and the inode of the directory, when `has_directory`
        # last found the partition in the topic's settings.
        self._own_mark: tuple[str, int] | None = None

    def ends(self) -> Ends | None:
        """Return the partition's ends in `.segstore/ends`; None if the store's last writer did not write this
        file, or if the partition has no slot in the file.
        """
        ends, last = self._ends.known(), self._known
        if ends is None:
            return None
        if last is not None and last.reader is ends and last.glance.unchanged():
            return last.shown
        shown = found = ends.get(self._key)
        if found is None:
            return None
        if found.start != 0:
            starts = self._starts  # this is a local variable, because another thread may replace `_starts`
            if found.start not in starts:
                # The log start offset that is read here is not older than `found`, because a writer changes
                # the checkpoints before it changes `.segstore/ends`.
                starts = self._starts = {found.start: self._log_start(found)}
            shown = found._replace(start=starts[found.start])
        glance = ends.glance(found)
        self._known = _KnownEnds(ends, glance, shown) if glance is not None and shown is not None else None
        return shown

    def log_start(self) -> int:
        """Return the log start offset of a partition that has no slot in `.segstore/ends`. The files that
        contain this offset are read again only if one of them was replaced.
        """
        seen = tuple(self._identity(os.path.join(self._root, place)) for place in LOG_START_FILES)
        if seen not in self._unpublished:
            self._unpublished = {seen: self._log_start(None)}
        return self._unpublished[seen]

    def ends_count(self) -> bool:
        """Return whether the store's last writer wrote `.segstore/ends`, or a writer, which will write this
        file, has the store open.
        """
        return self._ends.believed() is not None or self._ends.have_writer()

    def exists(self) -> bool:
        """Return whether the topic with this id still has the partition. Raises OSError,
        CorruptCheckpointError.
        """
        found = self._topic_files.load()[0].get(self._info.name)
        return found is not None and (self._info.topic_id, True) == (
            found.topic_id,
            self._number in found.partition_ids,
        )

    def has_directory(self) -> bool:
        """Return whether the directory still belongs to this topic: the topic's id is in the partition's
        metadata file, or, if it is not in this file, in the settings of the topic with this name. A broker's
        topic without an id can't be distinguished from a new topic of the same name.
        """
        found_id = self._topic_files.readable_id(self._info.name, self._number)
        if found_id == self._info.topic_id:
            return True
        mark = found_id, self._files.inode(self._directory)
        if self._own_mark != mark:
            if not self.exists():
                return False
            self._own_mark = mark
        return True

    def sealed(self) -> dict[int, int]:
        """Return {base offset: end in bytes} of the sealed segments, which are closed to appends. Another
        process may still write bytes after this end (rule A5 of shared stores).
        """
        ends = self._ends.mapped
        return {} if ends is None or ends.shared is None else ends.sealed(self._key)

    def _log_start(self, published: Ends | None) -> int:
        key = self._info.name, self._number
        return read_log_start(self._files, self._root, key, self._ends.found(), published)

    def _identity(self, path: str) -> tuple[int, ...] | None:
        try:
            return self._files.identity(path)
        except FileNotFoundError:
            return None
