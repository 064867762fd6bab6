"""The display of the demo's replicated part: a table of leaders, in-sync replicas and lags, and the latest
events. Threads: one.
"""

from __future__ import annotations

from typing import NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

import segstore
from segstore.cli.output import NOTED, add_row, table
from segstore.demo.screen import INDENT

EVENTS = 9
"""The number of latest events that are shown."""


class Board(NamedTuple):
    """The values to display: the state of each partition, the high watermark of each partition (-1 if unknown
    at this moment), the number of acknowledged records, and the events.
    """

    states: list[segstore.PartitionState]
    watermarks: list[int]
    acknowledged: int
    events: list[str]


def board(state: Board) -> Group:
    """Return the display of `state`, for a terminal."""
    lines = [*state.events[-EVENTS:], *[""] * EVENTS][:EVENTS]
    events = [Text(INDENT + line, style="dim", no_wrap=True, overflow="ellipsis") for line in lines]
    head = Text(f"{INDENT}{state.acknowledged:,} records acknowledged", style="bold")
    return Group(head, _table(state), *events)


def _table(state: Board) -> Table:
    ids = sorted({replica for each in state.states for replica in each.replicas})
    lags = tuple(f"disk {replica}" for replica in ids)
    right = ("partition", "leader", "epoch", "high watermark", *lags)
    made = table("partition", "leader", "epoch", "in sync", "high watermark", *lags, right=right)
    for number, (each, shown) in enumerate(zip(state.states, state.watermarks, strict=True)):
        leader = "none" if each.leader < 0 else each.leader
        in_sync = ",".join(map(str, each.isr))
        style = None if len(each.isr) == len(each.replicas) else NOTED if each.leader >= 0 else "red"
        watermark = f"{shown:,}" if shown >= 0 else ""
        replicas = (_replica(each, replica) for replica in ids)
        add_row(made, number, leader, each.leader_epoch, in_sync, watermark, *replicas, style=style)
    return made


def _replica(state: segstore.PartitionState, replica: int) -> str:
    """Return "offline", "leads", or the lag of a replica; "?" if its lag is unknown."""
    if replica in state.offline:
        return "offline"
    if replica == state.leader:
        return "leads"
    lag = next((each.lag for each in state.replica_states if each.id == replica), -1)
    return "?" if lag < 0 else f"-{lag:,}" if lag else "0"
