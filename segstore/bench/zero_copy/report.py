"""Makes the results of the measurement (cells, and answers to common claims), and shows results as tables and
pictures. On disk: writes pictures into the caller's directory. Threads: any; only one may draw.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from segstore.bench.figures import Figure
from segstore.bench.plots import label, lines, panels, save, ticks
from segstore.bench.results import Cell, ClaimFinding, Results, machine
from segstore.bench.terminal import findings, machine_text, number_text
from segstore.bench.zero_copy.claims import (
    MARGIN,
    against_bare_loop,
    contenders,
    cpu_against_read,
    marked,
    name,
    recommended,
    small_and_large,
    what_auto_takes,
    who_wins,
    win,
)
from segstore.bench.zero_copy.contenders import EXHIBITS, ZEROCOPY
from segstore.bench.zero_copy.copies import HEADINGS, calls_text, copy_table, rows, table_size
from segstore.bench.zero_copy.measure import CPU, THROUGHPUT, MeasuredGroup, figures
from segstore.bench.zero_copy.plan import BARE, LOG, Contender, ContenderGroup, MeasurementPlan
from segstore.bench.zero_copy.syscalls import Judged, SyscallCounts

NAME = "zero-copy"
QUESTION = "Which way brings a log's bytes to a socket, pipe or file soonest, and with the least work?"
Counted = Mapping[tuple[ContenderGroup, Contender], SyscallCounts]


def results(
    directory: str,
    plan: MeasurementPlan,
    groups: Sequence[MeasuredGroup],
    counted: Counted,
    judged: Mapping[tuple[str, str], Judged] | str,
    missing: Mapping[str, str],
) -> Results:
    """Return the results of a measurement. `judged` is (sink, method) -> the counts by `CountedFiles` and by
    strace, or the reason why strace has not counted.
    """
    settings = {**asdict(plan), "margin": MARGIN, "unavailable": dict(missing)}
    cells = [cell for group in groups for cell in _cells(group, counted)]
    found = marked(Results(NAME, QUESTION, machine(directory, ["segstore"]), settings, cells))
    settings["recommended"] = recommended(found)
    return replace(found, findings=_findings(found, counted, judged, missing))


def _cells(of: MeasuredGroup, counted: Counted) -> list[Cell]:
    return [_cell(of, contender, counted.get((of.group, contender))) for contender in of.ready]


def _cell(of: MeasuredGroup, contender: Contender, counts: SyscallCounts | None) -> Cell:
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
) -> list[ClaimFinding]:
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


def zerocopy(counted: Counted, missing: Mapping[str, str]) -> ClaimFinding:
    """Return a finding about the kernel's copies over loopback, as its notices report them. If exhibits were
    not measured, the finding has the reasons.
    """
    notices = sum(counts.notices for counts in counted.values())
    copied = sum(counts.copied for counts in counted.values())
    reasons = dict.fromkeys(missing[method] for method in EXHIBITS if method in missing)
    absent = f"Not available here: {'; '.join(reasons)}."
    if ZEROCOPY in missing:
        return ClaimFinding("MSG_ZEROCOPY sends without a copy", absent)
    if not notices:
        said = "Not measured."
    elif copied == notices:
        said = (
            f"Not over loopback, which always copies: all {notices:,} notices that the kernel gave said that "
            "it had copied after all. What it costs is seen here; what it gains, only a network card shows."
        )
    else:
        said = f"Of {notices:,} notices that the kernel gave, {copied:,} said that it had copied after all."
    return ClaimFinding("MSG_ZEROCOPY sends without a copy", f"{said} {absent}" if reasons else said)


def calls_judged(judged: Mapping[tuple[str, str], Judged] | str) -> ClaimFinding:
    """Return a finding that compares the system calls counted by `CountedFiles` with those counted by strace.
    If `judged` is a str, it is the reason why they were not compared.
    """
    claim = "The system calls are as strace counts them"
    if isinstance(judged, str):
        return ClaimFinding(claim, f"Not judged: {judged}.")
    wrong = [
        f"{method} to {sink}: {calls_text(one.counted)} were counted, strace saw {calls_text(one.traced)}"
        for (sink, method), one in judged.items()
        if one.counted != one.traced
    ]
    alike = f"The same for {len(judged) - len(wrong)} of {len(judged)} pairs of method and sink."
    return ClaimFinding(claim, "\n".join([alike, *wrong]))


def cold_enough(found: Results) -> ClaimFinding:
    """Return a finding with the cold runs that were left out, because pages of the log had stayed in the page
    cache.
    """
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
    return ClaimFinding("Before a cold run no page of the log is in the page cache", said)


# --- tables ------------------------------------------------------------------------------------

# The code below shows results as tables for a terminal of 80 columns. The winner is marked with a star, so
# that it is seen without colours too.

WON = "*"
TITLES = {THROUGHPUT: "MB/s", CPU: "the sender's CPU, s/GB"}
DETAILS = ("MB/s", "±", "CPU s/GB", "±", "system", "calls/MB", "switches/MB", "p50 us", "p99 us")


def summary(results: Results) -> Iterator[RenderableType]:
    """Yield tables with the figures of log.transfer for each sink and cache, by size and method. Then yield
    the table of copies, and the findings.
    """
    yield Text(machine_text(results))
    runs = results.settings["runs"]
    medians = "One run" if runs == 1 else f"Medians of {runs} runs"
    yield Text(f"{medians} of log.transfer; {WON} wins: its interval lies apart from all others.")
    for sink in results.values("sink"):
        for cache in results.values("cache"):
            for measure in TITLES:
                yield _grid(results, sink, cache, measure)
    yield _copies(results)
    yield findings(results)


def details(results: Results) -> Iterator[RenderableType]:
    """Yield tables with all figures of all cells: one table for each way, sink, cache and size."""
    for way in results.values("way"):
        for sink in results.values("sink"):
            for cache in results.values("cache"):
                for size in results.values("size"):
                    if cells := results.where(way=way, sink=sink, cache=cache, size=size):
                        yield _details(f"{way}, {sink}, {cache}, {name(size)}", cells)


def _grid(results: Results, sink: str, cache: str, measure: str) -> Table:
    keys: dict[str, Any] = {"way": LOG, "sink": sink, "cache": cache}
    methods = list(dict.fromkeys(cell.keys["method"] for cell in results.where(**keys)))
    made = _table(f"{sink}, {cache}: {TITLES[measure]}", "size", *methods)
    for size in results.values("size"):
        best = win(contenders(results, measure, size=size, **keys), measure)
        cells = {cell.keys["method"]: cell for cell in results.where(size=size, **keys)}
        made.add_row(name(size), *(_number(cells[method], measure, method == best) for method in methods))
    return made


def _number(cell: Cell, measure: str, won: bool) -> Text:
    if measure not in cell.figures:
        return Text("-")
    text = number_text(cell.figures[measure].median)
    return Text(text + WON, style="bold") if won else Text(text + " ")


def _copies(results: Results) -> Table:
    title = f"As it is told, and switches counted at {name(table_size(results))}, bare"
    made = _table(title, *HEADINGS, *results.values("sink"))
    for row in rows(results):
        made.add_row(*row)
    return made


def _details(title: str, cells: list[Cell]) -> Table:
    made = _table(title, "method", *DETAILS)
    for cell in cells:
        if cell.figures:
            made.add_row(cell.keys["method"], *_all_figures(cell))
    return made


def _all_figures(cell: Cell) -> Iterator[str]:
    middle = {measure: figure.median for measure, figure in cell.figures.items()}
    for measure in (THROUGHPUT, CPU):
        yield number_text(middle[measure])
        yield f"{cell.figures[measure].spread:.0%}"
    yield f"{middle['system s/GB'] / middle[CPU]:.0%}" if middle[CPU] else ""
    yield number_text(cell.notes["calls per MB"]) if cell.notes.get("calls") else ""
    yield from (number_text(middle[measure]) for measure in ("switches 1/MB", "p50 us", "p99 us"))


def _table(title: str, first: str, *columns: str) -> Table:
    made = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, collapse_padding=True
    )
    made.add_column(Text(first))
    for column in columns:
        made.add_column(Text(column), justify="right")
    return made


# --- pictures ----------------------------------------------------------------------------------

# The code below draws results as pictures, each as PNG and as SVG. A picture shows throughput or CPU time by
# size. It has a panel for each sink and cache, and in the panel a line for each method.

_PICTURE_TITLES = {
    LOG: "log.transfer: what each method reaches",
    BARE: "The bare system calls, without the engine, out of the page cache",
}
LABELS = {THROUGHPUT: "throughput, MB/s", CPU: "the sender's CPU, s/GB"}
FILES = {THROUGHPUT: "throughput", CPU: "cpu"}


def draw(results: Results, directory: str) -> list[str]:
    """Write all pictures, and return the paths of their files. Raises OSError, and MissingPackageError if
    matplotlib is not installed.
    """
    return [
        path
        for way in results.values("way")
        for measure in LABELS
        for path in _picture(results, way, measure, os.path.join(directory, _file(results, way, measure)))
    ]


def _file(results: Results, way: str, measure: str) -> str:
    return "-".join([results.name, FILES[measure], *([way] if way != LOG else [])])


def _picture(results: Results, way: str, measure: str, path: str) -> list[str]:
    caches = list(dict.fromkeys(cell.keys["cache"] for cell in results.where(way=way)))
    places = [(sink, cache) for sink in results.values("sink") for cache in caches]
    sizes = sorted(results.values("size"))
    with panels(_PICTURE_TITLES[way], len(places), columns=2) as all_axes:
        for axes, (sink, cache) in zip(all_axes, places, strict=True):
            axes.set_title(f"{sink}, {cache}")
            label(axes, "bytes of one transfer", LABELS[measure], xlog=True, ylog=True)
            lines(axes, _series(results, measure, way, sink, cache), results.values("method"))
            # The texts are small, because 10 KiB and 16 KiB are close together on the axis.
            axes.tick_params(axis="x", labelsize=8)
            ticks(axes, sizes, [name(size).replace(" ", "\n") for size in sizes])
        return save(all_axes[0].figure, path)


def _series(
    results: Results, measure: str, way: str, sink: str, cache: str
) -> dict[str, dict[float, Figure]]:
    found: dict[str, dict[float, Figure]] = defaultdict(dict)
    for cell in results.where(way=way, sink=sink, cache=cache):
        if measure in cell.figures:
            found[cell.keys["method"]][cell.keys["size"]] = cell.figures[measure]
    return found
