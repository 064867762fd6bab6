"""What a killed streaming query left in the store: its last micro-batch, by checkpoint and log.

On disk: reads only. Threads: one.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from segstore.cli.options import open_reading
from segstore.files import Files
from segstore.filetree import File, files_log, read_file, snapshot
from segstore.storage.inbox.adopted_ids import read_adoption
from segstore.storage.inbox.layout import Folder

CHECKPOINTS = "checkpoints"


class LastBatch(NamedTuple):
    """The last micro-batch that was planned, the last that was committed (-1: none), and how many rows of the
    former are in the log: None where it was not adopted.
    """

    planned: int
    committed: int
    rows: int | None

    def __str__(self) -> str:
        if self.planned == self.committed:
            return f"micro-batch {self.planned} is committed, the next not planned"
        held = "none of its rows are" if self.rows is None else f"its {self.rows:,} rows are"
        return f"micro-batch {self.planned} is not committed; {held} in the log"


def last_batch(path: str, query: str) -> LastBatch:
    """Of the query with that directory among the checkpoints. StorageError, InvalidRecordError."""
    with open_reading(path) as store:
        log = files_log(store, CHECKPOINTS)
        nodes = snapshot(log).nodes
        planned, committed = (
            max((int(name) for name in nodes.names(f"/{query}/{kind}") if name.isdecimal()), default=-1)
            for kind in ("offsets", "commits")
        )
        node = nodes.get(f"/{query}/metadata")
        text = b"".join(read_file(log, query, node)) if isinstance(node, File) else b"{}"
    # How the sink names what it seals: see docs/spark.md.
    sealed = f"spark-stream/{json.loads(text).get('id')}/{planned}"
    files = Files()
    adoption = read_adoption(files, Folder(files, path).adopted, sealed)
    rows = None if adoption is None else sum(end - first for first, end in adoption.offsets.values())
    return LastBatch(planned, committed, rows)
