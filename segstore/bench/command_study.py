"""`segstore bench study`. On disk: through the studies, in a directory of their own; results where the user
wants them. Threads: one.
"""

from __future__ import annotations

import os
import tempfile
import textwrap

import rich_click as click
from rich.console import Console
from rich.text import Text

from segstore.bench import results
from segstore.bench.command_options import (
    directory_option,
    effort_options,
    json_option,
    out_option,
    progress_shown,
)
from segstore.bench.plots import save
from segstore.bench.results import Results
from segstore.bench.studies import MODULES, Study, study
from segstore.bench.terminal import findings, machine_text, table
from segstore.cli.output import add_row, console
from segstore.cli.output import table as plain_table
from segstore.cli.signals import status

ALL = "all"
_WIDEST = 100  # columns of running text


@click.command("study")
@click.argument("name", metavar="[NAME|all]", required=False, type=click.Choice([*MODULES, ALL]))
@directory_option
@out_option
@effort_options()
@json_option
def run_study(
    name: str | None, directory: str | None, out: str | None, quick: bool, runs: int, as_json: bool
) -> int:
    """Measure one of the reasons why a log is fast, and say what the figures say; without a NAME, list them.

    All of them take some five minutes. With --json, all results are one object a study, one after the other.
    """
    if name is None:
        _list()
        return 0
    if out is not None:
        os.makedirs(out, exist_ok=True)
    try:
        for chosen in MODULES if name == ALL else (name,):
            one = study(chosen)
            with progress_shown(chosen) as progress:
                found = one.run(directory or tempfile.gettempdir(), quick, runs, progress)
            if out is not None:
                _write(one, found, out)
            _show(one, found, as_json)
    except KeyboardInterrupt as error:
        click.echo("segstore: interrupted; no files of the measurement are left behind", err=True)
        return status(error)
    return 0


def _list() -> None:
    shown = plain_table("study", "question")
    for name in MODULES:
        add_row(shown, name, study(name).QUESTION)
    console().print(shown)


def _write(one: Study, found: Results, out: str) -> None:
    results.write(found, os.path.join(out, f"{one.NAME}.json"))
    save(one.plot(found), os.path.join(out, one.NAME))


def _show(one: Study, found: Results, as_json: bool) -> None:
    if as_json:
        click.echo(results.text(found), nl=False)
        return
    screen = console()
    screen.print(Text(f"{one.NAME}: {one.QUESTION}", style="bold"))
    screen.print(_filled(one.ABOUT, screen))
    screen.print(table(found, figures=one.SHOWN))
    screen.print(_filled(machine_text(found), screen))
    screen.print()
    screen.print(findings(found), width=min(screen.width, _WIDEST))


def _filled(text: str, screen: Console) -> str:
    return textwrap.fill(" ".join(text.split()), min(screen.width, _WIDEST))
