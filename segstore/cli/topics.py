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

# The bytes that a store takes. On disk: reads names and sizes. Threads: any.


def partition_bytes(root: str, topic: str, partition: int) -> dict[str, int]:
    """Bytes of a partition's files by suffix (".log", ".index", ...), "" for the rest."""
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
    """Bytes of a partition's `.log` files."""
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
    """List topics: partitions, offsets, bytes, settings; of a TOPIC that is named, every partition."""
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
    """A topic as `--json` shows it."""
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
    told = any("error" in part for part in row["partitions"])
    title = f"{row['topic']}  {_settings(row)}".rstrip()
    made = table(*right, *(["error"] if told else []), right=right, title=title)
    for part in row["partitions"]:
        cells = (part["partition"], part["start_offset"], part["end_offset"], size_text(part["bytes"]))
        add_row(made, *cells, *([part.get("error")] if told else []))
    console().print(made)


def _settings(row: dict[str, Any]) -> str:
    if not row["ours"]:
        return "(a broker's: no settings here)"
    return " ".join(f"{name}={value}" for name, value in row["config"].items())


# --- create ------------------------------------------------------------------------------------

# `segstore create`: a new topic, and a store for it where there is none.


@click.command()
@click.argument("topic")
@click.option(
    "--partitions",
    "-p",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="How many partitions.",
)
@config_option
@store_option
def create(topic: str, partitions: int, config: dict[str, str], path: str) -> None:
    """Make TOPIC, and the store where there is none yet."""
    check_topic(topic)  # before a store is made for it
    TopicConfig.parse(config)
    with segstore.open(path) as store:
        info = store.create_topic(topic, partitions=partitions, config=config)
    click.echo(f"created {info.name}: {info.partitions} partition{'s' * (info.partitions != 1)}", err=True)


# --- alter -------------------------------------------------------------------------------------

# `segstore alter`: settings and partitions of a topic.


@click.command()
@click.argument("topic")
@config_option
@click.option(
    "--delete-config",
    "-d",
    "forget",
    metavar="NAME",
    multiple=True,
    help="Take a setting back to its default.",
)
@click.option(
    "--partitions", "-p", type=click.IntRange(1, 100_000), help="How many there shall be, more than now."
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

# `segstore delete`: a topic and all its records.


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
