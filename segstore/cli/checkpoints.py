"""`segstore checkpoints`: lists, prints, restores and compares Spark's checkpoint directories that are kept
in a topic.

On disk: the store is only read. `restore` writes into the directory that the user names. Threads: one.
"""

from __future__ import annotations

import difflib
import errno
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from segstore.cli.options import json_option, store_option
from segstore.cli.output import add_row, console, print_json, size_text, table, time_text
from segstore.cli.place_first import PlaceFirst
from segstore.errors import OffsetOutOfRangeError

if TYPE_CHECKING:
    from segstore.filetree import TreeSnapshot
    from segstore.storage.store.partition_log import PartitionLog

# --- checkpoints options -----------------------------------------------------------------------

# The options of `segstore checkpoints`, and functions that read its topic.

F = TypeVar("F", bound=Callable[..., Any])


def topic_option(command: F) -> F:
    """Add the option --topic NAME. The command gets its value as the argument `topic`."""
    return click.option(
        "--topic",
        "-t",
        default="checkpoints",
        show_default=True,
        help="The topic that holds the checkpoints.",
    )(command)


def at_option(command: F) -> F:
    """Add the option --at OFFSET. The command gets its value as the argument `at`, or None, which means the
    latest offset.
    """
    return click.option(
        "--at",
        type=click.IntRange(0),
        metavar="OFFSET",
        help="Show the state as of this offset; by default the present one.",
    )(command)


@contextmanager
def opened(path: str, topic: str) -> Iterator[PartitionLog]:
    """Open the store for reading, and yield the topic's log. Raises StorageError,
    UnknownTopicOrPartitionError, ConfigError.
    """
    from segstore.cli.places.of_store import open_reading
    from segstore.filetree import files_log

    with open_reading(path) as store:
        yield files_log(store, topic)


def seen(log: PartitionLog, at: int | None) -> TreeSnapshot:
    """Return the file tree that the records before offset `at` describe, by default (None) all records.
    Raises OffsetOutOfRangeError. If compaction has removed records that this tree needs, the error's message
    says so.
    """
    from segstore.filetree import snapshot
    from segstore.storage.scans.scan import LATEST

    try:
        return snapshot(log, LATEST if at is None else at)
    except OffsetOutOfRangeError as error:
        if error.offset < error.start:
            error.args = (f"{error}: compaction has been at what was before",)
        raise


# --- checkpoints look --------------------------------------------------------------------------

# This section has the commands `segstore checkpoints ls`, `cat` and `restore`.


@click.command("ls")
@click.argument("file", metavar="[PATH]", default="/")
@click.option("--recursive", "-r", is_flag=True, help="List everything below, too.")
@at_option
@topic_option
@store_option
@json_option
def list_files(file: str, recursive: bool, at: int | None, topic: str, path: str, as_json: bool) -> None:
    """List a directory, or a file: size, time, path."""
    from segstore.filetree import clean_path

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


def _rows(tree: TreeSnapshot, path: str, recursive: bool) -> Any:
    from segstore.filetree import File

    if tree.nodes.get(path) is None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
    for at, node in tree.nodes.walk(path):
        below = at[len(path) :].strip("/")
        is_file = isinstance(node, File)
        if (below or is_file) and (recursive or "/" not in below):
            row = {"path": at, "type": "file" if is_file else "directory", "time": node.time}
            yield row | ({"size": node.size, "id": node.id} if isinstance(node, File) else {})


@click.command()
@click.argument("file", metavar="PATH")
@at_option
@topic_option
@store_option
def cat(file: str, at: int | None, topic: str, path: str) -> None:
    """Write a file's bytes to standard output."""
    from segstore.filetree import File, clean_path, read_file

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
@click.option("--path", "below", default="/", show_default=True, help="Directory to restore.")
@at_option
@topic_option
@store_option
def restore(target: str, below: str, at: int | None, topic: str, path: str) -> None:
    """Write a directory, in its present or an earlier state, as plain files into TARGET, which must be empty
    or missing.

    A query continues from that state if the restored directory is given as its checkpointLocation.
    """
    from segstore import filetree

    with opened(path, topic) as log:
        done = filetree.restore(log, seen(log, at), below, target)
    click.echo(f"{done.files:,} files in {done.directories:,} directories, {size_text(done.bytes)}: {target}")


# --- checkpoints changes -----------------------------------------------------------------------

# This section has the commands `segstore checkpoints diff` and `history`, which show changes: between two
# moments, or between two directories.

_MOST_TEXT = 1 << 20
DIFFERENT = 1


@click.command()
@click.argument("before")
@click.argument("after")
@click.option("--path", "below", default="/", show_default=True, help="Path to compare at two offsets.")
@topic_option
@store_option
@json_option
def diff(before: str, after: str, below: str, topic: str, path: str, as_json: bool) -> int:
    """Compare the states at two moments, given as offsets, or the present states of two paths.

    Lists added (+), removed (-) and changed (~) files, with the differing lines of text files. The exit
    status is 1 if anything differs.
    """
    from segstore.filetree import clean_path

    with opened(path, topic) as log:
        if before.isdecimal() and after.isdecimal():
            first, second = seen(log, int(before)), seen(log, int(after))
            sides = (first, clean_path(below)), (second, clean_path(below))
        else:
            now = seen(log, None)
            sides = (now, clean_path(before)), (now, clean_path(after))
        for held, root in sides[: 2 if sides[0][1] != sides[1][1] else 0]:
            if held.nodes.get(root) is None:
                raise click.BadParameter(f"{root!r}: no such path (or offset) in topic {topic!r}")
        rows = list(_differences(log, *sides))
    for row in rows:
        if as_json:
            print_json(row)
        else:
            _print(row)
    return DIFFERENT if rows else 0


Side = tuple["TreeSnapshot", str]


def _differences(log: PartitionLog, before: Side, after: Side) -> Iterator[dict[str, Any]]:
    from segstore.filetree import File, read_file

    old, new = _by_name(*before), _by_name(*after)
    for name in sorted(old.keys() | new.keys()):
        was, now = old.get(name), new.get(name)
        if was is None or now is None:
            node = was or now
            size = node.size if isinstance(node, File) else None
            yield {"path": name, "what": "added" if was is None else "removed", "size": size}
        elif isinstance(was, File) != isinstance(now, File):
            yield {"path": name, "what": "changed", "size": None}
        elif isinstance(was, File) and isinstance(now, File) and was.id != now.id:
            old_bytes, new_bytes = (b"".join(read_file(log, name, file)) for file in (was, now))
            if old_bytes != new_bytes:
                yield {
                    "path": name,
                    "what": "changed",
                    "size": now.size,
                    "lines": _lines(old_bytes, new_bytes),
                }


def _by_name(tree: TreeSnapshot, root: str) -> dict[str, Any]:
    return {path[len(root) :].strip("/") or "/": node for path, node in tree.nodes.walk(root)}


def _lines(before: bytes, after: bytes) -> list[str] | None:
    """Return the lines that differ in two files, or None if a file is not text or is too long."""
    if max(len(before), len(after)) > _MOST_TEXT or b"\0" in before + after:
        return None
    try:
        texts = before.decode().splitlines(), after.decode().splitlines()
    except UnicodeDecodeError:
        return None
    found = difflib.unified_diff(*texts, lineterm="", n=0)
    return [line for line in found if not line.startswith(("---", "+++", "@@"))]


def _print(row: dict[str, Any]) -> None:
    sign = {"added": "+", "removed": "-", "changed": "~"}[row["what"]]
    size = "" if row["size"] is None else f"  ({size_text(row['size'])})"
    click.echo(f"{sign} {row['path']}{size}")
    for line in row.get("lines") or ():
        click.echo(f"    {line}")


@click.command()
@click.argument("file", metavar="[PATH]", default="/")
@click.option("--from", "start", type=click.IntRange(0), metavar="OFFSET", help="Begin at this offset.")
@click.option("--to", "end", type=click.IntRange(0), metavar="OFFSET", help="End before this offset.")
@click.option("--all", "-a", "everything", is_flag=True, help="Show files under their temporary names, too.")
@topic_option
@store_option
@json_option
def history(
    file: str, start: int | None, end: int | None, everything: bool, topic: str, path: str, as_json: bool
) -> None:
    """List the changes at PATH and below it, oldest first, each with the offset for --at.

    Spark writes each file under a temporary name, then renames it: the rename is shown as the file's
    creation, unless --all is given.
    """
    from segstore import filetree
    from segstore.storage.scans.scan import EARLIEST, LATEST

    with opened(path, topic) as log:
        bounds = EARLIEST if start is None else start, LATEST if end is None else end
        changes = [c for c in filetree.history(log, file, *bounds) if everything or not _temporary(c.path)]
    if as_json:
        for change in changes:
            print_json(change._asdict())
        return
    made = table("offset", "time", "what", "size", "path", right=("offset", "size"))
    for change in changes:
        what, source = change.what, change.source
        if what == "rename" and _temporary(source) and not everything:
            what, source = "create", ""
        what = "replace" if change.replaced else what
        size = "" if what in ("mkdir", "delete") else size_text(change.size)
        shown = f"{source} -> {change.path}" if source else change.path
        add_row(made, change.offset, time_text(change.timestamp), what, size, shown)
    console().print(made)


def _temporary(path: str) -> bool:
    return path.rpartition("/")[2].startswith(".")


# --- checkpoints ------------------------------------------------------------


@click.group(cls=PlaceFirst, no_args_is_help=False)
def checkpoints() -> None:
    """Look into Spark's checkpoint directories, in their present and in earlier states.

    The directories are kept in a compacted topic (segstore.spark.checkpoints), so they can be shown as of
    each offset that compaction has not reached yet. `history` lists these offsets, and --at OFFSET chooses
    one. All commands work beside the live query. The store is given with --store after the command, or in
    SEGSTORE_PATH.
    """


for command in (list_files, cat, diff, history, restore):
    checkpoints.add_command(command)
