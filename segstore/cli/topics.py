"""The commands of topics: `segstore topics`, `create`, `alter` and `delete`.

On disk: `topics` only reads, beside a live writer too; the others write through the engine. Threads: one.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import rich_click as click

import segstore
from segstore import names
from segstore.cli.options import config_option, json_option, open_for_change, open_reading, store_option
from segstore.cli.output import add_row, console, print_json, size_text, table
from segstore.config import TopicConfig
from segstore.files import Files
from segstore.names import check_topic
from segstore.storage.meta.topics import find_topic

# --- disk --------------------------------------------------------------------------------------

# This part counts the bytes that a store takes, from names and sizes of files. Threads: any.


def partition_bytes(root: str, topic: str, partition: int) -> dict[str, int]:
    """Return the bytes of a partition's files by suffix (".log", ".index", ...), and those of other files as
    "".
    """
    files, found = Files(), dict.fromkeys((names.LOG, names.INDEX, names.TIME_INDEX, ""), 0)
    directory = os.path.join(root, names.partition_dir(topic, partition))
    if not files.exists(directory):
        return found
    for name in files.listdir(directory):
        parsed = names.parse_segment_file(name)
        suffix = parsed[1] if parsed else ""
        found[suffix] = found.get(suffix, 0) + _size(files, os.path.join(directory, name))
    return found


def log_bytes(root: str, topic: str, partition: int) -> int:
    """Return the bytes of a partition's `.log` files."""
    return partition_bytes(root, topic, partition)[names.LOG]


def _size(files: Files, path: str) -> int:
    try:
        return files.size(path)
    except FileNotFoundError:  # a live writer has removed it meanwhile
        return 0


# --- topics ------------------------------------------------------------


@click.command()
@click.argument("names", metavar="[TOPIC]...", nargs=-1)
@store_option
@json_option
def topics(names: tuple[str, ...], path: str, as_json: bool) -> None:
    """List topics with partitions, offsets, bytes and settings; for a TOPIC that is named, every
    partition.
    """
    with open_reading(path) as store:
        known = store.topics()
        chosen = [find_topic(known, name) for name in names] if names else list(known.values())
        rows = [describe(store, info) for info in chosen]
    if as_json:
        for row in rows:
            print_json(row)
    elif names:
        for row in rows:
            _print_partitions(row)
    elif rows:
        _print_topics(rows)
    else:
        click.echo(f"no topics in {path}", err=True)


def describe(store: segstore.Store, info: segstore.TopicInfo) -> dict[str, Any]:
    """Return the fields of a topic, as `--json` shows them."""
    partitions, swept = [], store.sweep_states()
    for number in info.partition_ids:
        found: dict[str, Any] = {"partition": number, "start_offset": 0, "end_offset": 0}
        try:
            log = store.partition(info.name, number)
            found |= {"start_offset": log.start_offset, "end_offset": log.end_offset}
            failed = swept[info.name, number].error if (info.name, number) in swept else None
            found |= {"error": f"not swept: {failed}"} if failed else {}
        except segstore.SegstoreError as error:
            found["error"] = str(error)
        partitions.append(found | {"bytes": log_bytes(store.path, info.name, number)})
    return {
        "topic": info.name,
        "topic_id": info.topic_id,
        "ours": info.ours,
        "partitions": partitions,
        "bytes": sum(p["bytes"] for p in partitions),
        "config": info.config,
    }


def _print_topics(rows: list[dict[str, Any]]) -> None:
    made = table(
        "topic", "partitions", "offsets", "bytes", "settings", right=("partitions", "offsets", "bytes")
    )
    for row in rows:
        parts = row["partitions"]
        offsets = sum(p["end_offset"] - p["start_offset"] for p in parts)
        settings = next((p["error"] for p in parts if "error" in p), _settings(row))
        add_row(made, row["topic"], len(parts), offsets, size_text(row["bytes"]), settings)
    console().print(made)


def _print_partitions(row: dict[str, Any]) -> None:
    right = ("partition", "start offset", "end offset", "bytes")
    has_errors = any("error" in part for part in row["partitions"])
    title = f"{row['topic']}  {_settings(row)}".rstrip()
    made = table(*right, *(["error"] if has_errors else []), right=right, title=title)
    for part in row["partitions"]:
        cells = (part["partition"], part["start_offset"], part["end_offset"], size_text(part["bytes"]))
        add_row(made, *cells, *([part.get("error")] if has_errors else []))
    console().print(made)


def _settings(row: dict[str, Any]) -> str:
    if not row["ours"]:
        return "(a broker's: no settings here)"
    return " ".join(f"{name}={value}" for name, value in row["config"].items())


# --- create ------------------------------------------------------------------------------------

# `segstore create` makes a new topic, and a store for it where there is none.


@click.command()
@click.argument("topic")
@click.option(
    "--partitions",
    "-p",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="Number of partitions.",
)
@config_option
@store_option
def create(topic: str, partitions: int, config: dict[str, str], path: str) -> None:
    """Create TOPIC, and the store where there is none yet."""
    check_topic(topic)  # checked before a store is made for the topic
    TopicConfig.parse(config)
    with segstore.open(path) as store:
        info = store.create_topic(topic, partitions=partitions, config=config)
    click.echo(f"created {info.name}: {info.partitions} partition{'s' * (info.partitions != 1)}", err=True)


# --- alter -------------------------------------------------------------------------------------

# `segstore alter` changes settings, or adds partitions.


@click.command()
@click.argument("topic")
@config_option
@click.option(
    "--delete-config",
    "-d",
    "forget",
    metavar="NAME",
    multiple=True,
    help="Set this setting back to its default; may be repeated.",
)
@click.option(
    "--partitions", "-p", type=click.IntRange(1, 100_000), help="New number of partitions, more than now."
)
@store_option
def alter(
    topic: str, config: dict[str, str], forget: tuple[str, ...], partitions: int | None, path: str
) -> None:
    """Change TOPIC's settings, or add partitions."""
    both = sorted(set(config) & set(forget))
    if both:
        raise click.UsageError(f"{both[0]} is both set and deleted.")
    changes: dict[str, Any] = {**config, **dict.fromkeys(forget)}
    if not changes and partitions is None:
        raise click.UsageError("Nothing to change: give --config, --delete-config or --partitions.")
    with open_for_change(path, topic) as store:
        if changes:
            store.alter_topic(topic, changes)
        if partitions is not None:
            store.add_partitions(topic, partitions)
        info = store.topics()[topic]
    settings = "".join(f", {name}={value}" for name, value in info.config.items())
    click.echo(
        f"altered {topic}: {info.partitions} partition{'s' * (info.partitions != 1)}{settings}", err=True
    )


# --- delete ------------------------------------------------------------------------------------

# `segstore delete` removes a topic and all its records.


@click.command()
@click.argument("topic")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@store_option
def delete(topic: str, yes: bool, path: str) -> int:
    """Remove TOPIC with all its records."""
    with open_for_change(path, topic) as store:
        if not yes and not _confirmed(store, topic):
            return 1
        store.delete_topic(topic)
    click.echo(f"deleted {topic}", err=True)
    return 0


def _confirmed(store: segstore.Store, topic: str) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError("Without a terminal nobody can be asked: --yes deletes without a question.")
    parts = describe(store, store.topics()[topic])["partitions"]
    offsets = sum(p["end_offset"] - p["start_offset"] for p in parts)
    return click.confirm(f"Delete {topic}, {offsets:,} offsets in {len(parts)} partitions?", err=True)
