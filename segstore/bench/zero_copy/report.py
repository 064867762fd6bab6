"""Makes results of what was measured: cells, and what they say to people's claims. Nothing on disk.
Threads: any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from segstore.bench.machine import machine
from segstore.bench.results import Cell, Finding, Results
from segstore.bench.zero_copy.cells import Contender, Group, Plan
from segstore.bench.zero_copy.choices import recommended, what_auto_takes
from segstore.bench.zero_copy.claims import against_bare_loop, cpu_against_read, name, small_and_large
from segstore.bench.zero_copy.compare import marked, who_wins
from segstore.bench.zero_copy.copies import calls_text, copy_table
from segstore.bench.zero_copy.counting import Counts
from segstore.bench.zero_copy.measure import figures
from segstore.bench.zero_copy.passes import Measured
from segstore.bench.zero_copy.syscalls import Judged
from segstore.bench.zero_copy.wins import MARGIN

NAME = "zero-copy"
QUESTION = "Which way brings a log's bytes to a socket, pipe or file soonest, and with the least work?"
Counted = Mapping[tuple[Group, Contender], Counts]


def results(
    directory: str,
    plan: Plan,
    groups: Sequence[Measured],
    counted: Counted,
    judged: Mapping[tuple[str, str], Judged] | str,
    missing: Mapping[str, str],
) -> Results:
    """`judged`: by sink and method, or why strace could not."""
    settings = {**asdict(plan), "margin": MARGIN, "unavailable": dict(missing)}
    cells = [cell for group in groups for cell in _cells(group, counted)]
    found = marked(Results(NAME, QUESTION, machine(directory, ["segstore"]), settings, cells))
    settings["recommended"] = recommended(found)
    return replace(found, findings=_findings(found, counted, judged, missing))


def _cells(of: Measured, counted: Counted) -> list[Cell]:
    return [_cell(of, contender, counted.get((of.group, contender))) for contender in of.ready]


def _cell(of: Measured, contender: Contender, counts: Counts | None) -> Cell:
    keys = {"way": contender.way, **of.group._asdict(), "method": contender.method}
    samples = of.samples[contender]
    notes: dict[str, Any] = {"transfers": of.count}
    if counts is not None:
        notes["calls"] = dict(counts.calls)
        notes["calls per MB"] = counts.per_mb(of.group.size)
    if of.not_cold[contender]:
        notes["not cold"] = of.not_cold[contender]
    return Cell(keys, figures(samples) if samples else {}, notes)


def _findings(
    found: Results,
    counted: Counted,
    judged: Mapping[tuple[str, str], Judged] | str,
    missing: Mapping[str, str],
) -> list[Finding]:
    return [
        who_wins(found),
        small_and_large(found),
        copy_table(found),
        cpu_against_read(found),
        against_bare_loop(found),
        what_auto_takes(found),
        zerocopy(counted, missing),
        calls_judged(judged),
        cold_enough(found),
    ]


def zerocopy(counted: Counted, missing: Mapping[str, str]) -> Finding:
    """What the kernel's own notices say of MSG_ZEROCOPY over loopback."""
    notices = sum(counts.notices for counts in counted.values())
    copied = sum(counts.copied for counts in counted.values())
    if "zerocopy" in missing:
        said = f"Not available here: {missing['zerocopy']}."
    elif not notices:
        said = "Not measured."
    elif copied == notices:
        said = (
            f"Not over loopback, which always copies: all {notices:,} notices that the kernel gave said that "
            "it had copied after all. What it costs is seen here; what it gains, only a network card shows."
        )
    else:
        said = f"Of {notices:,} notices that the kernel gave, {copied:,} said that it had copied after all."
    return Finding("MSG_ZEROCOPY sends without a copy", said)


def calls_judged(judged: Mapping[tuple[str, str], Judged] | str) -> Finding:
    """Whether strace counted the same system calls."""
    claim = "The system calls are as strace counts them"
    if isinstance(judged, str):
        return Finding(claim, f"Not judged: {judged}.")
    wrong = [
        f"{method} to {sink}: {calls_text(one.counted)} were counted, strace saw {calls_text(one.traced)}"
        for (sink, method), one in judged.items()
        if one.counted != one.traced
    ]
    alike = f"The same for {len(judged) - len(wrong)} of {len(judged)} pairs of method and sink."
    return Finding(claim, "\n".join([alike, *wrong]))


def cold_enough(found: Results) -> Finding:
    """Which runs were left out, as pages would not leave the cache."""
    warm = {
        f"{name(cell.keys['size'])} to {cell.keys['sink']} by {cell.keys['method']}": cell.notes["not cold"]
        for cell in found.where(cache="cold")
        if "not cold" in cell.notes
    }
    if not found.where(cache="cold"):
        said = "Not measured."
    elif warm:
        runs = ", ".join(f"{where} ({n})" for where, n in warm.items())
        said = f"mincore said otherwise before these runs, which were left out: {runs}."
    else:
        said = "mincore said so before every run."
    return Finding("Before a cold run no page of the log is in the page cache", said)
