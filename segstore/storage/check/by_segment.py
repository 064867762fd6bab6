"""Checks the segments of a store one by one, so that other processes and other machines can check them.

Files on disk are only read. Threads: any; values and functions without state. `parts` lists the segments,
`check_part` checks one segment, and `check_rest` does all other checks of a store. `check_rest` checks a
segment again if the segment has changed after `parts` was called.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from segstore import names
from segstore.errors import SegstoreError, StoreClosedError, UnknownTopicOrPartitionError
from segstore.files import Files
from segstore.storage.check.check import check_with, is_at_rest, read_checkpoints
from segstore.storage.check.partition import PartitionCheck
from segstore.storage.check.segment import SegmentCheck
from segstore.storage.finding import Finding
from segstore.storage.handle_pool import HandlePool
from segstore.storage.meta.offset_checkpoints import LeaderEpochs
from segstore.storage.segment.segment import Segment
from segstore.storage.store import store as store_module

_HANDLES = 16


class SegmentToCheck(NamedTuple):
    """A segment to check, with the fields of a `SegmentCheck`."""

    directory: str
    base_offset: int
    size: int
    sealed: bool
    interval: int
    end: int
    below: int
    active: bool
    at_rest: bool
    gaps_end: int

    @classmethod
    def of(cls, one: SegmentCheck) -> SegmentToCheck:
        segment = one.segment
        place = segment.directory, segment.base_offset, segment.size, segment.sealed, segment.interval
        return cls(*place, one.end, one.below, one.active, one.at_rest, one.gaps_end)


class Checked(NamedTuple):
    """The result of a segment's check, with the fields of a `SegmentCheck`."""

    part: SegmentToCheck
    findings: tuple[Finding, ...]
    next_offset: int
    damaged: bool
    gapped: bool
    of_producers: bool
    ends_in_damage: bool

    def yield_findings(self, one: SegmentCheck) -> Iterator[Finding]:
        """Do the work of `one.run` with these results, without a check: set the attributes of `one`, and
        yield the findings.
        """
        one.next_offset, one.damaged, one.gapped = self.next_offset, self.damaged, self.gapped
        one.of_producers, one.ends_in_damage = self.of_producers, self.ends_in_damage
        yield from self.findings


def parts(path: str | os.PathLike[str]) -> list[SegmentToCheck]:
    """Return every segment of a store. Partitions that can't be read are left out; `check_rest` reports them.
    Raises StorageError if there is no store.
    """
    found: list[SegmentToCheck] = []
    with store_module.open(path, mode="r") as store:
        files, root, side = store.context.files, store.path, cast(Any, store.engine)
        at_rest = is_at_rest(files, root)[0]
        cleaned = read_checkpoints(files, root)[0][names.CLEANER_OFFSETS]
        for info in store.topics().values():
            for partition in info.partition_ids:
                with contextlib.suppress(SegstoreError, OSError):
                    follower = side.partition(info.name, partition)
                    offset = cleaned.get((info.name, partition))
                    one = PartitionCheck(files, follower, info, partition, at_rest, offset, 0)
                    found += [] if one.being_made else map(SegmentToCheck.of, one.segments())
    return found


def check_part(part: SegmentToCheck, files: Files | None = None) -> Checked | None:
    """Check a segment, and return the result; None if the segment was removed."""
    files = files or Files()
    segment = Segment(
        HandlePool(files, _HANDLES),
        part.directory,
        part.base_offset,
        part.size,
        writable=False,
        sealed=part.sealed,
        interval=part.interval,
    )
    epochs = None
    with contextlib.suppress(SegstoreError, OSError):  # the partition's check reports the error
        epochs = LeaderEpochs.load(files, os.path.join(part.directory, names.LEADER_EPOCHS))
    one = SegmentCheck(segment, part.end, part.below, epochs, part.active, part.at_rest, part.gaps_end)
    try:
        findings = tuple(one.run())
    except (FileNotFoundError, StoreClosedError, UnknownTopicOrPartitionError):
        return None
    return Checked(
        part, findings, one.next_offset, one.damaged, one.gapped, one.of_producers, one.ends_in_damage
    )


def check_rest(
    path: str | os.PathLike[str],
    checked: Mapping[SegmentToCheck, Checked],
    progress: Callable[[int], None] | None = None,
) -> list[Finding]:
    """Return the findings that `check` would return. A segment with a result in `checked` is read again only
    if the segment has changed, or if the store is in use and the result has findings.
    """

    def look(one: SegmentCheck) -> Iterator[Finding]:
        known = checked.get(SegmentToCheck.of(one))
        # In a store in use a finding may come from a concurrent change, so the segment is checked again.
        fits = known is not None and (one.at_rest or not known.findings)
        return known.yield_findings(one) if known is not None and fits else one.run()

    return check_with(path, look, progress)
