"""`segstore checkpoints ls|cat|restore`. On disk: reads the store; `restore` writes what the user names.

Threads: one.
"""

from __future__ import annotations

import errno
import sys
from typing import Any

import rich_click as click

from segstore import filetree
from segstore.cli.checkpoints_options import at_option, opened, seen, topic_option
from segstore.cli.options import json_option, store_option
from segstore.cli.output import add_row, console, print_json, size_text, table, time_text
from segstore.filetree import File, Snapshot, clean_path, read_file


@click.command("ls")
@click.argument("file", metavar="[PATH]", default="/")
@click.option("--recursive", "-r", is_flag=True, help="All that is below, too.")
@at_option
@topic_option
@store_option
@json_option
def list_files(file: str, recursive: bool, at: int | None, topic: str, path: str, as_json: bool) -> None:
    """List a directory, or a file: size, time, path."""
    with opened(path, topic) as log:
        rows = list(_rows(seen(log, at), clean_path(file), recursive))
    if as_json:
        for row in rows:
            print_json(row)
        return
    made = table("size", "time", "path", right=("size",))
    for row in rows:
        size = size_text(row["size"]) if row["type"] == "file" else ""
        add_row(made, size, time_text(row["time"]), row["path"] + ("" if row["type"] == "file" else "/"))
    console().print(made)


def _rows(held: Snapshot, path: str, recursive: bool) -> Any:
    if held.nodes.get(path) is None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
    for at, node in held.nodes.walk(path):
        below = at[len(path) :].strip("/")
        is_file = isinstance(node, File)
        if (below or is_file) and (recursive or "/" not in below):
            told = {"path": at, "type": "file" if is_file else "directory", "time": node.time}
            yield told | ({"size": node.size, "id": node.id} if isinstance(node, File) else {})


@click.command()
@click.argument("file", metavar="PATH")
@at_option
@topic_option
@store_option
def cat(file: str, at: int | None, topic: str, path: str) -> None:
    """Write a file's bytes to standard output."""
    file = clean_path(file)
    with opened(path, topic) as log:
        node = seen(log, at).nodes.get(file)
        if not isinstance(node, File):
            number = errno.ENOENT if node is None else errno.EISDIR
            raise OSError(number, "No such file" if node is None else "Is a directory", file)
        for part in read_file(log, file, node):
            sys.stdout.buffer.write(part)


@click.command()
@click.argument("target", type=click.Path(file_okay=False))
@click.option("--path", "below", default="/", show_default=True, help="What to restore.")
@at_option
@topic_option
@store_option
def restore(target: str, below: str, at: int | None, topic: str, path: str) -> None:
    """Write a directory as it is, or was, as plain files into TARGET, which is empty or not there.

    Spark goes on from it: give the restored directory as checkpointLocation.
    """
    with opened(path, topic) as log:
        done = filetree.restore(log, seen(log, at), below, target)
    click.echo(f"{done.files:,} files in {done.directories:,} directories, {size_text(done.bytes)}: {target}")
