"""Spark's plan of a micro-batch: `id_of` returns the id of the micro-batch in the log, `source_offsets` the
offsets at which the plan ends.

Before a micro-batch runs, Spark writes the plan into the checkpoint, as `offsets/<batch>`. If the micro-batch
must run again, Spark reads this plan. Rows of the second run may come in another order and even differ, but
the plan's offsets are the same. An older copy of a checkpoint may get another plan of the same number, with
other offsets.

On disk: only reads, of the ids of adopted rows and of a local checkpoint; a checkpoint of
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
    2  # lines: the version; then watermark, time and settings, which differ in a new plan of the same offsets
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
"""The advice after an IdempotencyConflictError."""


def id_of(files: Files, adopted: str, query: str, batch: int) -> str:
    """Return the id under which a micro-batch is sealed. `adopted` is the store's directory with the ids of
    adopted rows. Raises OSError; IdempotencyConflictError if a later micro-batch is in the log and this
    micro-batch is not. With an intact checkpoint this conflict can't happen, because Spark plans a
    micro-batch only after the micro-batch before it is committed.
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
    """Return the offsets at which a micro-batch ends in its sources, as text, or as a digest of a long text.
    Return "" if the checkpoint is unknown, or can't be read by this process.
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
    """Return a file of the checkpoint. Raises OSError, HTTPException, ValueError."""
    location = _LOCATION.fullmatch(checkpoint)
    scheme, host, path = location.groups() if location else ("file", "", checkpoint)
    # Hadoop drops "a/.." from the text, even if "a" is a link or does not exist.
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
