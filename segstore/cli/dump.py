"""`segstore dump`: prints the batches, records and index entries of files. On disk: these files are only
read. Threads: one.
"""

from __future__ import annotations

import os

import click

from segstore.cli.options import json_option


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("--records", "-r", is_flag=True, help="Show the records of each batch too.")
@json_option
def dump(paths: tuple[str, ...], records: bool, as_json: bool) -> int:
    """Show the content of files: batches, index entries, snapshots, checkpoints.

    PATH is a file, a partition's directory or a whole store, also those of a Kafka broker. Damage is printed
    with its place and reason, and the data after it is shown, too; then the exit status is 1.
    """
    from segstore.cli.dump_files import print_rows
    from segstore.cli.dump_log import below, rows_of
    from segstore.files import Files

    files = Files()
    damaged = False
    for path in paths:
        chosen = list(below(files, path)) if os.path.isdir(path) else [path]
        if not chosen:
            click.echo(f"{path}: nothing that can be shown", err=True)
        for name in chosen:
            damaged |= print_rows(name, rows_of(files, name, records), as_json)
    return int(damaged)
