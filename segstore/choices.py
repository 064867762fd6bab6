"""Words that calls and commands accept as arguments. Nothing is on disk. Threads: any; immutable.

This module imports nothing, so that the help of a command can list the words without importing the engine.
"""

from __future__ import annotations

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""The names of the compression codecs. The index of a name is the codec's number in attribute bits 0-2."""

ISOLATION_LEVELS = ("read_uncommitted", "read_committed")

ON_BAD = ("error", "null", "column")
"""What a table does with a value that can't be decoded."""

ASYNC, SYNC = "async", "sync"
"""When a primary acknowledges an append: ASYNC after its own write, SYNC after its standby's write too."""

DEAD, REACHABLE = "dead", "reachable"
"""The argument `old` of a standby's promotion: the old primary is dead, or can be reached."""

KEEP, REPLACE, DELETE, CUT = "keep", "replace", "delete", "cut"
"""What a mirror does with its copy of a topic that the source has deleted (KEEP, REPLACE or DELETE), and with
transactions that are open when the mirror ends (CUT or KEEP).
"""

MIRRORED = ("uncommitted", "committed")
"""The isolation levels of a mirror's reads, without the prefix "read_"."""

DEFAULT = "<default>"
"""The name for all users, or all client ids, that have no quota of their own (Kafka:
ConfigEntityName.Default).
"""

HOST, PORT = "127.0.0.1", 9092
"""The address at which a server listens by default."""
