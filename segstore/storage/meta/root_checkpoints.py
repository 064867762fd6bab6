"""The checkpoint files in the store's root: recovery points, log start offsets, high watermarks, cleaner
offsets.

Each file is a text of (topic, partition, offset) in Kafka's format, which has no checksum. A copy with a
checksum (`checked_copy`) has the same offsets.

- If the last writer wrote the copy, the copy is used, and the text files are written anew from it.
- If a broker that was killed may have written the text files after the copy, the text files are used, but of
  the two log start offsets the smaller is used, because it keeps more records.
- If the copy is missing or damaged, or if a broker has closed the directory after the copy was written, only
  the text files are used, and no record is deleted because of a text file.

A log start offset that only a text file has is a "claim": the copy lists it in `claims` until the log start
offset moves. If a partition is not opened, its lines stay.

Threads: any; one lock, held while files are written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping

from segstore import names
from segstore.files import Files
from segstore.mutex import Mutex
from segstore.storage.meta.checked_copy import CheckedCopy, CopyState, read_copy, write_copy
from segstore.storage.meta.clean_shutdown import read_marker
from segstore.storage.meta.offset_checkpoints import try_offsets, write_offsets
from segstore.storage.meta.published_ends import Ends, EndsReader

_COPY = f"{names.OURS}/{names.CHECKPOINTS}"
TopicPartitionKey = tuple[str, int]
Lines = dict[TopicPartitionKey, int]
Changes = Mapping[TopicPartitionKey, int | None]
"""New offsets by partition; None removes a partition's line."""
LOG_START_FILES = (
    names.LOG_STARTS,
    names.CLEAN_SHUTDOWN,
    _COPY,
    os.path.join(names.OURS, names.ENDS),
)
"""The paths, below the root, of all files that `read_log_start` needs: the files that contain log start
offsets, and the clean shutdown marker, which helps to choose between them.
"""


class RootCheckpoints:
    """Reads and writes the four checkpoint files. `damages` lists (file's path below the root, damage,
    repair).

    `there` are the paths, below the root, of all files in the root and in `.segstore`. `marker` and
    `published` are the numbers that the clean shutdown marker and `.segstore/ends` had before this open; None
    if the file was missing. `copied` is False if an older segstore wrote `.segstore/ends`: it makes no copy
    of the checkpoints.
    """

    def __init__(
        self,
        files: Files,
        root: str,
        there: Collection[str],
        marker: int | None = None,
        published: int | None = None,
        *,
        copied: bool = True,
    ) -> None:
        self._files, self._root = files, root
        self._lock = Mutex()
        self.damages: list[tuple[str, str, str]] = []
        copy, damage = read_copy(files, root) if _COPY in there else (None, "")
        if damage or (copy is None and copied and marker and published == marker):
            self.damages.append((_COPY, damage or "missing", "made anew"))
        self.copied = copy is not None or bool(damage)
        """Whether there was a copy, even a damaged one, when the store was opened."""
        standing = CopyState.STALE if copy is None else copy.standing(marker, published, copied)
        current = standing is CopyState.CURRENT
        held = None if standing is CopyState.STALE else copy
        self._current, self._copy = current, copy
        self._unwritten: set[str] = set()
        self._held = dict[str, Lines]()
        for name in names.OFFSET_CHECKPOINTS:
            known = held is not None or name in there
            self._held[name] = self._load(name, held, current) if known else {}
        self._claims = dict(copy.claims) if copy is not None else {}
        self.recovery_points = OffsetCheckpoint(self, names.RECOVERY_POINTS)
        self.log_starts = OffsetCheckpoint(self, names.LOG_STARTS)
        self.cleaner_offsets = OffsetCheckpoint(self, names.CLEANER_OFFSETS)

    def _load(self, name: str, copy: CheckedCopy | None, current: bool) -> Lines:
        text, damage = try_offsets(self._files, names.below(self._root, name))
        lines = believed(name, text, None if copy is None else copy.offsets[name], current)
        if damage:
            source = "its copy with a checksum" if copy is not None else "what the logs tell"
            self.damages.append((name, damage, f"made anew from {source}"))
        elif (text or {}) != lines:
            self.damages += [(name, message, "put right") for message in differences(text or {}, lines)]
        if damage or (text or {}) != lines:
            self._unwritten.add(name)
        return lines

    def is_checked(self, name: str, key: TopicPartitionKey) -> bool:
        """Return whether the copy with a checksum confirmed a partition's offset in the file `name` when the
        store was opened.
        """
        return _is_checked(name, key, self._held[name].get(key), self._copy, self._current)

    def lines(self, name: str) -> Mapping[TopicPartitionKey, int]:
        """Return the offsets in the file with this name, by partition."""
        return self._held[name]

    def update(
        self, changes: Mapping[str, Changes] | Callable[[], Mapping[str, Changes]], nonce: int = 0
    ) -> None:
        """Write the copy, then the files with changes, and sync all of them. `changes` has new offsets by the
        file's name, or is a function that returns such a mapping. `nonce` is the number in the clean shutdown
        marker of a clean close, else 0. If nothing has changed, nothing is written, except the copy if
        `nonce` is not 0. Raises OSError.
        """
        with self._lock:
            # The function is called under the lock, so that a thread with older offsets can't write after a
            # thread with newer offsets.
            changes = changes() if callable(changes) else changes
            held = {name: _changed(lines, changes.get(name, {})) for name, lines in self._held.items()}
            self._unwritten |= {name for name, lines in held.items() if lines != self._held[name]}
            if self._unwritten or nonce:
                starts = changes.get(names.LOG_STARTS, {})
                self._claims = {k: at for k, at in self._claims.items() if starts.get(k, at) == at}
                write_copy(self._files, self._root, held, nonce, self._claims)
            for name in sorted(self._unwritten):
                write_offsets(self._files, os.path.join(self._root, name), held[name])
            self._unwritten.clear()
            self._held = held

    def claim(self, key: TopicPartitionKey, log_start: int) -> None:
        """Record that no source with a checksum confirms this log start offset of a partition. The claim is
        valid until the log start offset changes, and becomes durable at the next write of the checkpoints'
        copy.
        """
        with self._lock:
            self._claims[key] = log_start

    def is_claim(self, key: TopicPartitionKey) -> bool:
        """Return whether the partition's log start offset is a claim: no source with a checksum
        confirmed it.
        """
        at = self._claims.get(key)
        return at is not None and at == self._held[names.LOG_STARTS].get(key)

    def forget(self, topic: str, but: tuple[int, ...] = ()) -> None:
        """Remove the lines of a topic's partitions, except the partitions in `but`, so that new partitions
        with the same numbers don't get the old offsets. Raises OSError.
        """
        self.update(
            {
                name: {key: None for key in lines if key[0] == topic and key[1] not in but}
                for name, lines in self._held.items()
            }
        )


def _changed(lines: Lines, changes: Changes) -> Lines:
    return {key: at for key, at in {**lines, **changes}.items() if at is not None}


class OffsetCheckpoint:
    """Reads and writes the lines of one of the checkpoint files."""

    def __init__(self, all_of_them: RootCheckpoints, name: str) -> None:
        self._all, self._name = all_of_them, name

    def get(self, key: TopicPartitionKey) -> int | None:
        return self._all.lines(self._name).get(key)

    def update(self, changes: Changes) -> None:
        """Write the file with these changes, and sync it. Raises OSError."""
        self._all.update({self._name: changes})


def believed(
    name: str, text: Mapping[TopicPartitionKey, int] | None, copy: Lines | None, current: bool
) -> Lines:
    """Return the offsets to use, from the `text` and the `copy` of the file `name`; each of the two is None
    if it can't be used. `current`: whether the last writer wrote the copy.
    """
    if copy is None or text is None or current:
        return dict(copy if copy is not None else text or {})
    if name != names.LOG_STARTS:
        return dict(text)
    return {key: min(at, copy.get(key, 0)) for key, at in text.items()}


def _is_checked(
    name: str, key: TopicPartitionKey, noted: int | None, copy: CheckedCopy | None, current: bool
) -> bool:
    return current or (copy is not None and copy.offsets[name].get(key) == noted)


def agreed_start(noted: int | None, checked: bool, published: Ends | None, ends_checked: bool) -> int:
    """Return the log start offset to use. `noted` is the offset in the checkpoint; None if the partition has
    no line. If only the published offset has a checksum, it is used; else the smaller offset is used, because
    it keeps more records.
    """
    if published is None:
        return noted or 0
    if ends_checked and (noted is None or not checked):
        return published.start
    return min(noted or 0, published.start)


def differences(
    text: Mapping[TopicPartitionKey, int], counts: Mapping[TopicPartitionKey, int]
) -> Iterator[str]:
    """Yield a sentence for each partition whose offset in `text` differs from its offset in `counts`. The
    offset in `counts` is the one that is used.
    """
    for key in sorted(text.keys() | counts.keys()):
        says, taken = (str(held[key]) if key in held else "nothing" for held in (text, counts))
        if says != taken:
            where = names.partition_dir(*key)
            yield f"says {says} of {where}: its copy with a checksum has {taken}, which counts"


def read_log_start(
    files: Files, root: str, key: TopicPartitionKey, ends: EndsReader | None, published: Ends | None
) -> int:
    """Return the log start offset of a partition, for a reader of the store. `ends` is a reader of
    `.segstore/ends`, in which the writer publishes log ends; None if the file can't be used. `published` has
    the partition's ends in this file; None if there are none. Raises a transient OSError (EMFILE, EIO).
    """
    text, _ = try_offsets(files, os.path.join(root, names.LOG_STARTS))
    copy, _ = read_copy(files, root)
    standing = CopyState.STALE
    if copy is not None:
        nonce = None if ends is None else ends.nonce
        standing = copy.standing(read_marker(files, root), nonce, ends is None or ends.checked)
    lines = None if copy is None or standing is CopyState.STALE else copy.offsets[names.LOG_STARTS]
    current = standing is CopyState.CURRENT
    noted = believed(names.LOG_STARTS, text, lines, current).get(key)
    checked = _is_checked(names.LOG_STARTS, key, noted, copy, current)
    return agreed_start(noted, checked, published, ends is not None and ends.checked)
