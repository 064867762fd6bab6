"""`segstore groups`: lists and describes consumer groups and share groups with their lag, resets and deletes
their offsets, and changes their settings.

On disk: the engine reads and writes the store. Threads: one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from segstore.cli.completion import group_names
from segstore.cli.options import changes_of, config_given, forget_option, json_option, time_value
from segstore.cli.output import NOTED, add_row, console, counted, print_json, shown, styled, table
from segstore.cli.place_first import PlaceFirst
from segstore.cli.place_option import place_option
from segstore.cli.places.place import Where

if TYPE_CHECKING:
    from rich.text import Text

    from segstore.coordinator.group.admin import Moved, Reset
    from segstore.coordinator.group.descriptions import GroupDescription, GroupMember, PartitionState
    from segstore.coordinator.structs import TopicPartition

# --- groups look -------------------------------------------------------------------------------

# `segstore groups list` and `segstore groups describe` only read. Another process may be writing to the
# store.

STATES = {"Stable": "", "Unknown": "red"}
_SHARE = "share"
KINDS = ("classic", "consumer", _SHARE)


@click.command("list")
@click.option("--type", "kind", type=click.Choice(KINDS), help="Only groups of this type.")
@place_option
@json_option
def list_groups(kind: str | None, where: Where, as_json: bool) -> None:
    """List all groups with their state, members and lag."""
    with where.reading() as place:
        known = place.groups()
        found = [known.describe(listing.group_id) for listing in known.list()]
    found = [group for group in found if kind in (None, group.group_type)]
    if as_json:
        for group in found:
            print_json(_summary(group))
    elif found:
        _print_groups(found)
    else:
        click.echo(f"no groups in {where.name}", err=True)


@click.command()
@click.argument("names", metavar="[GROUP]...", nargs=-1, shell_complete=group_names)
@click.option(
    "--members", "-m", is_flag=True, help="Show members and their assigned partitions instead of offsets."
)
@place_option
@json_option
def describe(names: tuple[str, ...], members: bool, where: Where, as_json: bool) -> None:
    """Show each partition of a GROUP, by default of all groups: committed offset, end offset, lag, member.

    The lag is Kafka's: end offset minus committed offset. UNREAD does not count the offsets that retention
    has removed before the group has read them. A share group has a start offset in place of a committed
    offset: all records before the start offset are done. Records after it that are already done are not
    counted in the lag.

    `segstore groups describe flights-app --json` gives an object for each group, with members and partitions.
    """
    with where.reading() as place:
        known = place.groups()
        wanted = names or tuple(listing.group_id for listing in known.list())
        found = [known.describe(name) for name in dict.fromkeys(wanted)]
    if as_json:
        for group in found:
            print_json({**_summary(group), **_details(group)})
        return
    for group in found:
        (_print_members if members else _print_partitions)(group)
    if not found:
        click.echo(f"no groups in {where.name}", err=True)


# --- tables ---------------------------------------------------------------------------------------


def _print_groups(found: list[GroupDescription]) -> None:
    right = ("members", "partitions", "lag", "unread")
    made = table("group", "type", "state", "protocol", *right, right=right)
    for group in found:
        state = styled(group.state, style=STATES.get(group.state, NOTED))
        counts = len(group.members), len(group.partitions), group.lag, group.unread
        add_row(made, group.group_id, group.group_type, state, group.protocol, *counts)
    console().print(made)
    _print_errors(found)


def _print_partitions(group: GroupDescription) -> None:
    first = ("share start", "log start") if group.group_type == _SHARE else ("committed", "start offset")
    right = ("partition", *first, "end offset", "lag", "unread")
    made = table("topic", *right, "member", right=right, title=_title(group))
    before = None
    for part in group.partitions:
        topic, number = part.partition
        numbers = (_committed(part), part.start, part.end, _count(part, part.lag), _count(part, part.unread))
        add_row(made, topic if topic != before else "", number, *numbers, _reader(group, part))
        before = topic
    console().print(made)
    if any(part.pending for part in group.partitions):
        console().print(styled(" * an open transaction is about to commit another offset\n", style="dim"))
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
    kind = ["share group"] if group.group_type == _SHARE else []
    epoch = "epoch" if group.group_type == _SHARE else "generation"
    what = [
        *kind,
        group.state,
        f"{count} member{'s' * (count != 1)}",
        *([group.protocol] if group.protocol else []),
    ]
    what += [f"{epoch} {group.generation:,}"] if group.generation >= 0 else []
    removed = f", {group.unread:,} unread" if group.unread != group.lag else ""
    return f"{group.group_id}  {', '.join(what)}, lag {group.lag:,}{removed}"


def _committed(part: PartitionState) -> str:
    """Return the committed offset as text. If an open transaction may commit another offset, add an
    asterisk.
    """
    text = shown(part.committed.offset) if part.committed else "-"
    return f"{text}*" if part.pending else text


def _count(part: PartitionState, count: int | None) -> Text:
    """Return `count`, a partition's lag or its number of unread offsets, as text: "-" if it is unknown, "?"
    if it could not be read because of an error.
    """
    if part.error is not None:
        return styled("?", style="red")
    if count is None:
        return styled("-")
    return styled(shown(count), style=NOTED if count else "")


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
        "type": group.group_type,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "generation": group.generation,
        "lag": group.lag,
        "unread": group.unread,
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
        "unread": part.unread,
        **({} if part.complete == 0 else {"complete": part.complete}),
        "member_id": part.member_id,
        **({"error": part.error} if part.error else {}),
    }


# --- groups change -----------------------------------------------------------------------------

# `segstore groups reset` and `segstore groups delete` open the store for writing, through the engine.

_DURATION = re.compile(
    r"P(?=.)(?:(?P<days>\d+)D)?(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1000}


def _duration(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    match = _DURATION.fullmatch(value.upper())
    if match is None:
        raise click.BadParameter(f"{value!r} is no ISO 8601 duration, as PT1H30M or P7D")
    return int(sum(float(number or 0) * _MS[unit] for unit, number in match.groupdict().items()))


def _topics(_ctx: click.Context, _param: click.Parameter, given: Sequence[str]) -> list[TopicPartition | str]:
    from segstore.coordinator.structs import TopicPartition

    found: list[TopicPartition | str] = []
    for text in given:
        topic, colon, numbers = text.partition(":")
        if not topic or (colon and not re.fullmatch(r"\d+(,\d+)*", numbers)):
            raise click.BadParameter(f"{text!r} must be TOPIC, or TOPIC:0,2 for some of its partitions")
        found += [TopicPartition(topic, int(n)) for n in numbers.split(",")] if colon else [topic]
    return found


_topic_option: Callable[[Any], Any] = click.option(
    "--topic",
    "-t",
    "topics",
    metavar="TOPIC[:0,2]",
    multiple=True,
    callback=_topics,
    help="Take all partitions of this topic, or the ones named; may be repeated.",
)
_GOALS = ("to_earliest", "to_latest", "to_current", "to_offset", "shift_by", "to_datetime", "by_duration")
"""The names of the options that say which offsets to set. `Reset` has a method of the same name for each."""


@click.command()
@click.argument("group", shell_complete=group_names)
@click.option("--to-earliest", is_flag=True, help="Go to the log start offset.")
@click.option("--to-latest", is_flag=True, help="Go to the log end offset.")
@click.option(
    "--to-current",
    is_flag=True,
    help="Stay at the committed offset; go to the log end offset if there is none.",
)
@click.option(
    "--to-offset", type=click.IntRange(0), metavar="N", help="Go to this offset, or the nearest in the log."
)
@click.option("--shift-by", type=int, metavar="N", help="Go N offsets forward, or back if N is negative.")
@click.option(
    "--to-datetime",
    callback=time_value,
    metavar="TIME",
    help="Go to the first record from this time on: ISO 8601 (UTC), or ms.",
)
@click.option(
    "--by-duration",
    callback=_duration,
    metavar="DURATION",
    help="Go to the first record of this span before now: PT1H30M, P7D.",
)
@_topic_option
@click.option(
    "--all-topics", is_flag=True, help="Take all partitions for which the group has committed offsets."
)
@click.option("--execute", is_flag=True, help="Change the offsets. Without this nothing is changed.")
@click.option("--dry-run", is_flag=True, help="Only show what would change; this is the default.")
@place_option
@json_option
def reset(
    group: str,
    topics: list[TopicPartition | str],
    all_topics: bool,
    execute: bool,
    dry_run: bool,
    where: Where,
    as_json: bool,
    **goals: Any,
) -> None:
    """Set the offsets from which GROUP continues. Only shows the changes, unless --execute is given.

    `segstore groups reset flights-app --to-datetime 2013-07-01T00:00:00Z --topic flights --execute` lets the
    group read July again. An offset outside of the log is moved to the nearest offset in the log. For a share
    group, the start offsets are set, and records after these are delivered again. The group must have no
    members; the members of a store's groups are in the process that writes the store, so close the store
    there first.
    """
    to = _goal(goals)
    if bool(topics) == all_topics:
        raise click.UsageError("Which partitions? Give either --topic (it may be repeated) or --all-topics.")
    if execute and dry_run:
        raise click.UsageError("Give --execute or --dry-run, not both.")
    with where.reading() as place:
        moved = place.groups().reset(group, to, topics or None, dry_run=True)
    if execute:
        with where.changing() as place:
            moved = place.groups().reset(group, to, topics or None)
    _print_moved(group, moved, as_json)
    if not execute:
        click.echo("nothing was changed: give --execute to do it", err=True)


def _goal(given: dict[str, Any]) -> Reset:
    from segstore.coordinator.group.admin import Reset

    chosen = {name: value for name, value in given.items() if value is not None and value is not False}
    if len(chosen) != 1:
        options = ", ".join("--" + name.replace("_", "-") for name in _GOALS)
        raise click.UsageError(f"Where to? Give one of {options}.")
    ((name, value),) = chosen.items()
    goal: Callable[..., Reset] = getattr(Reset, name)
    return goal() if value is True else goal(value)


def _print_moved(group: str, moved: Sequence[Moved], as_json: bool) -> None:
    if as_json:
        for move in moved:
            topic, partition = move.partition
            row = {"group": group, "topic": topic, "partition": partition}
            print_json({**row, "old_offset": move.before, "new_offset": move.after})
        return
    right = ("partition", "old offset", "new offset", "change")
    made = table("topic", *right, right=right, title=group)
    for move in moved:
        old = "-" if move.before is None else move.before
        change = "" if move.before is None else f"{move.after - move.before:+,}"
        add_row(made, move.partition.topic, move.partition.partition, old, move.after, change)
    console().print(made)


@click.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=group_names)
@_topic_option
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@place_option
def delete(names: tuple[str, ...], topics: list[TopicPartition | str], yes: bool, where: Where) -> int:
    """Delete GROUP and all offsets that it has committed; with --topic only the offsets of these partitions.
    For a share group, --topic takes only whole topics.
    """
    if topics:
        where.check_offers("groups delete --topic")
    with where.reading() as place:
        described = [place.groups().describe(name) for name in dict.fromkeys(names)]
    if not yes and not _confirmed(names, sum(len(group.partitions) for group in described), topics):
        return 1
    with where.changing() as place:
        known = place.groups()
        for group in described:
            if topics:
                deleted = known.delete_offsets(group.group_id, topics)
                click.echo(f"forgot {counted(len(deleted), 'offset')} of {group.group_id}", err=True)
            else:
                known.delete(group.group_id)
                click.echo(f"deleted {group.group_id}", err=True)
    return 0


def _confirmed(names: tuple[str, ...], offsets: int, topics: Sequence[object]) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError("There is no terminal to ask for confirmation: give --yes.")
    what = "what was committed for some topics of" if topics else f"{counted(offsets, 'committed offset')} of"
    return click.confirm(f"Forget {what} {', '.join(names)}?", err=True)


@click.command()
@click.argument("group", shell_complete=group_names)
@config_given("A setting with Kafka's name, such as share.auto.offset.reset=earliest; may be repeated.")
@forget_option
@place_option
def alter(group: str, config: dict[str, str], forget: tuple[str, ...], where: Where) -> None:
    """Change GROUP's settings, which override the store's. The group need not exist yet.

    `segstore groups alter workers --config share.auto.offset.reset=earliest` lets a share group begin with
    the first record; `--config errors.deadletterqueue.topic.name=dlq.workers` gives it a dead letter queue.
    """
    changes = changes_of(config, forget)
    if not changes:
        raise click.UsageError("Nothing to change: give --config or --delete-config.")
    with where.changing() as place:
        made = place.alter_group(group, changes)
    settings = ", ".join(f"{name}={value}" for name, value in made.items())
    click.echo(f"altered {group}: {settings or 'it has no settings of its own'}", err=True)


# --- groups ------------------------------------------------------------


@click.group(cls=PlaceFirst, no_args_is_help=False, default="list")
def groups() -> None:
    """Show consumer and share groups and their lag, alter their settings, reset offsets, delete.

    Committed offsets are records of the topic __consumer_offsets, the states of share groups are records of
    __share_group_state. Without a command the groups are listed. `list` and `describe` work beside a live
    writer; `alter`, `reset` and `delete` open the store for writing, or ask the server that has it open. The
    store is given with --store, or in SEGSTORE_PATH; --bootstrap takes a cluster instead.
    """


for command in (list_groups, describe, alter, reset, delete):
    groups.add_command(command)
