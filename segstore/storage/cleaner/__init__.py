"""The log cleaner (org.apache.kafka.storage.internals.log.LogCleaner): of every key the latest value stays.

Read `cleaner` first; `cleanable` chooses what to compact, `offset_map` has the latest offset of every key,
`retain` the rules for what else stays, `segment_reader` and `rewrite` read and write segments, `swap` puts
new ones in place: it has the files and the order of steps. `throttle` holds the rate. `upgrade` writes
messages of magic 0 and 1 anew by the same means. Threads: one cleaning of a partition at a time.
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
