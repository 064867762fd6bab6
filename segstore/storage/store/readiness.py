"""Why an open store can't do all of its work, a line for each reason. Nothing is on disk, and no disk is
asked. Threads: any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from segstore.storage.context import StoreContext
from segstore.storage.log.partition import Partition

_MOST_NAMED = 10


def unready(context: StoreContext, opened: Iterable[Partition]) -> list[str]:
    """Return that the disk is full, that the store is fenced or does not lead, and which logs have failed;
    nothing while all is well. `opened` are the partitions that are open.
    """
    note = context.full.note
    full = [] if note is None else [f"{note.path}: {note.error}: appends fail until there is room"]
    demoted = [context.demoted] if context.demoted else []
    failed = sorted(str(each.directory) for each in opened if each.flusher.failed)
    return [*full, *demoted, *named("a sync has failed, so no append is taken before a new open", failed)]


def named(what: str, found: Sequence[str]) -> list[str]:
    """Return one line for all that were found, with the first names; nothing if none was."""
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return [f"{what}: {', '.join(found[:_MOST_NAMED])}{more}"] if found else []
