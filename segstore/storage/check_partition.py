"""Checks one partition: its segments, and what lies between them. On disk: reads only. Threads: any."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from segstore import names
from segstore.errors import SegstoreError
from segstore.files import Files
from segstore.storage.check_segment import SegmentCheck
from segstore.storage.checkpoint import LeaderEpochs
from segstore.storage.finding import Finding
from segstore.storage.follower import Follower
from segstore.storage.loader import scan_directory
from segstore.storage.producer_state import ProducerState
from segstore.storage.producers import snapshots
from segstore.storage.topics import TopicInfo
from segstore.storage.view import LogView

HALF_DONE = (names.CLEANED, names.SWAP, names.DELETED)


def check_partition(
    files: Files,
    follower: Follower,
    view: LogView,
    info: TopicInfo,
    at_rest: bool,
    progress: Callable[[int], None],
) -> Iterator[Finding]:
    """Findings of one partition, up to the visible end."""
    directory = follower.directory
    epochs, findings = _epochs(files, directory)
    yield from findings
    yield from _check_snapshots(files, directory, view)
    if at_rest:
        yield from _check_files(files, directory)
    expected = view.bases[0]
    for slot, segment in enumerate(view.segments):
        last = slot == len(view.segments) - 1
        below = view.end_offset if last else view.bases[slot + 1]
        one = SegmentCheck(segment, view.end_of(slot), below, epochs, last, at_rest)
        yield from one.run()
        expected = max(expected, one.next_offset)
        progress(view.end_of(slot))
    if at_rest and expected > view.end_offset:
        yield Finding(
            directory, None, expected, f"the log ends at {expected}, but {view.end_offset} is published"
        )
    if view.start_offset > view.end_offset:
        yield Finding(directory, None, view.start_offset, f"log start offset above the end {view.end_offset}")


def _epochs(files: Files, directory: str) -> tuple[LeaderEpochs | None, list[Finding]]:
    path = os.path.join(directory, names.LEADER_EPOCHS)
    try:
        return LeaderEpochs.load(files, path), []
    except (SegstoreError, OSError) as error:
        return None, [Finding(path, None, None, str(error))]


def _check_snapshots(files: Files, directory: str, view: LogView) -> Iterator[Finding]:
    for offset in snapshots(files, directory):
        path = os.path.join(directory, names.segment_file(offset, names.SNAPSHOT))
        try:
            ProducerState.load(files.read_file(path), offset, path)
        except FileNotFoundError:
            continue
        except (SegstoreError, OSError) as error:
            yield Finding(path, None, offset, str(error))


def _check_files(files: Files, directory: str) -> Iterator[Finding]:
    for base, suffixes in scan_directory(files, directory).items():
        for suffix in sorted(suffixes):
            path = os.path.join(directory, names.segment_file(base, suffix))
            if suffix.endswith(HALF_DONE):
                yield Finding(path, None, base, "left by a crash: an open for writing finishes or undoes it")
            elif suffix in (names.INDEX, names.TIME_INDEX, names.TXN_INDEX) and names.LOG not in suffixes:
                yield Finding(path, None, base, "an index without its log")
