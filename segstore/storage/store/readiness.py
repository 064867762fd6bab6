"""Finds the reasons why an open store can't do all of its work. No file is read. Threads: any."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from segstore.storage.context import StoreContext
from segstore.storage.log.partition import Partition

_MOST_NAMED = 10


def unready(context: StoreContext, opened: Iterable[Partition]) -> list[str]:
    """Return a line, for an operator, for each of these that is true: the disk is full; the store refuses
    changes because it was demoted or has no lease; a sync has failed (with the directories of the logs).
    `opened` are the open partitions.
    """
    note = context.full.note
    full = [] if note is None else [f"{note.path}: {note.error}: appends fail until there is room"]
    demoted = [context.demoted] if context.demoted else []
    failed = sorted(str(each.directory) for each in opened if each.flusher.failed)
    return [*full, *demoted, *named("a sync has failed, so no append is taken before a new open", failed)]


def named(what: str, found: Sequence[str]) -> list[str]:
    """Return one line: `what`, then the first names of `found`. Return an empty list if `found` is empty."""
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return [f"{what}: {', '.join(found[:_MOST_NAMED])}{more}"] if found else []
