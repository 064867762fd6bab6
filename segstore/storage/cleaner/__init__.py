"""The log cleaner (org.apache.kafka.storage.internals.log.LogCleaner): it keeps the latest value of every
key.

Read `cleaner` first. `cleanable` chooses the part of a log to compact. `offset_map` has the latest offset of
every key. `retain` has the rules by which batches stay or go whatever the keys of their records.
`segment_reader` reads segments, `rewrite` writes new segments. `swap` puts the new segments in place, and
documents the files and the order of steps. `throttle` limits the cleaner's rate. `upgrade` rewrites messages
of magic 0 and 1 with the same modules. Threads: one cleaning of a partition at a time.
"""

from __future__ import annotations

from segstore.storage.cleaner.cleanable import Dirty, cleanable, dirtiness
from segstore.storage.cleaner.cleaner import CleanResult, clean
from segstore.storage.cleaner.throttle import CleaningStopped, Throttler
from segstore.storage.cleaner.upgrade import UpgradedSegment, upgrade

__all__ = [
    "CleanResult",
    "CleaningStopped",
    "Dirty",
    "Throttler",
    "UpgradedSegment",
    "clean",
    "cleanable",
    "dirtiness",
    "upgrade",
]
