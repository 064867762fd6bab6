"""Writes the figures in docs/choosing.md: columns of the table of peers in docs/benchmarks.md.

Usage: `.venv/bin/python tools/choosing_table.py`. On disk: docs/choosing.md, between its markers;
tests/docs/test_choosing.py holds that they are the same.
"""

from __future__ import annotations

import re
from pathlib import Path

from client_settings import between, row

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "choosing.md"
RESULTS = ROOT / "docs" / "benchmarks.md"
STORES = ("segstore", "segstore, columns", "LMDB", "SQLite", "RocksDB", "persist-queue", "Kafka")
COLUMNS = {
    "append, records/s": "append in bulk, records/s",
    "append by 1, records/s": "one by one, records/s",
    "durable by 1, records/s": "durable one by one, records/s",
    "scan, records/s": "scan, records/s",
    "point read, p50 µs": "point read, p50 µs",
    "tail follow, other process, p50 µs": "another process sees it after, p50 µs",
}


def peers(results: str) -> str:
    """The table. ValueError if the page has no such table, store or column."""
    found = re.search(r"^\| values of 100 bytes \|.*?\n\n", results, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError("docs/benchmarks.md has no table of values of 100 bytes")
    head, _, *lines = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in found[0].split("\n") if line
    )
    at = {cells[0]: cells for cells in lines}
    made = [row("", *COLUMNS.values()), "|---|" + "--:|" * len(COLUMNS)]
    for store in STORES:
        figures = [re.sub(r"\*\*| ±\d+%", "", at[store][head.index(column)]) for column in COLUMNS]
        made.append(row(store, *figures))
    return "\n".join(made)


def page(text: str, results: str) -> str:
    """The page with its table as it should be."""
    return between("<!-- peers -->", "<!-- end of peers -->", text, peers(results))


if __name__ == "__main__":
    table = page(PAGE.read_text(encoding="utf-8"), RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(table, encoding="utf-8")
