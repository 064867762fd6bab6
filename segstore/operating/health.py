"""Whether a server is alive, and whether it serves: the reasons why not, each a line.

Nothing is on disk, and nothing is asked of a disk: all is known in memory. Threads: any.
"""

from __future__ import annotations

from segstore.operating.operated import Operated, Reasons
from segstore.storage.context import Context
from segstore.storage.store.store import Store
from segstore.storage.store.writer import StoreWriter

MOST_SECONDS = 10.0
"""Seconds within which a loop that is alive has turned."""
_MOST_NAMED = 10


def unhealthy(operated: Operated) -> Reasons:
    """Return why it should be started again; none while it is alive."""
    age = max((beat.age for beat in operated.heartbeats), default=0.0)
    late = [f"the server's loop has not turned for {age:.0f} s"] if age > MOST_SECONDS else []
    return [*late, *operated.unhealthy()]


def unready(operated: Operated) -> Reasons:
    """Return why no requests are served; none while they are."""
    return [*unhealthy(operated), *operated.unready()]


def store_unready(store: Store) -> Reasons:
    """Return why an open store does not serve: it is closed, its disk is full, it is fenced or does not lead,
    or logs of it have failed.
    """
    context = store._context
    if context.closed:
        return [f"{context.root} is closed"]
    return [*_full(context), *([context.demoted] if context.demoted else []), *_failed(store)]


def _full(context: Context) -> Reasons:
    note = context.full.note
    return [] if note is None else [f"{note.path}: {note.error}: appends fail until there is room"]


def _failed(store: Store) -> Reasons:
    if not isinstance(store._side, StoreWriter):
        return []
    opened = store._side.partitions.all_open()
    return named("a sync failed, and the log is fenced", [p.directory for p in opened if p.flusher.failed])


def named(what: str, found: list[str]) -> Reasons:
    """Return one line for all that were found; none if nothing was."""
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return [f"{what}: {', '.join(found[:_MOST_NAMED])}{more}"] if found else []
