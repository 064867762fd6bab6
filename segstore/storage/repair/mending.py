"""Makes indexes and producer snapshots anew that `check` found wrong.

On disk: `.index`, `.timeindex`, `.txnindex` and `.snapshot` files, each replaced in one step.
Threads: one, with the store's lock held and the store not open.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from segstore import names
from segstore.config import TopicConfig
from segstore.files import Files
from segstore.storage.check.finding import Finding
from segstore.storage.check.repaired import Repaired
from segstore.storage.handle_pool import HandlePool
from segstore.storage.log.open import load_segments
from segstore.storage.meta.topics import TopicFiles
from segstore.storage.repair.producer_files import ProducerFiles
from segstore.storage.segment.index_files import rebuild
from segstore.storage.segment.segment_files import list_segments

_OF_BATCHES = (names.INDEX, names.TIME_INDEX)
_OF_PRODUCERS = (names.TXN_INDEX, names.SNAPSHOT)


class _Wrong(NamedTuple):
    """A finding that is of one file of a segment."""

    finding: Finding
    base: int
    suffix: str


def mend(files: Files, root: str, found: list[Finding]) -> Iterator[Repaired]:
    """What can be made anew of what was found: what was done. OSError."""
    topics = TopicFiles(files, root)
    pool = HandlePool(files, 8)
    for info in topics.load()[0].values():
        for number in info.partition_ids:
            directory = topics.partition_path(info.name, number)
            wrong = [w for finding in found if (w := _of_file(finding, directory)) is not None]
            if wrong:
                yield from _mend_partition(pool, directory, info.settings, wrong)


def _of_file(finding: Finding, directory: str) -> _Wrong | None:
    where, name = os.path.split(finding.path)
    parsed = names.parse_segment_file(name) if where == directory else None
    if parsed is None or parsed[1] not in _OF_BATCHES + _OF_PRODUCERS:
        return None
    return _Wrong(finding, *parsed)


def _mend_partition(
    pool: HandlePool, directory: str, config: TopicConfig, wrong: list[_Wrong]
) -> Iterator[Repaired]:
    segments = load_segments(pool, directory, list_segments(pool.files, directory), config, writable=True)
    for segment in segments:
        of_it = [w for w in wrong if w.base == segment.base_offset and w.suffix in _OF_BATCHES]
        if of_it:
            rebuild(segment)
            yield from (Repaired.of(w.finding, "made anew from the log") for w in of_it)
    of_producers = [w for w in wrong if w.suffix in _OF_PRODUCERS]
    if of_producers:
        done = ProducerFiles(pool.files, directory, segments).make_anew(
            {(w.base, w.suffix) for w in of_producers}
        )
        for w in of_producers:
            if (w.base, w.suffix) in done:
                yield Repaired.of(w.finding, done[w.base, w.suffix])
    pool.files.sync_dir(directory)
