"""Words that calls and commands accept as arguments. Nothing is on disk. Threads: any; immutable.

They have a module of their own because the help of a command shows them without importing the engine.
"""

from __future__ import annotations

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""Names of the compression codecs; the index is the code in attribute bits 0-2."""

ISOLATION_LEVELS = ("read_uncommitted", "read_committed")

ON_BAD = ("error", "null", "column")
"""Treatments of a value that can't be decoded."""

ASYNC, SYNC = "async", "sync"
"""The times at which a primary acknowledges an append: after its own write, or after its standby's write too.
"""

DEAD, REACHABLE = "dead", "reachable"
"""Words for the state of the primary, given with the promotion of a standby."""

KEEP, REPLACE, DELETE, CUT = "keep", "replace", "delete", "cut"
"""Words that say what to do with the copy of a topic that the source has deleted, and perhaps created again
(KEEP, REPLACE or DELETE it), and with open transactions at the end of a mirror (CUT or KEEP them).
"""

MIRRORED = ("uncommitted", "committed")
"""Words for the records of its source that a mirror copies."""

DEFAULT = "<default>"
"""Stands for all users or client ids without a quota of their own (Kafka: ConfigEntityName.Default)."""

HOST, PORT = "127.0.0.1", 9092
"""The default address of a server."""
