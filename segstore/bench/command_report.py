"""`segstore bench report`: results again, from their JSON. On disk: reads it. Threads: one."""

from __future__ import annotations

import rich_click as click

from segstore.bench import show
from segstore.cli.output import console
from segstore.errors import InvalidArgumentError


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False))
def report(directory: str) -> None:
    """Show the results that were written to DIR with --out: tables, and what the figures say."""
    found = show.all_in(directory)
    if not found:
        raise InvalidArgumentError(f"{directory} has no results: no file NAME.json")
    screen = console()
    for one in found.values():
        for part in show.tables(one):
            screen.print(part)
        screen.print()
