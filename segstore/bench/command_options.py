"""Options that measurements share, and what is seen while they run. Nothing on disk. Threads: one.

Nothing else may run while something is measured: so progress is drawn between measurements, by no thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import rich_click as click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from segstore.bench import RUNS, results
from segstore.cli.output import console

F = TypeVar("F", bound=Callable[..., Any])
QUICK_RUNS = 1
_EVERY = 0.1  # seconds between two looks


def directory_option(command: F) -> F:
    """--directory DIR: the argument `directory`, None where it was not given."""
    return click.option(
        "--directory",
        metavar="DIR",
        type=click.Path(exists=True, file_okay=False, writable=True),
        help="Where the logs lie that are measured, and are removed again: on the disk that matters. "
        "Without it where temporary files go.",
    )(command)


def out_option(command: F) -> F:
    """--out DIR: the argument `out`."""
    return click.option(
        "--out",
        metavar="DIR",
        type=click.Path(file_okay=False),
        help="Write results there: NAME.json, and pictures as PNG and SVG.",
    )(command)


def effort_options(default: int = RUNS) -> Callable[[F], F]:
    """--quick and --runs N: the arguments `quick` and `runs`."""
    quick = click.option(
        "--quick", is_flag=True, is_eager=True, help="Seconds: to see that it works, not for its figures."
    )

    def chosen(ctx: click.Context, _param: click.Parameter, runs: int | None) -> int:
        return runs or (QUICK_RUNS if ctx.params["quick"] else default)

    runs = click.option(
        "--runs",
        metavar="N",
        type=click.IntRange(min=1),
        callback=chosen,
        show_default=f"{default}; {QUICK_RUNS} with --quick",
        help="How often each is measured, by turns. Of fewer than 5 nothing is called better.",
    )
    return lambda command: quick(runs(command))


def json_option(command: F) -> F:
    """--json: the argument `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="The results as JSON, and nothing else.")(
        command
    )


def some_of(known: Mapping[str, Any] | Sequence[str]) -> Callable[..., tuple[Any, ...] | None]:
    """A callback for an option with a list: the ones that are named, in the order of `known`."""
    values = known if isinstance(known, Mapping) else {name: name for name in known}

    def parse(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[Any, ...] | None:
        if text is None:
            return None
        named = {name.strip() for name in text.split(",")}
        if unknown := sorted(named - values.keys()):
            raise click.BadParameter(f"{unknown[0]!r} must be of {', '.join(values)}")
        return tuple(value for name, value in values.items() if name in named)

    return parse


@contextmanager
def progress_shown(what: str) -> Iterator[results.Progress]:
    """A bar on standard error, on a terminal only: what measurements report their progress to."""
    err = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=err, transient=True, auto_refresh=False, disable=not err.is_terminal
    ) as bar:
        task, seen, said = bar.add_task(what, total=None), 0.0, ""

        def report(done: int, total: int, now: str) -> None:
            nonlocal seen, said
            bar.update(task, completed=done, total=total, description=f"{what}: {now}")
            if now != said or time.monotonic() - seen >= _EVERY:  # what comes now may take long
                seen, said = time.monotonic(), now
                bar.refresh()

        yield report
