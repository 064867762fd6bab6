"""`segstore sweep`: retention and compaction, now. On disk: by the engine. Threads: one."""

from __future__ import annotations

import rich_click as click

import segstore
from segstore.cli.options import json_option, open_reading, store_option
from segstore.cli.output import add_row, console, print_json, size_text, table
from segstore.storage.store.sweeping import Swept


@click.command()
@store_option
@json_option
def sweep(path: str, as_json: bool) -> int:
    """Let old segments go and compact, as each topic's settings ask for; what an open store does by itself.

    Exits with 1 where a partition could not be swept; the others are swept all the same.
    """
    open_reading(path).close()  # nothing is made where nothing is
    with segstore.open(path) as store:
        swept = store.sweep()
    if as_json:
        for done in swept:
            print_json(done._asdict())
    elif swept:
        _print(swept)
    else:
        click.echo("nothing to sweep", err=True)
    return int(any(done.error for done in swept))


def _print(swept: tuple[Swept, ...]) -> None:
    right = ("deleted segments", "deleted", "compacted records", "compacted")
    made = table("partition", *right, "error", right=right)
    for done in swept:
        name = f"{done.topic}-{done.partition}"
        deleted, compacted = size_text(done.deleted_bytes), size_text(done.compacted_bytes)
        add_row(made, name, done.deleted_segments, deleted, done.compacted_records, compacted, done.error)
    console().print(made)
