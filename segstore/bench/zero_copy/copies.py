"""A table with the numbers of copies that the literature states for each method, and with the numbers of
system calls that were counted. Threads: any.

A process can count its system calls. Each call enters the kernel once and leaves the kernel once. A process
can't count copies: the numbers of copies are from the literature, and the CPU time of each method is only
evidence for them. Devices make the DMA copies (from disk to page cache, from memory to network card). If the
page cache is warm and the network is loopback, there are no DMA copies.
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
    """A row of the literature's table: the numbers of copies by the CPU and by devices, and the system calls
    of a transfer.
    """

    way: str
    method: str
    cpu_copies: int
    dma_copies: int
    calls: tuple[str, ...]

    @property
    def switches(self) -> int:
        """Return the number of switches between user and kernel mode: each system call is one switch into the
        kernel and one switch out of the kernel.
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
"""System call -> the call in TABLE as which it counts. (A pread64 is a read at a position.)"""
HEADINGS = ("way", "CPU copies", "DMA copies", "calls", "switches")
"""The headings of the first columns of `rows`. After them there is one column for each sink, with the
switches that were counted.
"""


def rows(results: Results) -> list[list[str]]:
    """Return a list of texts for each row of TABLE that was measured: the literature's columns, then the
    counted switches for each sink.
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
    """Return name of a system call -> number of calls in one bare transfer. Return None if such a transfer
    was not measured.
    """
    for cell in results.where(way=BARE, sink=sink, method=method, size=size):
        return dict(cell.notes["calls"])
    return None


def calls_text(calls: Mapping[str, float]) -> str:
    """Return the numbers of system calls as text, such as "1 pread64, 1 write"."""
    return ", ".join(f"{n if n % 1 else int(n)} {call}" for call, n in calls.items())


def copy_table(results: Results) -> ClaimFinding:
    """Return a finding that compares the counted system calls with the literature, and has the CPU times as
    evidence for the copies.
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
