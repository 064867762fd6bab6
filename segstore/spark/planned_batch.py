"""Identifies a micro-batch by Spark's plan for it: `id_of` returns the id under which its rows are appended,
and `source_offsets` returns the offsets at which the plan ends.

Before a micro-batch runs, Spark writes its plan into the checkpoint, as the file `offsets/<batch>`. If the
micro-batch runs again, Spark reads this plan. The rows of the second run may have another order, and may even
differ, but the plan's offsets are the same. If a query continues from an older copy of its checkpoint, Spark
may make another plan, with other offsets, for the same number of a micro-batch.

On disk: only reads the ids of appended rows, and a local checkpoint; a checkpoint of
`segstore.spark.checkpoints` is read by HTTP. Threads: any; functions without state.
"""

from __future__ import annotations

import hashlib
import logging
import re
from http.client import HTTPConnection, HTTPException
from posixpath import normpath
from urllib.parse import quote

from segstore.errors import IdempotencyConflictError
from segstore.files import Files
from segstore.storage.inbox.adopted_ids import read_adoption, read_newest

log = logging.getLogger("segstore.spark")

_LOCATION = re.compile(r"([a-z][a-z0-9+.-]*):(?://([^/]*))?(/.*)")
_BEFORE = (
    2  # Two lines precede the offsets: the version, and a line that differs in each plan (time, settings).
)
_MOST_TEXT = 400
_MOST_BYTES = 1 << 26
_PATIENCE = 10.0

REMEDY = (
    "A stream's checkpoint that does this is an older copy, or has lost its last plan: put the newest one in "
    "place, or start a query with a new checkpointLocation, at the offsets of the source up to which the log "
    "has rows. Of a batch, jobId stands for other rows: give these another one. With option "
    "failOnDataLoss=false the rows that come now are dropped"
)
"""The advice in the message of an IdempotencyConflictError."""


def id_of(files: Files, adopted: str, query: str, batch: int) -> str:
    """Return the id under which a micro-batch's rows are appended. `adopted` is the store's directory that
    has the ids of appended rows. Raises OSError, and IdempotencyConflictError if rows of a later micro-batch
    are in the log, but no rows of this micro-batch. This can't happen with an intact checkpoint, because
    Spark plans a micro-batch only after the commit of the micro-batch before.
    """
    series = f"spark-stream/{query}"
    id_, newest = f"{series}/{batch}", read_newest(files, adopted, series)
    if newest is not None and _number(newest.id) > batch and read_adoption(files, adopted, id_) is None:
        raise IdempotencyConflictError(
            f"{newest}; rows of micro-batch {batch} come now, of which none was in the log before"
        )
    return id_


def _number(id_: str) -> int:
    last = id_.rpartition("/")[2]
    return int(last) if last.isdecimal() else -1


def source_offsets(checkpoint: str | None, batch: int) -> str:
    """Return, as text, the offsets at which a micro-batch ends in its sources; if that text is long, return
    text with its digest. Return "" if the checkpoint is not known, or if this process can't read it.
    """
    try:
        text = _read(checkpoint or "", f"offsets/{batch}").decode()
    except (OSError, HTTPException, ValueError) as error:
        log.debug("the plan of micro-batch %d can't be read: %s", batch, error)
        return ""
    found = ", ".join(text.splitlines()[_BEFORE:])
    if len(found) <= _MOST_TEXT and found.isprintable():
        return f"offsets up to {found}"
    return f"offsets with the digest {hashlib.blake2b(found.encode(), digest_size=16).hexdigest()}"


def _read(checkpoint: str, name: str) -> bytes:
    """Return the content of the file `name` of a checkpoint. Raises OSError, HTTPException, ValueError."""
    location = _LOCATION.fullmatch(checkpoint)
    scheme, host, path = location.groups() if location else ("file", "", checkpoint)
    # Hadoop removes "a/.." from a path as text, even if "a" is a symbolic link or does not exist.
    path = normpath(path) if path else ""
    if scheme in ("segstore", "webhdfs"):
        return _fetched(host or "", f"/webhdfs/v1{quote(path)}/{name}?op=OPEN")
    if scheme != "file" or host or not path:
        raise ValueError(f"checkpoint {checkpoint!r}: its file system is not read here")
    return Files().read_file(f"{path}/{name}", _MOST_BYTES)


def _fetched(host: str, target: str) -> bytes:
    connection = HTTPConnection(host, timeout=_PATIENCE)
    try:
        connection.request("GET", target)
        answer = connection.getresponse()
        if answer.status != 200:
            raise ValueError(f"{host} answers {answer.status}")
        return answer.read(_MOST_BYTES)
    finally:
        connection.close()
