"""The checkpoint files of the root: recovery points, log start offsets, high watermarks, cleaner offsets.

Each is Kafka's text of (topic, partition, offset), which has no checksum; `checked_copy` has the same numbers
with a checksum. If the copy is the last writer's, it is believed, and the text is made anew from it. If the
copy may be older (a broker may have been killed here), the text is believed. Of two log start offsets the
smaller one is used, which keeps more records. If the copy is missing or damaged, or a broker has used the
directory since, only the texts are used, and no record is deleted because of them. A log start offset that
only a text has is a "claim": the copy lists this offset in its `claims` until the log start is moved on
purpose. Partitions that were not loaded since the store was opened keep their lines.

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
"""New offsets; None removes a line."""
LOG_START_FILES = (
    names.LOG_STARTS,
    names.CLEAN_SHUTDOWN,
    _COPY,
    os.path.join(names.OURS, names.ENDS),
)
"""The files that `read_log_start` reads, below the root."""


class RootCheckpoints:
    """The four checkpoints. `damages` lists them: the file's name below the root, the damage, and its
    repair.

    `there` are the names in the root and in `.segstore`, as paths below the root; files that it does not name
    are missing. `marker` and `published` are the numbers in the clean shutdown marker and in the published
    ends before this open, None if there are none. `copied`: the writer that published also wrote copies of
    the texts.
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
        """Whether a segstore writer has left a copy, sound or not."""
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
        """Return whether a copy with a checksum had the same offset of a partition when the
        store was opened.
        """
        return _is_checked(name, key, self._held[name].get(key), self._copy, self._current)

    def lines(self, name: str) -> Mapping[TopicPartitionKey, int]:
        """Return the lines of one of the files."""
        return self._held[name]

    def update(
        self, changes: Mapping[str, Changes] | Callable[[], Mapping[str, Changes]], nonce: int = 0
    ) -> None:
        """Write the changed files, synced, and before them the copy; nothing is written without a change.
        `changes` are by file. `nonce` is the number of a clean close, which always writes the copy. Raises
        OSError.
        """
        with self._lock:
            # Call the function under the lock, so that this thread writes no older number over a newer one.
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
        """Note that no source with a checksum confirms a partition's log start offset. The offset stays a
        claim until the log start changes. The note becomes durable when the copy is next written.
        """
        with self._lock:
            self._claims[key] = log_start

    def is_claim(self, key: TopicPartitionKey) -> bool:
        """Return whether no source with a checksum confirmed this partition's log start offset when it was
        first read.
        """
        at = self._claims.get(key)
        return at is not None and at == self._held[names.LOG_STARTS].get(key)

    def forget(self, topic: str, but: tuple[int, ...] = ()) -> None:
        """Remove the lines of a topic's partitions, except those of `but`, so that new partitions don't get
        these lines. Raises OSError.
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
    """One of the files, and its lines."""

    def __init__(self, all_of_them: RootCheckpoints, name: str) -> None:
        self._all, self._name = all_of_them, name

    def get(self, key: TopicPartitionKey) -> int | None:
        return self._all.lines(self._name).get(key)

    def update(self, changes: Changes) -> None:
        """Write the file with these changes, synced. Raises OSError."""
        self._all.update({self._name: changes})


def believed(
    name: str, text: Mapping[TopicPartitionKey, int] | None, copy: Lines | None, current: bool
) -> Lines:
    """Return the lines to believe, from the text of the file `name` and its copy; `text` or `copy` is
    None if it is unusable. `current`: the copy is the last writer's.
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
    """Return the log start offset to use: the checkpoints' offset `noted` (None if they have none), or the
    published offset. If only the published offset has a checksum, it is used; else the smaller of the two,
    which keeps more records.
    """
    if published is None:
        return noted or 0
    if ends_checked and (noted is None or not checked):
        return published.start
    return min(noted or 0, published.start)


def differences(
    text: Mapping[TopicPartitionKey, int], counts: Mapping[TopicPartitionKey, int]
) -> Iterator[str]:
    """Yield a sentence for each line of a text that differs from the believed one."""
    for key in sorted(text.keys() | counts.keys()):
        says, taken = (str(held[key]) if key in held else "nothing" for held in (text, counts))
        if says != taken:
            where = names.partition_dir(*key)
            yield f"says {says} of {where}: its copy with a checksum has {taken}, which counts"


def read_log_start(
    files: Files, root: str, key: TopicPartitionKey, ends: EndsReader | None, published: Ends | None
) -> int:
    """Return the log start offset of a partition, for a reader that changes nothing. `published` is the
    partition's entry in the published `ends`. Raises a transient OSError (EMFILE, EIO).
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
