"""The log cleaner (Kafka: org.apache.kafka.storage.internals.log.LogCleaner): the latest value of every key.

On disk: see `swapping` for the files and the order of steps. Threads: one cleaning of a partition at a time.
Read `cleaning` first; `dirty` chooses, `mapping` and `offset_map` find the latest offsets, `policy` and
`transactions` tell what else stays, `rewriting` and `output` write, `swapping` puts in place.
"""

from __future__ import annotations

from segstore.storage.cleaner.cleanable import Dirty, cleanable, dirtiness
from segstore.storage.cleaner.cleaner import CleanResult, clean
from segstore.storage.cleaner.throttle import CleaningStopped, Throttle

__all__ = ["CleanResult", "CleaningStopped", "Dirty", "Throttle", "clean", "cleanable", "dirtiness"]
