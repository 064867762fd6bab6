"""`segstore copy`: a snapshot of a store, while it is in use. On disk: through the engine. Threads: one."""

from __future__ import annotations

import rich_click as click

import segstore
from segstore.cli.maintenance import all_log_bytes
from segstore.cli.options import open_reading, store_option
from segstore.cli.output import progress_bar, size_text


@click.command()
@click.argument("target", metavar="TARGET", type=click.Path(file_okay=False))
@store_option
def copy(target: str, path: str) -> None:
    """Copy the store to TARGET, which must not be there yet, beside a live writer too.

    All partitions are as one moment had them. Where the file system can, the copy shares the bytes with the
    original. It is a store of its own, closed and sound.
    """
    open_reading(path).close()
    with progress_bar(all_log_bytes(path), f"copying {path}") as bar:
        made = segstore.copy(path, target, progress=lambda size: bar.advance(bar.task_ids[0], size))
    click.echo(
        f"{target}: {made.partitions} partitions, {made.segments} segments, {size_text(made.bytes)} of log",
        err=True,
    )
