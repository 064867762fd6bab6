"""`segstore delete`: a topic and all its records. On disk: through the engine. Threads: one."""

from __future__ import annotations

import sys

import rich_click as click

import segstore
from segstore.cli.options import open_for_change, store_option
from segstore.cli.topics import describe


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
