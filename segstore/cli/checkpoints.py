"""`segstore checkpoints`: directories that Spark keeps in a topic. On disk: reads the store. Threads: one."""

from __future__ import annotations

import rich_click as click

from segstore.cli.checkpoints_changes import diff, history
from segstore.cli.checkpoints_look import cat, list_files, restore
from segstore.cli.groups import InOrder


@click.group(cls=InOrder, no_args_is_help=False)
def checkpoints() -> None:
    """Look into Spark's checkpoint directories, as they are and as they were.

    They are kept in a compacted topic (segstore.spark.checkpoints), so each offset that compaction has not
    reached is a moment to look at: `history` lists them, --at OFFSET goes there. All commands work beside
    the live query. The store is given with --store after the command, or in SEGSTORE_PATH.
    """


for command in (list_files, cat, diff, history, restore):
    checkpoints.add_command(command)
