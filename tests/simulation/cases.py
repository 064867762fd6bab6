"""Runs that failed once, each cut down to what it needs: name to seed and steps. They go well for ever."""

from __future__ import annotations

from .world import Step

CASES: dict[str, tuple[object, list[Step]]] = {
    "a power cut takes a segment of a log that was compacted by its settings until then": (
        1,
        [
            ("create", "c", 3, 2),
            ("init", "y"),
            ("produce", "y", "c", 0, "r44", 6),
            ("batch", "c", 0, "r61", 5, True, "rising", None, 100),
            ("alter", "c", 7),
            ("cut", "names"),
        ],
    ),
    "a power cut leaves zeros in the index of aborted transactions": (
        23,
        [
            ("create", "b", 3, 7),
            ("create", "c", 3, 7),
            ("init", "y"),
            ("offsets", "y", "t", "b", 2, 31),
            ("end", "y", False),
            ("cut", "sectors"),
        ],
    ),
    "the disk is full when partitions are added": (
        18,
        [
            ("create", "b", 1, 0),
            ("create", "c", 1, 3),
            ("fault", "any", 22, "EDQUOT"),
            ("batch", "c", 0, "r41", 1, True, "mixed", None, 100),
            ("widen", "b", 1),
            ("close",),
        ],
    ),
    "compaction drops the entry of an abort whose records were deleted": (
        108,
        [
            ("create", "a", 1, 5),
            ("init", "y"),
            ("produce", "y", "a", 0, "r6", 3),
            ("jump", 3600000),
            ("init", "y"),
            ("stage", "r13", (("b", 1), ("a", 0)), 40),
            ("sweep",),
            ("alter", "a", 2),
            ("cut", "all"),
            ("sweep",),
        ],
    ),
    "a power cut takes the begin of a transaction whose records are durable": (
        431,
        [
            ("create", "b", 1, 6),
            ("create", "c", 2, 1),
            ("init", "y"),
            ("produce", "y", "b", 0, "r60", 5),
            ("produce", "y", "c", 0, "r75", 6),
            ("end", "y", True),
            ("produce", "y", "c", 0, "r82", 2),
            ("death", 18, "torn"),
            ("widen", "b", 1),
        ],
    ),
    "zeros below the recovery point, in the index of aborted transactions": (
        317,
        [
            ("create", "c", 2, 7),
            ("init", "y"),
            ("fault", "name", 21, "EIO"),
            ("offsets", "y", "t", "c", 0, 92),
            ("sweep",),
            ("close",),
            ("death", 22, "zeros"),
            ("commit_offset", "o", "c", 0, 28),
            ("tick", 61000),
        ],
    ),
    "a close's snapshot is empty after a power cut, and newer ones are not": (
        725,
        [
            ("create", "b", 1, 7),
            ("create", "c", 3, 2),
            ("cut", "pages"),
            ("stage", "r55", (("c", 0), ("a", 1)), 10),
            ("close",),
            ("tick", 400000),
            ("init", "y"),
            ("produce", "y", "b", 0, "r65", 2),
            ("end", "y", True),
            ("transform", "y", "u", "b", "c", "r70", True),
            ("tick", 1000),
            ("cut", "none"),
        ],
    ),
    "a deletion could not begin, and the next open went on with it": (
        578,
        [("create", "b", 2, 3), ("fault", "any", 6, "EIO"), ("delete", "b"), ("close",)],
    ),
    "a topic is made anew whose deletion failed midway": (
        853,
        [
            ("create", "b", 3, 6),
            ("create", "c", 1, 0),
            ("init", "x"),
            ("death", 10, "pages"),
            ("offsets", "x", "t", "c", 0, 58),
            ("fault", "name", 6, "EIO"),
            ("idempotent", "b", 0, "q", "r37", 5, ""),
            ("delete", "b"),
            ("create", "b", 3, 3),
        ],
    ),
    "a sync fails behind the markers of a commit: its records are shown, and so are its offsets": (
        "mutation 10",
        [
            ("create", "c", 3, 3),
            ("init", "x"),
            ("batch", "c", 0, "r26", 5, True, "mixed", None, 100),
            ("commit_offset", "o", "c", 2, 19),
            ("fault", "sync", 7, "ENOSPC"),
            ("transform", "x", "t", "c", "c", "r41", True),
            ("verify",),
        ],
    ),
    "a transactional id that could not be written is there at the close": (
        1278,
        [("fault", "any", 14, "ENOSPC"), ("init", "x"), ("close",)],
    ),
    "the sync of new settings fails, and the next open finds them": (
        1117,
        [
            ("create", "a", 3, 3),
            ("create", "b", 1, 4),
            ("init", "x"),
            ("init", "y"),
            ("produce", "y", "a", 0, "r55", 6),
            ("fault", "sync", 3, "EIO"),
            ("produce", "x", "a", 0, "r61", 3),
            ("death", 24, "zeros"),
            ("alter", "b", 1),
            ("tick", 61000),
        ],
    ),
}
