"""Prints the rows of `dump`: as tables, or as lines with a JSON object each. Makes the rows of index files,
producer snapshots and checkpoints.

On disk: the files to print are only read. Threads: one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore import names
from segstore.cli.output import add_row, console, print_json, shown, styled, table, time_text
from segstore.errors import CorruptCheckpointError
from segstore.files import Files
from segstore.index import OffsetIndex, TimeIndex, txn_index
from segstore.index.sparse import MOST, SparseIndex
from segstore.storage.meta.offset_checkpoints import parse_leader_epochs, parse_offsets
from segstore.storage.producers.producer_state import SnapshotEntry, parse_snapshot

if TYPE_CHECKING:
    from rich.table import Table

PAGE = 1000
"""The largest number of rows of a table. A file may have millions of rows, so its rows are printed as several
tables.
"""

ABSENT: tuple[Any, ...] = (-1, "", None, [])
"""Values that mean "none". If all cells of a column have such values, the column is left out of the table."""


@dataclass(frozen=True)
class DumpRow:
    """A row of the output, which describes an entry of a file, such as a batch or an index entry.

    `cells` has the values by name. Values whose names contain "timestamp" are in ms. `damage` describes the
    damage of the entry, or of bytes that are not an entry. `brief` has fewer cells than `cells`, for a table
    that fits a terminal.
    """

    kind: str
    cells: dict[str, Any] = field(default_factory=dict)
    damage: str | None = None
    brief: dict[str, Any] | None = None

    def as_json(self, path: str) -> dict[str, Any]:
        row = {"file": path, "type": self.kind, **self.cells}
        return row if self.damage is None else {**row, "damage": self.damage}


def print_rows(path: str, rows: Iterable[DumpRow], as_json: bool) -> bool:
    """Print a file's rows, and return whether a row has damage."""
    return _print_json(path, rows) if as_json else _print_tables(path, rows)


def _print_json(path: str, rows: Iterable[DumpRow]) -> bool:
    damaged = False
    for row in rows:
        print_json(row.as_json(path))
        damaged |= row.damage is not None
    return damaged


def _print_tables(path: str, rows: Iterable[DumpRow]) -> bool:
    out = console()
    out.print(styled(path, style="bold"))
    damaged, empty = False, True
    for kind, group in groupby(rows, lambda row: (row.kind, tuple(row.cells))):
        for page in _pages(group):
            empty = False
            if page[0].cells and kind[0] != "damage":
                out.print(_table(page))
            for row in page:
                if row.damage is not None:
                    damaged = True
                    out.print(styled(f"  {_where(row)}{row.damage}", style="bold red"))
                elif not row.cells:
                    out.print(styled(f"  {kind[0]}", style="dim"))
    if empty:
        out.print(styled("  empty\n", style="dim"))
    return damaged


def _pages(rows: Iterator[DumpRow]) -> Iterator[list[DumpRow]]:
    page: list[DumpRow] = []
    for row in rows:
        page.append(row)
        if len(page) == PAGE:
            yield page
            page = []
    if page:
        yield page


def _table(rows: list[DumpRow]) -> Table:
    cells = [row.brief or row.cells for row in rows]
    columns = [c for c in cells[0] if any(held[c] not in ABSENT for held in cells)]
    numbers = tuple(c for c in columns if isinstance(cells[0][c], int) and "timestamp" not in c)
    made = table(*(c.replace("_", " ") for c in columns), right=tuple(c.replace("_", " ") for c in numbers))
    for row, held in zip(rows, cells, strict=True):
        add_row(made, *(_cell(c, held[c]) for c in columns), style="red" if row.damage else None)
    return made


def _cell(name: str, value: Any) -> str:
    if "timestamp" in name and isinstance(value, int):
        return time_text(value)
    return str(value) if isinstance(value, int) else shown(value)


def _where(row: DumpRow) -> str:
    return "".join(
        f"{name} {row.cells[name]}: " for name in ("position", "entry", "line") if name in row.cells
    )


# --- dump small --------------------------------------------------------------------------------

# The functions of this section make the rows of indexes, producer snapshots and checkpoints.

LIMIT = 1 << 31


def base_offset_of(path: str) -> int:
    """Return the base offset in a file's name, 0 if the name has none."""
    parsed = names.parse_segment_file(os.path.basename(path))
    return 0 if parsed is None else parsed[0]


def dump_offset_index(files: Files, path: str) -> Iterator[DumpRow]:
    """Yield a row for each entry of an offset index. An entry has the last offset of a batch, and the
    position of this batch in the log file.
    """
    base = base_offset_of(path)
    for entry in _entries(files, path, OffsetIndex, _log_size(files, path)):
        relative, position = entry.fields
        yield entry.row({"offset": base + relative, "position": position})
    yield from _behind(files, path, OffsetIndex)


def dump_time_index(files: Files, path: str) -> Iterator[DumpRow]:
    """Yield a row for each entry of a time index. An entry has the largest timestamp of all batches up to a
    batch, and the last offset of the batch that has this timestamp.
    """
    base = base_offset_of(path)
    for entry in _entries(files, path, TimeIndex, MOST):
        stamp, relative = entry.fields
        yield entry.row({"timestamp": stamp, "offset": base + relative})
    yield from _behind(files, path, TimeIndex)


class _Entry(NamedTuple):
    number: int
    fields: tuple[int, int]
    valid: bool

    def row(self, cells: dict[str, Any]) -> DumpRow:
        return DumpRow(
            "entry",
            {"entry": self.number, **cells},
            None if self.valid else "out of order, or points outside the log",
        )


def _entries(files: Files, path: str, kind: type[SparseIndex], log_size: int) -> Iterator[_Entry]:
    """Yield the entries before the preallocated zeros. An entry is valid only if all entries before it are
    valid.
    """
    data = files.read_file(path, LIMIT)
    valid = kind.valid_entries(data, MOST, log_size) if data else 0
    found = kind.parse(data[: max(_used(data, kind), valid * kind.ENTRY.size)])
    for number, fields in enumerate(found):
        yield _Entry(number, fields, number < valid)


def _used(data: bytes, kind: type[SparseIndex]) -> int:
    """Return the number of bytes before the zeros at the end, rounded up to whole entries."""
    return -(-len(data.rstrip(b"\0")) // kind.ENTRY.size) * kind.ENTRY.size


def _behind(files: Files, path: str, kind: type[SparseIndex]) -> Iterator[DumpRow]:
    """If there are bytes after the entries (preallocated zeros for two or more entries, or an incomplete
    entry), yield a row for them.
    """
    data = files.read_file(path, LIMIT)
    used = _used(data, kind)
    if used > len(data):
        extra = len(data) % kind.ENTRY.size
        yield DumpRow(
            "damage", {"position": len(data) - extra, "reason": "cut off"}, f"{extra} bytes are no entry"
        )
    elif len(data) - used >= 2 * kind.ENTRY.size:
        yield DumpRow("allocated", {"position": used, "zero_bytes": len(data) - used})


def _log_size(files: Files, path: str) -> int:
    log = path.removesuffix(names.INDEX) + names.LOG
    return files.size(log) if path.endswith(names.INDEX) and files.exists(log) else MOST


def dump_txn_index(files: Files, path: str) -> Iterator[DumpRow]:
    """Yield a row for each aborted transaction in a transaction index."""
    data = files.read_file(path)
    found = txn_index.parse(data, base_offset_of(path))
    fields = txn_index.AbortedTxn._fields
    for entry, values in enumerate(found[list(fields)].tolist()):
        yield DumpRow("aborted", {"entry": entry, **dict(zip(fields, values, strict=True))})
    if (good := len(found) * txn_index.ENTRY_SIZE) != len(data):
        reason = "no entry of an aborted transaction"
        yield DumpRow("damage", {"position": good, "reason": reason}, reason)


def dump_snapshot(files: Files, path: str) -> Iterator[DumpRow]:
    """Yield a row for each producer in a producer snapshot."""
    try:
        entries = parse_snapshot(files.read_file(path), path)
    except CorruptCheckpointError as error:
        yield _damage(error)
        return
    for entry in entries:
        yield DumpRow("producer", dict(zip(SnapshotEntry._fields, entry, strict=True)))


def dump_epochs(files: Files, path: str) -> Iterator[DumpRow]:
    """Yield a row for each leader epoch in a `leader-epoch-checkpoint`, with its start offset."""
    try:
        entries = parse_leader_epochs(files.read_file(path), path)
    except CorruptCheckpointError as error:
        yield _damage(error)
        return
    for epoch, start in entries:
        yield DumpRow("leader epoch", {"leader_epoch": epoch, "start_offset": start})


def dump_offsets(files: Files, path: str) -> Iterator[DumpRow]:
    """Yield a row for each partition in a checkpoint, with its offset."""
    try:
        entries = parse_offsets(files.read_file(path), path)
    except CorruptCheckpointError as error:
        yield _damage(error)
        return
    for (topic, partition), offset in entries.items():
        yield DumpRow("checkpoint", {"topic": topic, "partition": partition, "offset": offset})


def _damage(error: CorruptCheckpointError) -> DumpRow:
    place = {"line": error.line} if error.line else {}
    return DumpRow("damage", {**place, "reason": error.reason}, error.reason)


SMALL: dict[str, Callable[[Files, str], Iterator[DumpRow]]] = {
    names.INDEX: dump_offset_index,
    names.TIME_INDEX: dump_time_index,
    names.TXN_INDEX: dump_txn_index,
    names.SNAPSHOT: dump_snapshot,
}
