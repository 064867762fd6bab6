"""`segstore dump`: what is in the files, byte by byte. On disk: reads only. Threads: one.

Works without a store: on single files, partition directories and whole log directories, damaged ones too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import rich_click as click

from segstore import names
from segstore.cli.dump_files import SMALL, dump_epochs, dump_offsets
from segstore.cli.dump_log import dump_log
from segstore.cli.dump_rows import Row, print_rows
from segstore.cli.options import json_option
from segstore.files import Files

WHOLE_NAMES: dict[str, Callable[[Files, str], Iterator[Row]]] = {
    names.LEADER_EPOCHS: dump_epochs,
    names.RECOVERY_POINTS: dump_offsets,
    names.HIGH_WATERMARKS: dump_offsets,
    names.LOG_STARTS: dump_offsets,
    names.CLEANER_OFFSETS: dump_offsets,
}


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("--records", "-r", is_flag=True, help="The records of each batch too.")
@json_option
def dump(paths: tuple[str, ...], records: bool, as_json: bool) -> int:
    """Show what is in files: batches, index entries, snapshots, checkpoints.

    PATH is a file, a partition's directory or a whole store; a Kafka broker's too. Exits with 1 where
    something is damaged, after it has said where and why, and shown what comes behind.
    """
    files = Files()
    damaged = False
    for path in paths:
        chosen = list(_below(files, path)) if os.path.isdir(path) else [path]
        if not chosen:
            click.echo(f"{path}: nothing that can be shown", err=True)
        for name in chosen:
            damaged |= print_rows(name, rows_of(files, name, records), as_json)
    return int(damaged)


def rows_of(files: Files, path: str, records: bool) -> Iterator[Row]:
    """What is in one file, by its name. UsageError for a name that says nothing."""
    name = os.path.basename(path)
    if name in WHOLE_NAMES:
        return WHOLE_NAMES[name](files, path)
    kind = kind_of(name)
    if kind == names.LOG:
        return dump_log(files, path, records)
    if kind in SMALL:
        return SMALL[kind](files, path)
    known = ", ".join([names.LOG, *SMALL, *WHOLE_NAMES])
    raise click.UsageError(f"{path}: the name does not say what it is; known are {known}.")


def kind_of(name: str) -> str | None:
    """The suffix that says what a file is, also below .deleted, .cleaned and .swap."""
    for more in (names.DELETED, names.CLEANED, names.SWAP):
        name = name.removesuffix(more)
    suffix = os.path.splitext(name)[1]
    return suffix if suffix in (names.LOG, *SMALL) else None


def _below(files: Files, directory: str) -> Iterator[str]:
    """Files of a partition in order, or those of all partitions of a store."""
    for name in sorted(files.listdir(directory)):
        path = os.path.join(directory, name)
        if os.path.isdir(path):
            ours = names.parse_partition_dir(name) is not None or names.is_deleted_dir(name)
            if ours and not files.is_symlink(path):
                yield from _below(files, path)
        elif name in WHOLE_NAMES or (kind_of(name) and names.parse_segment_file(name)):
            yield path
