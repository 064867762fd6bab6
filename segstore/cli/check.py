"""`segstore check`: every invariant of a store. On disk: reads only. Threads: one."""

from __future__ import annotations

import rich_click as click

import segstore
from segstore.cli.disk import log_bytes
from segstore.cli.options import json_option, open_reading
from segstore.cli.output import print_json, progress_bar, size_text


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
@json_option
def check(given: str | None, path: str | None, as_json: bool) -> int:
    """Check the bytes, indexes, checkpoints and names of a store, one that is in use too.

    Prints what it finds, a line each, and exits with 1 where there is anything.
    """
    root = given or path
    if root is None:
        raise click.UsageError("Which store? Give its PATH, or --store, or set SEGSTORE_PATH.")
    size, findings = run_check(root)
    for finding in findings:
        if as_json:
            print_json(finding._asdict())
        else:
            click.echo(str(finding))
    found = f"{len(findings)} finding{'s' * (len(findings) != 1)}" if findings else "sound"
    click.echo(f"{root}: {found}, {size_text(size)} of log checked", err=True)
    return int(bool(findings))


def run_check(root: str) -> tuple[int, list[segstore.Finding]]:
    """Bytes of log that were checked, and findings; a progress bar meanwhile, on a terminal."""
    checked = 0
    with progress_bar(all_log_bytes(root), f"checking {root}") as bar:

        def advance(size: int) -> None:
            nonlocal checked
            checked += size
            bar.advance(bar.task_ids[0], size)

        findings = segstore.check(root, progress=advance)
    return checked, findings


def all_log_bytes(root: str) -> int:
    """Bytes of all logs of a store."""
    with open_reading(root) as store:
        return sum(
            log_bytes(root, info.name, n) for info in store.topics().values() for n in info.partition_ids
        )
