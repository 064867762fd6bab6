"""Makes the table of docs/reliability.md: what the tests of `make test-all` try, and how often at least.

    cd tests/support && python -m faulty.report          # writes it anew from build/counts.json
    cd tests/support && python -m faulty.report --check  # holds build/counts.json to it

The table promises a tenth less than what was counted, rounded, since draws and time change the counts. A few
counts are the same in each run, and are given exactly.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from places import REPOSITORY

DOCUMENT = Path("docs/reliability.md")
WRITTEN = Path("build/counts.json")
WHOLE = (["all"], ["test", "rest"])
"""Tiers that together have all tests."""
BEGIN, END = "<!-- counts: begin -->", "<!-- counts: end -->"

# The kinds that are counted, in the table's order.
KINDS = {
    "operations": "operations run with faults and power cuts within them",
    "calls": "calls of those operations that change something on disk",
    "failed calls": "calls made to fail within them: ENOSPC, EDQUOT, EIO, reads, short counts, failed syncs",
    "interrupted calls": "reads and writes that were interrupted, or did half of what was asked",
    "states that a cut may leave": "different states that a power cut within them may leave",
    "power cuts": "of them opened, judged, appended to and checked",
    "second cuts": "with a second cut while the first was recovered",
    "recorded programs": "programs that are recorded below the C of the engine",
    "recorded calls": "calls and stores to mappings in these recordings",
    "recorded power cuts": "states that a power cut within them may leave: opened and judged",
    "recorded second cuts": "of them with a second cut while the first was recovered",
    "planted bugs found": "bugs planted in the recorded engine that are found",
    "simulation seeds": "seeds of the simulation",
    "simulation steps": "steps of the simulation, held against its model",
    "simulation mutations found": "defects put into the engine that the simulation finds",
    "replicated simulation seeds": "seeds of the simulation of replicas",
    "replicated simulation steps": "steps of the simulation of replicas, held against what was told",
    "replicated simulation mutations found": "defects put into shell and engine of replicas that it finds",
    "log oracle: operations": "operations on a log, held against a plain oracle of its files and answers",
    "log oracle: by C": "of them appends by C",
    "processes killed": "processes killed by SIGKILL, at a named call or at any moment",
    "kills of a writer": "of them writers with settings drawn at random, verified by another process",
    "compaction model: seeds": "seeds of compaction against a dict, each with three kills",
    "fuzz: parsers": "parsers fuzzed",
    "fuzz: inputs": "inputs that they got",
    "fuzz: batches read by two decoders": "of them read by two decoders, the native and the plain one",
    "hostile: entries": "things in a store that somebody else put there",
    "hostile: operations": "operations on such stores",
}
SAME = {
    *("simulation seeds", "simulation mutations found", "compaction model: seeds", "fuzz: parsers"),
    *("replicated simulation seeds", "replicated simulation mutations found"),
    *("recorded programs", "planted bugs found", "log oracle: operations"),
}
"""The kinds whose counts are the same in each run: the number is in the source of a test."""

Counts = Mapping[str, Mapping[str, int]]


class Run(NamedTuple):
    """The counts of runs of these tiers, by test file, and the files in which not all tests passed."""

    counts: Counts
    incomplete: set[str]
    tiers: list[str] = []  # noqa: RUF012

    @classmethod
    def read(cls, path: Path) -> Run:
        held = json.loads(path.read_text())
        return cls(held["counts"], set(held["incomplete"]), held["tiers"])

    def plain(self) -> dict[str, Any]:
        return {"tiers": self.tiers, "counts": self.counts, "incomplete": sorted(self.incomplete)}

    def __add__(self, other: Run) -> Run:  # type: ignore[override]
        both = {file: Counter(self.counts.get(file)) for file in self.counts.keys() | other.counts.keys()}
        for file, kinds in other.counts.items():
            both[file].update(kinds)
        return Run({file: dict(kinds) for file, kinds in both.items()}, self.incomplete | other.incomplete)


class Row(NamedTuple):
    """A row of the table: these test files try `kind` at least `least` times."""

    kind: str
    least: int
    files: frozenset[str]

    def wrong(self, counts: Counts) -> str:
        """Return "", or a message if fewer were counted than the row promises."""
        found = sum(counts.get(file, {}).get(self.kind, 0) for file in self.files)
        return "" if found >= self.least else f"{KINDS[self.kind]}: {found:,}, not {self.least:,}"

    def __str__(self) -> str:
        names = ", ".join(sorted(file.removeprefix("tests/").removesuffix(".py") for file in self.files))
        return f"| {KINDS[self.kind]} | {self.least:,} | {names} |"


def rows(text: str) -> list[Row]:
    """Return the rows of the document's table."""
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
    """Return the number to promise for a kind of which one run counted `n`."""
    if kind in SAME:
        return n
    n = n * 9 // 10
    unit = 10 ** max(len(str(n)) - 2, 0)
    return n // unit * unit


def made(counts: Counts) -> list[Row]:
    """Return the rows that these counts support."""
    result = []
    for kind in KINDS:
        files = frozenset(file for file, kinds in counts.items() if kinds.get(kind))
        if files:
            result.append(Row(kind, least(kind, sum(counts[file][kind] for file in files)), files))
    return result


def written(text: str, found: list[Row]) -> str:
    """Return the document with a new table."""
    head, tail = text.partition(BEGIN)[0], text.partition(END)[2]
    lines = ["| what | at least | by tests/ |", "|---|--:|---|", *map(str, found)]
    return head + BEGIN + "\n" + "\n".join(lines) + "\n" + END + tail


def missed(found: Sequence[Row], run: Run) -> list[str]:
    """Return messages for the rows of which fewer were counted, except rows with tests that were skipped or
    failed.
    """
    judged = [row for row in found if not row.files & run.incomplete]
    return [said for row in judged if (said := row.wrong(run.counts))]


def main(arguments: Sequence[str]) -> str | None:
    """Return a message if something is wrong, or None."""
    if not (REPOSITORY / WRITTEN).exists() or (run := Run.read(REPOSITORY / WRITTEN)).tiers not in WHOLE:
        return f"{WRITTEN} is not of all tests: run `make test-all` first"
    path = REPOSITORY / DOCUMENT
    text = path.read_text(encoding="utf-8")
    if "--check" in arguments:
        return "\n".join(missed(rows(text), run)) or None
    if run.incomplete:
        return "tests failed or were skipped, and their counts are missing: " + ", ".join(
            sorted(run.incomplete)
        )
    path.write_text(written(text, made(run.counts)), encoding="utf-8")
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
