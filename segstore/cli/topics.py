"""`segstore topics`: what a store holds. On disk: reads only, beside a live writer too. Threads: one."""

from __future__ import annotations

from typing import Any

import rich_click as click

import segstore
from segstore.cli.disk import log_bytes
from segstore.cli.options import json_option, open_reading, store_option
from segstore.cli.output import add_row, console, print_json, size_text, table
from segstore.storage.meta.topics import find_topic


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
