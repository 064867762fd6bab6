"""Records of an internal topic that can't be used: what is told of them, by loading and by `segstore check`.

On disk: nothing. Threads: any; values and functions without state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from segstore.logger import Logger
from segstore.storage.store.partition_log import PartitionLog

log = Logger("segstore")

NEWEST_VERSION = 99
"""Kafka's versions grow by one: a record that claims a larger one, or a negative one, is junk."""


class Unreadable(NamedTuple):
    """`newer`: it is of a version that is not known here, and keeps its group or transactional id from being
    used; else it is no record of the topic, and is passed over.
    """

    offset: int
    reason: str
    newer: bool = False


def warn(source: PartitionLog, what: str, found: Iterable[Unreadable]) -> None:
    """One warning for a partition's records that are no record of `what`."""
    junk = sorted(each for each in found if not each.newer)
    if junk:
        name, n = f"{source.topic}-{source.partition}", len(junk)
        how_many = "1 record is" if n == 1 else f"{n:,} records are"
        log.warning(
            "%s: %s not readable as %s and passed over; the first is at offset %d: %s",
            *(name, how_many, what, junk[0].offset, junk[0].reason),
        )
