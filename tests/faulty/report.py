"""The table of docs/reliability.md: what tests have tried, and at least how often.

    cd tests && python -m faulty.report          # writes it anew from build/counts.json

A count that is the same in each run is told as it is; one that depends on a seed, a tenth lower and rounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCUMENT = Path("docs/reliability.md")
BEGIN, END = "<!-- counts: begin -->", "<!-- counts: end -->"

# What there is to count, in the table's order; those in DRAWN depend on the seed, or on time.
KINDS = {
    "operations": "operations run with faults and power cuts within them",
    "calls": "calls of those operations that change something on disk",
    "failed calls": "calls made to fail within them: ENOSPC, EDQUOT, EIO, reads, short counts, failed syncs",
    "interrupted calls": "reads and writes that were interrupted, or did half of what was asked",
    "states that a cut may leave": "different states that a power cut within them may leave",
    "power cuts": "of them opened, judged, appended to and checked",
    "second cuts": "with a second cut while the first was recovered",
    "simulation seeds": "seeds of the simulation",
    "simulation steps": "steps of the simulation, held against its model",
    "simulation mutations found": "defects put into the engine that the simulation finds",
    "processes killed": "processes killed by SIGKILL, at a named call or at any moment",
    "kills of a writer": "of them writers with settings drawn at random, verified by another process",
    "compaction model: seeds": "seeds of compaction against a dict, each with three kills",
    "fuzz: parsers": "parsers fuzzed",
    "fuzz: inputs": "inputs that they got",
    "fuzz: batches read by two decoders": "of them read by two decoders, the native and the plain one",
    "hostile: entries": "things in a store that somebody else put there",
    "hostile: operations": "operations on such stores",
}
DRAWN = {
    "calls", "failed calls", "interrupted calls", "states that a cut may leave", "power cuts", "second cuts",
    "simulation steps", "processes killed",
}  # fmt: skip

Counts = Mapping[str, Mapping[str, int]]


class Row(NamedTuple):
    """At least `least` of `kind`, by these test files."""

    kind: str
    least: int
    files: frozenset[str]

    def wrong(self, counts: Counts) -> str:
        """Nothing, or what there is less of than was said."""
        found = sum(counts.get(file, {}).get(self.kind, 0) for file in self.files)
        return "" if found >= self.least else f"{KINDS[self.kind]}: {found:,}, not {self.least:,}"

    def __str__(self) -> str:
        names = ", ".join(sorted(file.removeprefix("tests/").removesuffix(".py") for file in self.files))
        return f"| {KINDS[self.kind]} | {self.least:,} | {names} |"


def rows(text: str) -> list[Row]:
    """Of the document's table."""
    table = text.partition(BEGIN)[2].partition(END)[0]
    kinds = {words: kind for kind, words in KINDS.items()}
    found = re.findall(r"^\| (.+) \| ([\d,]+) \| (.+) \|$", table, re.MULTILINE)
    return [
        Row(
            kinds[words], int(n.replace(",", "")), frozenset(f"tests/{file}.py" for file in files.split(", "))
        )
        for words, n, files in found
    ]


def least(kind: str, n: int) -> int:
    """What may be promised of a kind that was counted once."""
    if kind not in DRAWN:
        return n
    n = n * 9 // 10
    unit = 10 ** max(len(str(n)) - 2, 0)
    return n // unit * unit


def made(counts: Counts) -> list[Row]:
    """The rows that these counts allow."""
    result = []
    for kind in KINDS:
        files = frozenset(file for file, kinds in counts.items() if kinds.get(kind))
        if files:
            result.append(Row(kind, least(kind, sum(counts[file][kind] for file in files)), files))
    return result


def written(text: str, found: list[Row]) -> str:
    """The document with another table."""
    head, tail = text.partition(BEGIN)[0], text.partition(END)[2]
    lines = ["| what | at least | by tests/ |", "|---|--:|---|", *map(str, found)]
    return head + BEGIN + "\n" + "\n".join(lines) + "\n" + END + tail


def main() -> None:
    counts = json.loads((ROOT / "build" / "counts.json").read_text())
    counts = {file: kinds for file, kinds in counts.items() if (ROOT / file).exists()}
    path = ROOT / DOCUMENT
    path.write_text(written(path.read_text(encoding="utf-8"), made(counts)), encoding="utf-8")
    print(f"{DOCUMENT}: of {len(counts)} test files that ran whole")


if __name__ == "__main__":
    main()
