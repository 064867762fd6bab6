"""Words among which calls and commands choose. Nothing is on disk. Threads: any; immutable.

They stand apart from what they choose among: the help of a command shows them, and brings no engine.
"""

from __future__ import annotations

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""Names of the compression codecs; the index is the code in attribute bits 0-2."""

ISOLATION_LEVELS = ("read_uncommitted", "read_committed")

ON_BAD = ("error", "null", "column")
"""What becomes of a value that can't be decoded."""

ASYNC, SYNC = "async", "sync"
"""When a primary acknowledges: once it has the record itself, or once its standby has it too."""

DEAD, REACHABLE = "dead", "reachable"
"""What a standby that is promoted is told of its primary."""

KEEP, REPLACE, DELETE, CUT = "keep", "replace", "delete", "cut"
"""What becomes of the copy of a topic that its source has deleted, and perhaps created anew: KEEP, REPLACE or
DELETE; of the transactions that are open when a mirror ends: CUT or KEEP.
"""

MIRRORED = ("uncommitted", "committed")
"""Which records of its source a mirror copies."""

DEFAULT = "<default>"
"""In place of a user or client id: all that have no rate of their own (Kafka: ConfigEntityName.Default)."""

HOST, PORT = "127.0.0.1", 9092
"""Where a server listens unless it is told."""
