"""`segstore stats`: what an operator wants to know of partitions. On disk: reads only. Threads: one."""

from __future__ import annotations

import rich_click as click

from segstore.cli.options import json_option, open_reading, store_option
from segstore.cli.output import add_row, console, print_json, size_text, table, time_text
from segstore.storage.meta.topics import find_topic
from segstore.storage.store.metrics import prometheus_text
from segstore.storage.store.stats import PartitionStats, store_stats


@click.command()
@click.argument("names", metavar="[TOPIC]...", nargs=-1)
@store_option
@json_option
@click.option("--prometheus", is_flag=True, help="All metrics in Prometheus' text format.")
def stats(names: tuple[str, ...], path: str, as_json: bool, prometheus: bool) -> None:
    """Show segments, bytes, records, offsets, dirty ratio, last sweep and errors of every partition.

    The dirty ratio is the part of a compacted topic's log that compaction has not seen yet.
    """
    if prometheus and (names or as_json):
        raise click.UsageError("--prometheus gives all metrics: no TOPIC and no --json with it.")
    with open_reading(path) as store:
        if prometheus:
            click.echo(prometheus_text(store), nl=False)
            return
        for name in names:
            find_topic(store.topics(), name)
        rows = [row for row in store_stats(store) if not names or row.topic in names]
    if as_json:
        for row in rows:
            print_json(row._asdict())
    elif rows:
        _print(rows)
    else:
        click.echo(f"no topics in {path}", err=True)


def _print(rows: list[PartitionStats]) -> None:
    right = ("segments", "bytes", "records", "start", "end", "dirty")
    made = table("partition", *right, "last sweep", "error", right=right)
    for row in rows:
        dirty = "" if row.dirty_ratio is None else f"{row.dirty_ratio:.0%}"
        swept = "" if row.swept_ms < 0 else time_text(row.swept_ms // 1000 * 1000)
        size = size_text(row.bytes)
        offsets = row.start_offset, row.end_offset
        name = f"{row.topic}-{row.partition}"
        add_row(made, name, row.segments, size, row.records, *offsets, dirty, swept, row.error)
    console().print(made)
