"""The table of the copies that the literature states for each method, beside the system calls that were
counted.

Threads: any.

A process can count its calls, each of which enters the kernel once and leaves it once. It can't count copies:
their numbers are from the literature, and the CPU time of each method is the evidence for them. DMA copies
(disk to page cache, memory to network card) are made by the devices; over loopback, from a warm page cache,
there are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from segstore.bench.results import ClaimFinding, Results
from segstore.bench.terminal import number_text
from segstore.bench.zero_copy.claims import name
from segstore.bench.zero_copy.measure import CPU
from segstore.bench.zero_copy.plan import BARE, KIB


class CopiesRow(NamedTuple):
    """A row of the literature's table: copies by the CPU and by devices, and the calls of a transfer."""

    way: str
    method: str
    cpu_copies: int
    dma_copies: int
    calls: tuple[str, ...]

    @property
    def switches(self) -> int:
        """Return the number of switches between user and kernel mode: each call is one switch into the kernel
        and one out of it.
        """
        return 2 * len(self.calls)


TABLE = (
    CopiesRow("read + write", "read", 2, 2, ("read", "write")),
    CopiesRow("mmap + write", "mmap", 1, 2, ("mmap", "write")),
    CopiesRow("sendfile", "sendfile", 1, 2, ("sendfile",)),
    CopiesRow("sendfile + DMA gather", "sendfile", 0, 2, ("sendfile",)),
    CopiesRow("splice", "splice", 0, 2, ("splice",)),
)
SAME_CALLS = {"pread64": "read"}
"""A pread64, which is a read at a position, counts as a read."""
HEADINGS = ("way", "CPU copies", "DMA copies", "calls", "switches")
"""The headings of the first columns of `rows`. For each sink a column with its counted switches follows."""


def rows(results: Results) -> list[list[str]]:
    """Return a row of texts for each row of TABLE: the literature's columns, then the counted switches for
    each sink.
    """
    size, table = table_size(results), []
    for row in TABLE:
        cells = [counted(results, sink, row.method, size) for sink in results.values("sink")]
        if any(cells):
            stated = [
                row.way,
                str(row.cpu_copies),
                str(row.dma_copies),
                ", ".join(row.calls),
                str(row.switches),
            ]
            table.append([*stated, *(f"{2 * sum(calls.values()):g}" if calls else "" for calls in cells)])
    return table


def table_size(results: Results) -> int:
    """Return the size for which the table is made: 64 KiB, or the nearest measured size."""
    return int(min(results.values("size"), key=lambda one: abs(one - 64 * KIB)))


def counted(results: Results, sink: str, method: str, size: int) -> Mapping[str, float] | None:
    """Return the number of system calls of one bare transfer, by name; None if the transfer was not
    measured.
    """
    for cell in results.where(way=BARE, sink=sink, method=method, size=size):
        return dict(cell.notes["calls"])
    return None


def calls_text(calls: Mapping[str, float]) -> str:
    """Return the calls as text, such as "1 pread64, 1 write"."""
    return ", ".join(f"{n if n % 1 else int(n)} {call}" for call, n in calls.items())


def copy_table(results: Results) -> ClaimFinding:
    """Return a finding that compares the counted calls with the literature, and shows the CPU time as
    evidence for copies.
    """
    size, said = table_size(results), []
    for sink in results.values("sink"):
        differs = {}
        for row in TABLE:
            calls = counted(results, sink, row.method, size)
            if calls is not None and not _has_calls_of(calls, row):
                differs[row.method] = f"{row.method} makes {calls_text(calls)} in place of {_calls_of(row)}"
        said.append(f"{sink}: " + ("; ".join(differs.values()) if differs else "the calls are as told"))
    head = f"Calls of one transfer of {name(size)}, without the engine's look-up:\n"
    return ClaimFinding(
        "The copies, calls and switches of read + write, mmap + write, sendfile and splice",
        head + "\n".join(said) + "\n" + _witness(results, size),
    )


def _has_calls_of(calls: Mapping[str, float], row: CopiesRow) -> bool:
    return {SAME_CALLS.get(call, call): n for call, n in calls.items()} == dict.fromkeys(row.calls, 1)


def _calls_of(row: CopiesRow) -> str:
    return ", ".join(f"1 {call}" for call in row.calls)


def _witness(results: Results, size: int) -> str:
    parts = []
    for sink in results.values("sink"):
        keys = {"way": BARE, "sink": sink, "size": size, "cache": "warm"}
        methods = dict.fromkeys(row.method for row in TABLE)
        cells = {method: cell for method in methods for cell in results.where(method=method, **keys)}
        if cells:
            cpu = ", ".join(f"{m} {number_text(c.figures[CPU].median)}" for m, c in cells.items())
            parts.append(f"{sink}: {cpu}")
    text = "Copies are as told: a process can't count them. Their witness, the sender's CPU in s/GB: "
    return text + "; ".join(parts) + "."
