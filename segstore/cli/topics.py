"""The commands for topics of a store or a cluster: `segstore topics`, `create`, `alter` and `delete`.

On disk: `topics` only reads, and another process may be writing. The other commands write through the engine.
Threads: one.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from segstore.cli.completion import topic_names
from segstore.cli.options import changes_of, config_option, forget_option, json_option
from segstore.cli.output import add_row, console, own_last, print_json, size_text, table
from segstore.cli.place_option import place_option
from segstore.cli.places.place import Place, Where
from segstore.errors import InvalidPartitionsError, TopicAlreadyExistsError

# --- topics ------------------------------------------------------------


@click.command()
@click.argument("names", metavar="[TOPIC]...", nargs=-1, shell_complete=topic_names)
@place_option
@json_option
def topics(names: tuple[str, ...], where: Where, as_json: bool) -> None:
    """List topics with their partitions, offsets, bytes and settings. With a TOPIC, list each of its
    partitions.

    With --bootstrap the bytes are unknown.
    """
    from segstore.storage.meta.topics import find_topic

    with where.reading() as place:
        known = place.topics()
        rows = place.describe([find_topic(known, name) for name in names] if names else [*known.values()])
    if as_json:
        for row in rows:
            print_json(row)
    elif names:
        for row in rows:
            _print_partitions(row)
    elif rows:
        _print_topics(rows)
    else:
        click.echo(f"no topics in {where.name}", err=True)


def _print_topics(rows: list[dict[str, Any]]) -> None:
    made = table(
        "topic", "partitions", "offsets", "bytes", "settings", right=("partitions", "offsets", "bytes")
    )
    for row in own_last(rows, lambda row: str(row["topic"])):
        parts = row["partitions"]
        offsets = sum(p["end_offset"] - p["start_offset"] for p in parts)
        settings = next((p["error"] for p in parts if "error" in p), _settings(row))
        add_row(made, row["topic"], len(parts), offsets, _size(row), settings)
    console().print(made)


def _print_partitions(row: dict[str, Any]) -> None:
    right = ("partition", "start offset", "end offset", "bytes")
    has_errors = any("error" in part for part in row["partitions"])
    title = f"{row['topic']}  {_settings(row)}".rstrip()
    made = table(*right, *(["error"] if has_errors else []), right=right, title=title)
    for part in row["partitions"]:
        cells = (part["partition"], part["start_offset"], part["end_offset"], _size(part))
        add_row(made, *cells, *([part.get("error")] if has_errors else []))
    console().print(made)


def _size(row: dict[str, Any]) -> str:
    return "-" if row["bytes"] is None else size_text(row["bytes"])


def _settings(row: dict[str, Any]) -> str:
    if row["ours"] is False:
        return "(a broker's: no settings here)"
    return " ".join(f"{name}={value}" for name, value in row["config"].items())


# --- create ------------------------------------------------------------------------------------

# `segstore create` creates a topic. If there is no store, it creates the store, too.


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.option(
    "--partitions",
    "-p",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="Number of partitions.",
)
@click.option(
    "--if-not-exists",
    is_flag=True,
    help="Do nothing if the topic is there already, whatever its settings are.",
)
@config_option
@place_option
def create(topic: str, partitions: int, if_not_exists: bool, config: dict[str, str], where: Where) -> None:
    """Create TOPIC, and the store if there is none yet."""
    with where.creating(topic, config) as place:
        try:
            place.create_topic(topic, partitions, config)
        except TopicAlreadyExistsError as error:
            if not if_not_exists:
                message = f"{error}: `segstore alter` changes it, and --if-not-exists leaves it as it is"
                raise TopicAlreadyExistsError(message) from None
            click.echo(f"{topic} is there already", err=True)
            return
    click.echo(f"created {topic}: {partitions} partition{'s' * (partitions != 1)}", err=True)


# --- alter -------------------------------------------------------------------------------------

# `segstore alter` changes settings, or adds partitions.


@click.command()
@click.argument("topic", shell_complete=topic_names)
@config_option
@forget_option
@click.option(
    "--partitions", "-p", type=click.IntRange(1, 100_000), help="New number of partitions, more than now."
)
@place_option
def alter(
    topic: str, config: dict[str, str], forget: tuple[str, ...], partitions: int | None, where: Where
) -> None:
    """Change TOPIC's settings, or add partitions."""
    changes = changes_of(config, forget)
    if not changes and partitions is None:
        raise click.UsageError("Nothing to change: give --config, --delete-config or --partitions.")
    with where.changing(topic) as place:
        _check_grows(place, topic, partitions)
        count, made = place.alter_topic(topic, changes, partitions)
    settings = "".join(f", {name}={value}" for name, value in made.items())
    click.echo(f"altered {topic}: {count} partition{'s' * (count != 1)}{settings}", err=True)


def _check_grows(place: Place, topic: str, partitions: int | None) -> None:
    """Raise InvalidPartitionsError if a topic has `partitions` or more partitions already. Called before
    settings are changed.
    """
    has = place.topics()[topic].partitions
    if partitions is not None and partitions <= has:
        raise InvalidPartitionsError(
            f"--partitions {partitions}: {topic} has {has} already; the number can only grow"
        )


# --- delete ------------------------------------------------------------------------------------

# `segstore delete` removes a topic and all of its records.


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@place_option
def delete(topic: str, yes: bool, where: Where) -> int:
    """Remove TOPIC with all its records."""
    with where.changing(topic) as place:
        if not yes and not _confirmed(place, topic):
            return 1
        place.delete_topic(topic)
    click.echo(f"deleted {topic}", err=True)
    return 0


def _confirmed(place: Place, topic: str) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError("There is no terminal to ask for confirmation: give --yes.")
    (row,) = place.describe([place.topics()[topic]])
    offsets = sum(p["end_offset"] - p["start_offset"] for p in row["partitions"])
    count = len(row["partitions"])
    return click.confirm(f"Delete {topic}, {offsets:,} offsets in {count} partitions?", err=True)
