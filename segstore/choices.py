"""Words that calls and commands accept as arguments. Nothing is on disk. Threads: any; immutable.

This module imports nothing, so that the help of a command can list the words without importing the engine.
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
"""Words for the state of the primary, which the promotion of a standby takes as an argument."""

KEEP, REPLACE, DELETE, CUT = "keep", "replace", "delete", "cut"
"""Words for the treatment of the copy of a topic that the source has deleted (KEEP, REPLACE, DELETE), and of
transactions that are open when a mirror ends (CUT, KEEP).
"""

MIRRORED = ("uncommitted", "committed")
"""The isolation levels of a mirror's reads, without the prefix "read_"."""

DEFAULT = "<default>"
"""Stands for all users or client ids without a quota of their own (Kafka: ConfigEntityName.Default)."""

HOST, PORT = "127.0.0.1", 9092
"""The default address of a server."""
