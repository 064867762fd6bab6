"""Checks what is said of partitions outside of them: the root's checkpoints and the published ends. On disk:
reads only. Threads: any.

Checkpoints lag behind while a store is in use and after a crash; they must not be ahead. After a clean close
by segstore the ends say what they say, number for number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from segstore import names
from segstore.errors import SegstoreError
from segstore.files import Files
from segstore.storage.check_partition import PartitionCheck
from segstore.storage.checkpoint import read_offsets
from segstore.storage.ends import Ends, open_reader, slot_key
from segstore.storage.finding import Finding
from segstore.storage.shutdown import read_marker
from segstore.storage.small_files import reason

Said = dict[str, dict[tuple[str, int], int]]
CHECKPOINTS = (names.RECOVERY_POINTS, names.LOG_STARTS, names.HIGH_WATERMARKS, names.CLEANER_OFFSETS)


def read_checkpoints(files: Files, root: str) -> tuple[Said, list[Finding]]:
    """What the root's checkpoints say by file and partition; nothing of a file that can't be read."""
    said: Said = {}
    findings = []
    for name in CHECKPOINTS:
        path = os.path.join(root, name)
        try:
            said[name] = read_offsets(files, path)
        except (SegstoreError, OSError) as error:
            said[name] = {}
            findings.append(Finding(path, None, None, reason(error)))
    return said, findings


def check_published(files: Files, root: str, checked: list[PartitionCheck], said: Said) -> Iterator[Finding]:
    """Findings of a store at rest."""
    for one in checked:
        for name in CHECKPOINTS:
            offset = said[name].get(one.key, 0)
            if offset > one.end_offset:
                message = f"{one.name}: {offset} is not in the log, which ends at {one.end_offset}"
                yield Finding(os.path.join(root, name), None, offset, message)
    path = os.path.join(root, names.OURS, names.ENDS)
    try:
        ends, marker = open_reader(files, path), read_marker(files, root)
    except OSError as error:
        yield Finding(path, None, None, reason(error))
        return
    if ends is None and files.exists(path):
        yield Finding(path, None, None, "holds no published ends: made anew at the next open for writing")
    if ends is None or not marker or ends.nonce != marker:
        return
    keys = {slot_key(one.info.topic_id, *one.key) for one in checked}
    for stray in sorted(ends.keys() - keys):
        yield Finding(path, None, None, f"key {stray} is of no partition that could be checked")
    for one in checked:
        yield from _check_ends(path, one, ends.get(slot_key(one.info.topic_id, *one.key)), said)


def _check_ends(path: str, one: PartitionCheck, ends: Ends | None, said: Said) -> Iterator[Finding]:
    if ends is None:
        yield Finding(path, None, None, f"{one.name}: its ends are not published")
        return
    latest = None if one.epochs is None else one.epochs.latest
    expected = {
        "log start offset": (ends.start, said[names.LOG_STARTS].get(one.key, 0)),
        "log end offset": (ends.end, one.end_offset),
        "high watermark": (ends.high_watermark, one.end_offset),
        "last stable offset": (ends.stable, ends.stable if one.stable_offset is None else one.stable_offset),
        "recovery point": (ends.synced, said[names.RECOVERY_POINTS].get(one.key, 0)),
        "checkpointed high watermark": (ends.high_watermark, said[names.HIGH_WATERMARKS].get(one.key, 0)),
        "leader epoch": (ends.epoch, ends.epoch if latest is None else latest),
    }
    for what, (published, known) in expected.items():
        if published != known:
            yield Finding(path, None, published, f"{one.name}: {what} {published} is published, not {known}")
