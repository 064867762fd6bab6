"""The spaces that are searched, and how many states each has."""

from __future__ import annotations

from segstore.coordinator.share.core.values import AcquireMode, OffsetRange
from share_partitions.bounds import Bounds

STRICT = AcquireMode.RECORD_LIMIT
TINY, SMALL = Bounds((1, 1)), Bounds((2, 1))
ALL = Bounds(members=2)

SPACES: dict[str, tuple[Bounds, int]] = {
    "one member": (SMALL, 2_841),
    "two members": (SMALL._replace(members=2), 4_585),
    "late acknowledgements": (SMALL._replace(late=True), 7_951),
    "limit 3": (TINY._replace(deliveries=3, members=2), 782),
    "a record limit": (SMALL._replace(mode=STRICT, want=1), 3_368),
    "a failed write": (TINY._replace(failures=1, members=2), 2_235),
    "a crash": (TINY._replace(crashes=1), 2_974),
    "a failed write and a crash": (TINY._replace(failures=1, crashes=1, batches=(1,)), 523),
    "a crash, one batch": (Bounds((2,), crashes=1), 2_974),
    "dead letters": (TINY._replace(dead_letters=True, rejects=True), 888),
    "dead letters and a crash": (Bounds((1,), dead_letters=True, rejects=True, crashes=1, failures=1), 922),
    "dead letters and a failed write": (
        Bounds((1,), dead_letters=True, rejects=True, failures=1, members=2),
        140,
    ),
    "rejects": (Bounds((1,), rejects=True), 27),
    "late acknowledgements of two": (TINY._replace(late=True, members=2), 1_251),
    "two writes, late acknowledgements": (Bounds((1,), late=True, writes=2, failures=1), 242),
    "two writes": (TINY._replace(writes=2), 751),
    "the log's start moves": (SMALL._replace(moves=1), 6_851),
    "the log's start moves while a write fails": (TINY._replace(moves=1, failures=1), 3_686),
    "an answer is lost": (TINY._replace(lost=1, members=2), 770),
    "a session ends": (TINY._replace(sessions=1, failures=1), 2_740),
    "renewals": (TINY._replace(renewals=2, lock=2), 1_138),
    "a full window": (Bounds((1, 1, 1), window=2, want=3), 1_201),
    "a full window, the log's start moves": (Bounds((1, 1, 1), window=2, moves=1), 3_551),
    "beginning at the end": (Bounds((1, 1), 1, latest=True, crashes=1, failures=1), 681),
    "aborted transactions": (Bounds((1, 2, 1), aborted=(OffsetRange(1, 2),), crashes=1), 665),
    "4 offsets": (Bounds(), 25_683),
    "4 offsets in one batch, limit 3": (Bounds((4,), deliveries=3, want=4), 139_678),
    "4 offsets, two members, limit 3": (ALL._replace(deliveries=3), 368_865),
    "4 offsets, two members, record limit": (ALL._replace(mode=STRICT), 64_089),
    "3 offsets, a crash": (SMALL._replace(crashes=1), 66_276),
    "3 offsets, a crash, record limit": (Bounds((3,), crashes=1, mode=STRICT), 86_729),
    "a crash, a failed write, the log's start moves": (TINY._replace(failures=1, crashes=1, moves=1), 41_097),
    "a crash, a failed write, dead letters": (
        TINY._replace(failures=1, crashes=1, dead_letters=True, rejects=True),
        92_080,
    ),
    "a crash, a failed write, limit 3": (TINY._replace(failures=1, crashes=1, deliveries=3), 78_469),
    "an answer is lost, a failed write": (SMALL._replace(lost=1, failures=1), 72_407),
    "a session ends, a failed write, a crash": (TINY._replace(sessions=1, failures=1, crashes=1), 34_338),
    "renewals, a failed write": (SMALL._replace(renewals=1, failures=1, lock=2), 106_841),
    "beginning at the end, three batches": (
        Bounds((1, 1, 1), 1, latest=True, crashes=1, failures=1),
        38_734,
    ),
}
"""Name to the bounds, and the states that there are. A whole space of 4 offsets, two members, a failed write,
a crash and a move of the log's start has more than 10^7: these are its faces.
"""
