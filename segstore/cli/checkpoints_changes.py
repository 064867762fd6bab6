"""`segstore checkpoints diff|history`: what changed, between two moments or two directories. On disk: reads
the store. Threads: one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

import rich_click as click

from segstore import filetree
from segstore.cli.checkpoints_options import opened, seen, topic_option
from segstore.cli.options import json_option, store_option
from segstore.cli.output import add_row, console, print_json, size_text, table, time_text
from segstore.filetree import File, Snapshot, clean_path, read_file
from segstore.storage.store.partition_log import PartitionLog

_MOST_TEXT = 1 << 20
DIFFERENT = 1


@click.command()
@click.argument("before")
@click.argument("after")
@click.option("--path", "below", default="/", show_default=True, help="Of two offsets: what to compare.")
@topic_option
@store_option
@json_option
def diff(before: str, after: str, below: str, topic: str, path: str, as_json: bool) -> int:
    """Compare two moments, given as offsets, or two paths as they are now.

    Lists what was added (+), removed (-) and changed (~), with the lines that differ of files that are text.
    Exit status 1 where anything differs.
    """
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


Side = tuple[Snapshot, str]


def _differences(log: PartitionLog, before: Side, after: Side) -> Iterator[dict[str, Any]]:
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
            one, two = (b"".join(read_file(log, name, file)) for file in (was, now))
            if one != two:
                yield {"path": name, "what": "changed", "size": now.size, "lines": _lines(one, two)}


def _by_name(held: Snapshot, root: str) -> dict[str, Any]:
    return {path[len(root) :].strip("/") or "/": node for path, node in held.nodes.walk(root)}


def _lines(one: bytes, two: bytes) -> list[str] | None:
    """Those that differ; None where a file is no text, or long."""
    if max(len(one), len(two)) > _MOST_TEXT or b"\0" in one + two:
        return None
    try:
        texts = one.decode().splitlines(), two.decode().splitlines()
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
@click.option("--from", "start", type=click.IntRange(0), metavar="OFFSET", help="From this offset on.")
@click.option("--to", "end", type=click.IntRange(0), metavar="OFFSET", help="Up to this offset.")
@click.option("--all", "-a", "everything", is_flag=True, help="Files under their temporary names, too.")
@topic_option
@store_option
@json_option
def history(
    file: str, start: int | None, end: int | None, everything: bool, topic: str, path: str, as_json: bool
) -> None:
    """List what was done at PATH and below it, oldest first, with the offset to look at it by --at.

    Spark writes each file under a temporary name, then renames it: that is shown as the file's creation,
    unless --all is given.
    """
    with opened(path, topic) as log:
        changes = [c for c in filetree.history(log, file, start, end) if everything or not _temporary(c.path)]
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
