"""Owns the checkpoint files of the root: recovery points, log start offsets, high watermarks, cleaner
offsets.

Each is Kafka's text of (topic, partition, offset), which has no checksum: `checked_copy` says the same with
one. Where the two disagree, the copy counts, and of two log start offsets the smaller one, which keeps more
records. Where no copy is the last writer's (a broker was here, it is damaged, or from before there were
copies) the texts are all there is, but for those that are `checked`, and nothing is deleted because of them.
Partitions that were not loaded since the store was opened keep what their line said.
Threads: any; one lock, held while files are written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from segstore import names
from segstore.files import Files
from segstore.mutex import Mutex
from segstore.storage.checked_copy import CheckedCopy, read_copy, write_copy
from segstore.storage.checkpoint import try_offsets, write_offsets
from segstore.storage.shutdown import read_marker

TopicPartitionKey = tuple[str, int]
Lines = dict[TopicPartitionKey, int]
Changes = Mapping[TopicPartitionKey, int | None]
"""New offsets; None where a line goes."""


class RootCheckpoints:
    """The four of them. `told` is what was wrong: the file's name below the root, that, and what is done
    about it.

    `marker` and `published` are the numbers of the clean shutdown marker and the published ends as they were
    found, None where there was none. `copied`: whether who published makes copies.
    """

    def __init__(
        self,
        files: Files,
        root: str,
        marker: int | None = None,
        published: int | None = None,
        *,
        copied: bool = False,
    ) -> None:
        self._files, self._root = files, root
        self._lock = Mutex()
        self.told: list[tuple[str, str, str]] = []
        copy, damage = read_copy(files, root)
        if damage or (copy is None and copied and marker and published == marker):
            self.told.append((os.path.join(names.OURS, names.CHECKPOINTS), damage or "missing", "made anew"))
        self.copied = copy is not None or bool(damage)
        """Whether a writer of ours has left a copy, whole or not."""
        held = copy if copy is not None and copy.holds(marker, published) else None
        self.checked: set[str] = set()
        """Files of which a copy with a checksum says the same."""
        self.unknown: set[str] = set()
        """Files of which nothing is known: neither text nor copy can be read."""
        self._unwritten: set[str] = set()
        self._held = {name: self._load(name, held) for name in names.OFFSET_CHECKPOINTS}
        self.checked |= {
            n for n, lines in self._held.items() if copy is not None and copy.offsets[n] == lines
        }
        self.recovery_points = OffsetCheckpoint(self, names.RECOVERY_POINTS)
        self.log_starts = OffsetCheckpoint(self, names.LOG_STARTS)
        self.high_watermarks = OffsetCheckpoint(self, names.HIGH_WATERMARKS)
        self.cleaner_offsets = OffsetCheckpoint(self, names.CLEANER_OFFSETS)

    def _load(self, name: str, copy: CheckedCopy | None) -> Lines:
        text, damage = try_offsets(self._files, os.path.join(self._root, name))
        lines = settled(name, text, None if copy is None else copy.offsets[name])
        if damage:
            source = "its copy with a checksum" if copy is not None else "what the logs tell"
            self.told.append((name, damage, f"made anew from {source}"))
        elif (text or {}) != lines:
            self.told += [(name, message, "put right") for message in differences(text or {}, lines)]
        if damage or (text or {}) != lines:
            self._unwritten.add(name)
        if copy is not None:
            self.checked.add(name)
        elif text is None:
            self.unknown.add(name)
        return lines

    def lines(self, name: str) -> Mapping[TopicPartitionKey, int]:
        """What one of the files says."""
        return self._held[name]

    def update(self, changes: Mapping[str, Changes], nonce: int = 0) -> None:
        """Write files with these changes (by file), synced, and the copy before them; nothing is written
        where none changes anything. `nonce`: of a clean close, which always writes the copy. OSError.
        """
        with self._lock:
            held = {name: _changed(lines, changes.get(name, {})) for name, lines in self._held.items()}
            self._unwritten |= {name for name, lines in held.items() if lines != self._held[name]}
            if self._unwritten or nonce:
                write_copy(self._files, self._root, held, nonce)
            for name in sorted(self._unwritten):
                write_offsets(self._files, os.path.join(self._root, name), held[name])
            self._unwritten.clear()
            self._held = held

    def forget(self, topic: str, but: tuple[int, ...] = ()) -> None:
        """Drop the lines of a topic's partitions, those of `but` excepted: what is said of some that are gone
        must not be said of new ones. OSError.
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
    """One of the files, and what it says."""

    def __init__(self, all_of_them: RootCheckpoints, name: str) -> None:
        self._all, self._name = all_of_them, name

    def get(self, key: TopicPartitionKey) -> int | None:
        return self._all.lines(self._name).get(key)

    def update(self, changes: Changes) -> None:
        """Write the file with these changes, synced. OSError."""
        self._all.update({self._name: changes})


def settled(name: str, text: Mapping[TopicPartitionKey, int] | None, copy: Lines | None) -> Lines:
    """What counts, where the text of the file `name` and its copy say this; None where one says nothing."""
    if copy is None or text is None:
        return dict(copy or text or {})
    if name != names.LOG_STARTS:
        return copy
    return {key: min(at, text.get(key, at)) for key, at in copy.items()}


def differences(
    text: Mapping[TopicPartitionKey, int], counts: Mapping[TopicPartitionKey, int]
) -> Iterator[str]:
    """In words, what a text says and what counts instead."""
    for key in sorted(text.keys() | counts.keys()):
        says, taken = (str(held[key]) if key in held else "nothing" for held in (text, counts))
        if says != taken:
            where = names.partition_dir(*key)
            yield f"says {says} of {where}: its copy with a checksum has {taken}, which counts"


def read_log_start(files: Files, root: str, key: TopicPartitionKey, published: int | None) -> int:
    """Where a partition's log starts by what counts, for a reader that changes nothing; `published` is the
    number of the published ends. Nothing is less than 0: then only the text is read. OSError that may pass.
    """
    text, _ = try_offsets(files, os.path.join(root, names.LOG_STARTS))
    if text is not None and text.get(key) == 0:
        return 0
    copy, _ = read_copy(files, root)
    if copy is None or not copy.holds(read_marker(files, root), published):
        return settled(names.LOG_STARTS, text, None).get(key, 0)
    return settled(names.LOG_STARTS, text, copy.offsets[names.LOG_STARTS]).get(key, 0)
