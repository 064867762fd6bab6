"""Describes one directory of a pair of primary and standby. Another process may have the directory open.

On disk: only reads, and locks nothing. The lags of the partitions come from the lag file, which the
process that has the directory open writes. Threads: one.
"""

from __future__ import annotations

from typing import NamedTuple

from segstore import names
from segstore.choices import ASYNC, SYNC
from segstore.files import Files
from segstore.storage.context import os_errors, wall_clock
from segstore.storage.meta.fence import FENCE
from segstore.storage.meta.lag_note import FRESH_MS, LAG_NOTE, PRIMARY, LagNote, NotedLag
from segstore.storage.meta.promotion import PROMOTION, Promotion
from segstore.storage.meta.role import ROLE, STANDBY
from segstore.storage.meta.standby_registration import NOBODY, REGISTRATION
from segstore.storage.store.store import Store
from segstore.storage.store.store import open as open_store

BEHIND, UNKNOWN = "under-replicated", "unknown"


class SidePartition(NamedTuple):
    """A partition of a directory. `end_offset` is the partition's high watermark. `lag` is the standby's lag,
    or None if the lag is not known. `trouble` is UNKNOWN if the lag is not known, BEHIND if the standby has
    lagged for longer than replica.lag.time.max.ms, else "".
    """

    topic: str
    partition: int
    end_offset: int
    log_end_offset: int
    lag: NotedLag | None
    trouble: str


class Side(NamedTuple):
    """One directory of a pair. `role` is "primary" or "standby". `mode` is "async" or "sync"; it is "" for a
    primary without a standby. `source` is a standby's primary, as HOST:PORT, and `directory_id` is the
    standby's directory id. `fence` is the reason why a primary accepts no appends, or "" if it accepts
    appends. `promotion` is the promotion by which this directory became the primary, or None. `known` is a
    text with the age of the partitions' lags, and with the error because of which the standby does not fetch,
    if there is one.
    """

    role: str
    mode: str
    source: str
    directory_id: str
    fence: str
    promotion: Promotion | None
    known: str
    partitions: list[SidePartition]


def side_of(path: str, files: Files | None = None) -> Side | None:
    """Return the description of a directory, or None if the directory is neither a primary nor a standby.
    Raises CorruptCheckpointError, StorageError, and the errors of `segstore.open` with mode "r".
    """
    files = files or Files()
    with os_errors():
        if not files.exists(names.below(path, names.OURS)):
            return None
        role, fence = ROLE.read(files, path), FENCE.read(files, path)
        promotion = PROMOTION.read(files, path)
        registration = REGISTRATION.read(files, path) or NOBODY
        if role is not None and role.kind != STANDBY:
            return None
        if role is None and fence is None and promotion is None and not registration.is_there:
            return None
        why_fenced = "" if fence is None else fence.message(path)
        if role is not None:
            side = Side(STANDBY, role.mode, role.source, role.directory_id, "", None, "", [])
        else:
            mode = (SYNC if registration.sync else ASYNC) if registration.is_there else ""
            side = Side(PRIMARY, mode, "", registration.directory_id, why_fenced, promotion, "", [])
        note = _note_of(files, path, side)
        known = _known(files, path, note) if side.mode else ""
        with open_store(path, mode="r", files=files) as store:
            return side._replace(known=known, partitions=_partitions(store, note))


def _note_of(files: Files, path: str, side: Side) -> LagNote | None:
    """Return the content of the lag file, or None if there is no lag file, or the lag file was written in
    another role or for another standby.
    """
    note = LAG_NOTE.read(files, path)
    matches = note is not None and (note.side, note.directory_id) == (side.role, side.directory_id)
    return note if matches else None


def _known(files: Files, path: str, note: LagNote | None) -> str:
    is_open = files.is_locked(names.below(path, names.LOCK))
    if note is None:
        what = "The process that has it open has noted nothing yet" if is_open else "No process has it open"
        return f"{what}: how far the standby lies behind is not known from outside."
    age = max(wall_clock() - note.at_ms, 0) / 1000
    text = f"As noted {age:,.1f} s ago."
    if not is_open:
        text = f"No process has it open: this is what was noted last, {age:,.1f} s ago."
    elif age * 1000 > FRESH_MS:
        text = f"The process that has it open has noted nothing for {age:,.1f} s: this was noted last."
    return f"{text} It waits: {note.waits}." if note.waits else text


def _partitions(store: Store, note: LagNote | None) -> list[SidePartition]:
    lags = {} if note is None else {(lag.topic, lag.partition): lag for lag in note.partitions}
    longest = 0 if note is None else note.lag_time_max_ms
    found = []
    for name, info in sorted(store.topics().items()):
        for number in info.partition_ids:
            log, lag = store.partition(name, number), lags.get((name, number))
            trouble = UNKNOWN if lag is None else BEHIND if lag.records and lag.ms > longest else ""
            found.append(SidePartition(name, number, log.end_offset, log.log_end_offset, lag, trouble))
    return found
