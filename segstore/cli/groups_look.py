"""`segstore groups list` and `describe`. On disk: reads only, beside a live writer too. Threads: one."""

from __future__ import annotations

from typing import Any

import rich_click as click
from rich.text import Text

from segstore.cli.options import json_option, open_reading, store_option
from segstore.cli.output import add_row, console, print_json, shown, table
from segstore.coordinator.group.admin import Groups
from segstore.coordinator.group.admin_structs import GroupDescription, GroupMember, PartitionState

STATES = {"Stable": "green", "Empty": "yellow", "Unknown": "red"}


@click.command("list")
@store_option
@json_option
def list_groups(path: str, as_json: bool) -> None:
    """List all groups: state, members, and how far they are behind."""
    with open_reading(path) as store:
        known = Groups(store)
        found = [known.describe(listing.group_id) for listing in known.list()]
    if as_json:
        for group in found:
            print_json(_summary(group))
    elif found:
        _print_groups(found)
    else:
        click.echo(f"no groups in {path}", err=True)


@click.command()
@click.argument("names", metavar="[GROUP]...", nargs=-1)
@click.option("--members", "-m", is_flag=True, help="Members and what they were given, instead of offsets.")
@store_option
@json_option
def describe(names: tuple[str, ...], members: bool, path: str, as_json: bool) -> None:
    """Show each partition of a GROUP, by default of all: committed offset, end, lag, who reads it.

    `segstore groups describe flights-app --json` gives an object for each group, with members and partitions.
    """
    with open_reading(path) as store:
        known = Groups(store)
        wanted = names or tuple(listing.group_id for listing in known.list())
        found = [known.describe(name) for name in dict.fromkeys(wanted)]
    if as_json:
        for group in found:
            print_json({**_summary(group), **_details(group)})
        return
    for group in found:
        (_print_members if members else _print_partitions)(group)
    if not found:
        click.echo(f"no groups in {path}", err=True)


# --- tables ---------------------------------------------------------------------------------------


def _print_groups(found: list[GroupDescription]) -> None:
    right = ("members", "partitions", "lag")
    made = table("group", "state", "protocol", *right, right=right)
    for group in found:
        state = Text(group.state, style=STATES.get(group.state, "cyan"))
        counts = len(group.members), len(group.partitions), group.lag
        add_row(made, group.group_id, state, group.protocol, *counts)
    console().print(made)
    _print_errors(found)


def _print_partitions(group: GroupDescription) -> None:
    right = ("partition", "committed", "start offset", "end offset", "lag")
    made = table("topic", *right, "member", right=right, title=_title(group))
    before = None
    for part in group.partitions:
        topic, number = part.partition
        numbers = (_committed(part), part.start, part.end, _lag(part))
        add_row(made, topic if topic != before else "", number, *numbers, _reader(group, part))
        before = topic
    console().print(made)
    if any(part.pending for part in group.partitions):
        console().print(Text(" * an open transaction is about to commit another offset\n", style="dim"))
    _print_errors([group])


def _print_members(group: GroupDescription) -> None:
    made = table(
        "member",
        "instance",
        "client id",
        "partitions",
        "assignment",
        right=("partitions",),
        title=_title(group),
    )
    for member in group.members:
        given = _assignment(member)
        count = len(member.assignment)
        add_row(made, member.member_id, member.group_instance_id, member.client_id, count, given)
    console().print(made)
    _print_errors([group])


def _title(group: GroupDescription) -> str:
    count = len(group.members)
    what = [group.state, f"{count} member{'s' * (count != 1)}", *([group.protocol] if group.protocol else [])]
    what += [f"generation {group.generation:,}"] if group.generation >= 0 else []
    return f"{group.group_id}  {', '.join(what)}, lag {group.lag:,}"


def _committed(part: PartitionState) -> str:
    """With an asterisk where an open transaction is about to commit another."""
    text = shown(part.committed.offset) if part.committed else "-"
    return f"{text}*" if part.pending else text


def _lag(part: PartitionState) -> Text:
    if part.error is not None:
        return Text("?", style="red")
    if part.lag is None:
        return Text("-")
    return Text(shown(part.lag), style="yellow" if part.lag else "green")


def _reader(group: GroupDescription, part: PartitionState) -> str:
    found = next((m for m in group.members if m.member_id == part.member_id), None)
    return (found.group_instance_id or found.member_id) if found else ""


def _assignment(member: GroupMember) -> str:
    topics: dict[str, list[str]] = {}
    for topic, partition in member.assignment:
        topics.setdefault(topic, []).append(str(partition))
    return " ".join(f"{topic}:{','.join(numbers)}" for topic, numbers in topics.items())


def _print_errors(found: list[GroupDescription]) -> None:
    for group in found:
        lines = [group.error] if group.error else []
        lines += [part.error for part in group.partitions if part.error]
        for line in dict.fromkeys(lines):
            click.echo(f"segstore: {group.group_id}: {line}", err=True)


# --- JSON ------------------------------------------------------------------------------------------


def _summary(group: GroupDescription) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "generation": group.generation,
        "lag": group.lag,
        **({"error": group.error} if group.error else {}),
    }


def _details(group: GroupDescription) -> dict[str, Any]:
    return {
        "members": [_member(m) for m in group.members],
        "partitions": [_partition(p) for p in group.partitions],
    }


def _member(member: GroupMember) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "assignment": [list(tp) for tp in member.assignment],
    }


def _partition(part: PartitionState) -> dict[str, Any]:
    committed = part.committed
    return {
        "topic": part.partition.topic,
        "partition": part.partition.partition,
        "committed": committed.offset if committed else None,
        "leader_epoch": committed.leader_epoch if committed else None,
        "metadata": committed.metadata if committed else None,
        "pending": part.pending,
        "start_offset": part.start,
        "end_offset": part.end,
        "lag": part.lag,
        "member_id": part.member_id,
        **({"error": part.error} if part.error else {}),
    }
