"""`segstore check`: every invariant of a store. On disk: reads only, unless it is to repair. Threads: one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import rich_click as click

import segstore
from segstore.cli.disk import log_bytes
from segstore.cli.options import json_option, open_reading
from segstore.cli.output import print_json, progress_bar, size_text
from segstore.errors import StorageError
from segstore.storage.repair import Repaired
from segstore.storage.repair import repair as run_repair

R = TypeVar("R")


@click.command()
@click.argument("given", metavar="[PATH]", required=False, type=click.Path(file_okay=False))
@click.option(
    "--store",
    "-s",
    "path",
    metavar="PATH",
    envvar="SEGSTORE_PATH",
    show_envvar=True,
    help="The same as PATH.",
)
@click.option("--repair", is_flag=True, help="Put right what can be; nobody else may write meanwhile.")
@click.option(
    "--quarantine",
    is_flag=True,
    help="With --repair: also move what is no batch out of the logs, to .segstore/quarantine.",
)
@json_option
def check(given: str | None, path: str | None, repair: bool, quarantine: bool, as_json: bool) -> int:
    """Check the bytes, indexes, checkpoints and names of a store, one that is in use too.

    Prints what it finds, a line each, and exits with 1 where there is anything.

    With --repair, what a crash left is settled, and indexes, producer snapshots and checkpoints are made
    anew from the logs; it prints what it did, then what is left. Logs are touched with --quarantine only: an
    empty batch then stands for the offsets that are lost, and readers go on behind it.
    """
    root = given or path
    if root is None:
        raise click.UsageError("Which store? Give its PATH, or --store, or set SEGSTORE_PATH.")
    if quarantine and not repair:
        raise click.UsageError("--quarantine goes with --repair.")
    if not os.path.isdir(root):
        raise StorageError(errno.ENOENT, "There is no such store", root)
    done = _repair(root, quarantine) if repair else []
    size, findings = run_check(root)
    rows: list[Repaired | segstore.Finding] = [*done, *findings]
    for row in rows:
        if as_json:
            print_json(row._asdict())
        else:
            click.echo(str(row))
    found = f"{len(findings)} finding{'s' * (len(findings) != 1)}" if findings else "sound"
    repaired = f"{len(done)} repaired, " if repair else ""
    click.echo(f"{root}: {repaired}{found}, {size_text(size)} of log checked", err=True)
    return int(bool(findings))


def _repair(root: str, quarantine: bool) -> list[Repaired]:
    _, done = _watched(root, "repairing", partial(run_repair, quarantine=quarantine))
    return done


def run_check(root: str) -> tuple[int, list[segstore.Finding]]:
    """Bytes of log that were checked, and findings; a progress bar meanwhile, on a terminal."""
    return _watched(root, "checking", segstore.check)


def _watched(root: str, what: str, run: Callable[..., list[R]]) -> tuple[int, list[R]]:
    checked, total = 0, all_log_bytes(root)
    with progress_bar(total, f"{what} {root}") as bar:

        def advance(size: int) -> None:
            nonlocal checked
            checked += size
            # A repair may look more than once.
            bar.update(bar.task_ids[0], completed=checked, total=max(total, checked))

        found = run(root, progress=advance)
    return checked, found


def all_log_bytes(root: str) -> int:
    """Bytes of all logs of a store."""
    with open_reading(root) as store:
        return sum(
            log_bytes(root, info.name, n) for info in store.topics().values() for n in info.partition_ids
        )
