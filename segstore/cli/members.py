"""`segstore members`: shows the processes that share a store. On disk: the store is only read. Threads:
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from segstore.cli.options import json_option, store_option
from segstore.cli.output import add_row, console, print_json, styled, table, time_text

if TYPE_CHECKING:
    from segstore.storage.meta.topic_info import TopicInfo
    from segstore.storage.shared.shared_file import SharedFile

_STATES = {"T": "stopped", "t": "stopped", "Z": "zombie", "X": "zombie"}
"""The names of process states, by the letter in /proc/PID/stat. A process with any other letter counts as
running.
"""


@click.command()
@store_option
@json_option
def members(path: str, as_json: bool) -> None:
    """Show the processes that share the store: which is the host, which are stopped, and which hold the lock
    of a log.

    A pid is shown as in the pid namespace of its process; if this command can't see such a process, the state
    is "unknown". A lock is held for some microseconds by an append, or for the time of a sync. If a lock is
    held longer, the process that holds it is stopped.
    """
    from segstore.cli.places.of_store import open_reading
    from segstore.files import Files
    from segstore.storage.shared.shared_file import SharedFile

    with open_reading(path) as store:
        writer, topics = store.host_pid, store.topics()
    shared = SharedFile.view(Files(), path)
    rows = [] if shared is None else _rows(path, shared, topics.values())
    if as_json:
        for row in rows:
            print_json(row)
    elif rows:
        _print(rows)
    else:
        who = f"process {writer} has it open for writing" if writer else "no process has it open for writing"
        click.echo(f"{path} is not shared; {who}", err=True)


def _rows(path: str, shared: SharedFile, topics: Iterable[TopicInfo]) -> list[dict[str, Any]]:
    """Return a row for each living process that shares the store, in the order of the slots in the shared
    file.
    """
    from segstore.files import Files
    from segstore.storage.meta.published_ends import slot_key
    from segstore.storage.shared.held_locks import held_locks
    from segstore.storage.shared.members import living
    from segstore.storage.store.store_member import store_members

    keys = {
        slot_key(info.topic_id, info.name, number): f"{info.name}-{number}"
        for info in topics
        for number in info.partition_ids
    }
    locks: dict[tuple[int, int], list[str]] = {}
    for held in held_locks(shared):
        name = keys.get(held.key, "a deleted partition")
        locks.setdefault((held.slot, held.incarnation), []).append(f"{name} ({held.kind})")
    return [
        {
            **each._asdict(),
            "state": state_of(each.pid),
            "locks": locks.get((each.slot, int(shared.member(each.slot).incarnation)), []),
        }
        for each in store_members(living(Files(), path))
    ]


def state_of(pid: int) -> str:
    """Return "running", "stopped", "zombie", or "unknown" if /proc has no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            letter = file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "unknown"
    return _STATES.get(letter, "running")


def _print(rows: Sequence[dict[str, Any]]) -> None:
    made = table("slot", "pid", "role", "version", "since", "state", "locks", right=("slot", "pid"))
    for row in rows:
        state = styled(row["state"], "" if row["state"] == "running" else "red")
        since = time_text(row["since_ms"])
        cells = (str(row["slot"]), str(row["pid"]), row["role"], row["version"], since, state)
        add_row(made, *cells, ", ".join(row["locks"]))
    console().print(made)
