"""Prints the output of `segstore replicas` for a primary or a standby: its role, the primary or standby on
the other side, and the standby's lag.

On disk: the directory is only read. Threads: one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from segstore.cli.output import NOTED, add_row, console, print_json, styled, table

if TYPE_CHECKING:
    from segstore.standby.pair import Side, SidePartition


def fields(side: Side, each: SidePartition) -> dict[str, Any]:
    """Return the fields of one partition's JSON object. A lag that is unknown is None."""
    lag = each.lag
    return {
        "topic": each.topic,
        "partition": each.partition,
        "role": side.role,
        "mode": side.mode or None,
        "end_offset": each.end_offset,
        "log_end_offset": each.log_end_offset,
        "lag": None if lag is None else lag.records,
        "lag_bytes": None if lag is None or lag.bytes < 0 else lag.bytes,
        "lag_ms": None if lag is None else lag.ms,
        "trouble": each.trouble,
    }


def print_side(path: str, side: Side, chosen: Sequence[SidePartition], *, as_json: bool) -> None:
    """Print the state of the directory of a primary or standby, and the states of the partitions `chosen`."""
    if as_json:
        for each in chosen:
            print_json(fields(side, each))
        if side.known:
            click.echo(side.known, err=True)
        return
    for sentence in sentences(path, side):
        click.echo(sentence)
    if chosen:
        _print_partitions(chosen)


def sentences(path: str, side: Side) -> list[str]:
    """Return sentences about the directory: its role, the primary or standby on the other side, and its
    promotion, if there was one.
    """
    from segstore.storage.meta.role import STANDBY

    if side.role == STANDBY:
        lines = [f"{path} is the standby of {side.source}, in {side.mode} mode."]
    elif side.mode:
        lines = [f"{path} is the primary of standby {side.directory_id}, in {side.mode} mode."]
    else:
        lines = [f"{path} has no standby now."]
    if (held := side.promotion) is not None:
        knows = "knows" if held.told else "has not been told"
        lines.append(
            f"It was promoted, and leads from leader epoch {held.leader_epoch} on; the old primary at"
            f" {held.source} {knows} that."
        )
    return [*lines, *([f"{side.fence}."] if side.fence else []), *([side.known] if side.known else [])]


def _print_partitions(chosen: Sequence[SidePartition]) -> None:
    right = ("partition", "end offset", "log end", "lag", "bytes", "ms")
    made = table("topic", *right, "", right=right)
    before = None
    for each in chosen:
        lag, name = each.lag, each.topic if each.topic != before else ""
        behind = (None, None, None) if lag is None else (lag.records, _known(lag.bytes), lag.ms)
        trouble = styled(each.trouble, style=NOTED if each.trouble else "")
        add_row(made, name, each.partition, each.end_offset, each.log_end_offset, *behind, trouble)
        before = each.topic
    console().print(made)


def _known(count: int) -> int | None:
    return None if count < 0 else count
