"""Records of an internal topic that can't be used: what loading and `segstore check` say of them.

Threads: any; values are immutable, the functions have no state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from segstore.logger import Logger
from segstore.storage.store.partition_log import PartitionLog

log = Logger("segstore")

NEWEST_VERSION = 99
"""Kafka's versions grow by one: a record whose version is larger than this, or negative, is junk."""


class Unreadable(NamedTuple):
    """`newer`: the record has a version that is not known here, and its group or transactional id can't be
    used; otherwise it is not a record of the topic, and is skipped.
    """

    offset: int
    reason: str
    newer: bool = False


def warn(source: PartitionLog, what: str, found: Iterable[Unreadable]) -> None:
    """Log one warning for all records of a partition that are not records of `what`."""
    junk = sorted(each for each in found if not each.newer)
    if junk:
        name, n = f"{source.topic}-{source.partition}", len(junk)
        how_many = "1 record is" if n == 1 else f"{n:,} records are"
        log.warning(
            "%s: %s not readable as %s and passed over; the first is at offset %d: %s",
            *(name, how_many, what, junk[0].offset, junk[0].reason),
        )
