"""`segstore groups`: consumer groups, their lag, resets. On disk: through the engine. Threads: one."""

from __future__ import annotations

import rich_click as click

from segstore.cli.groups_change import delete, reset
from segstore.cli.groups_look import describe, list_groups


class InOrder(click.RichGroup):
    """Commands in order of use, not of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=InOrder, no_args_is_help=False)
def groups() -> None:
    """Look at consumer groups and their lag, set where they go on, forget them.

    Committed offsets are records of the topic __consumer_offsets. `list` and `describe` work beside a live
    writer; `reset` and `delete` need the store for themselves, so that no member is reading. The store is
    given with --store after the command, or in SEGSTORE_PATH.
    """


for command in (list_groups, describe, reset, delete):
    groups.add_command(command)
