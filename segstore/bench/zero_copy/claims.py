"""What people claim of zero copy, and what the figures of a run say to it. Nothing on disk. Threads: any."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from segstore.bench.figures import FEWEST_TO_WIN, Figure
from segstore.bench.results import Finding, Results
from segstore.bench.zero_copy.cells import BARE, KIB, LOG, OS_SENDFILE, SIZE_NAMES
from segstore.bench.zero_copy.measure import CPU, THROUGHPUT
from segstore.bench.zero_copy.wins import beats

ENOUGH = 0.95
"""Of a bare loop's throughput: what the engine shall reach."""
WAYS_SAID = {LOG: "through log.transfer", BARE: "by bare calls"}
MEASURES_SAID = {THROUGHPUT: "throughput", CPU: "the sender's CPU"}


def contenders(results: Results, measure: str, **keys: Any) -> dict[str, Figure]:
    """Method -> figure of the cells with these keys. "auto" and the bare loop, which are others' methods by
    another name, are no contenders."""
    return {
        cell.keys["method"]: cell.figures[measure]
        for cell in results.where(**keys)
        if measure in cell.figures and cell.keys["method"] not in ("auto", OS_SENDFILE)
    }


# --- mmap against sendfile --------------------------------------------------------------------


def small_and_large(results: Results) -> Finding:
    """Where the crossover between mmap and sendfile is, for each sink, out of the page cache."""
    claim = "mmap is fast for small files, sendfile for large ones"
    if results.settings["runs"] < FEWEST_TO_WIN:
        return Finding(claim, f"Not told: nothing is called a win of fewer than {FEWEST_TO_WIN} runs.")
    said = []
    for way in (way for way in WAYS_SAID if results.where(way=way)):
        for measure, what in MEASURES_SAID.items():
            sinks = results.values("sink")
            found = [f"{sink}: {crossover(verdicts(results, measure, way, sink))}" for sink in sinks]
            said.append(f"In {what}, {WAYS_SAID[way]}: {'; '.join(found)}.")
    return Finding(claim, "\n".join(said))


def verdicts(results: Results, measure: str, way: str, sink: str) -> dict[int, str | None]:
    """Size -> the one of mmap and sendfile that beats the other, None where neither does."""
    found: dict[int, str | None] = {}
    for size in sorted(results.values("size")):
        figures = contenders(results, measure, way=way, sink=sink, size=size, cache="warm")
        if {"mmap", "sendfile"} <= figures.keys():
            found[size] = _better(figures, measure)
    return found


def _better(figures: Mapping[str, Figure], measure: str) -> str | None:
    for one, other in (("mmap", "sendfile"), ("sendfile", "mmap")):
        if beats(figures[one], figures[other], measure):
            return one
    return None


def crossover(found: Mapping[int, str | None]) -> str:
    """In words what `verdicts` gave, by size."""
    won = [(size, who) for size, who in found.items() if who]
    stretches = [(who, [size for size, _ in group]) for who, group in groupby(won, lambda one: one[1])]
    if not found:
        return "not measured"
    if not stretches:
        return "no difference that can be told at any size"
    told = ", ".join(f"{who} wins {_span(sizes)}" for who, sizes in stretches)
    if len(stretches) == 1:
        return f"no crossover, {told}{_undecided(found)}"
    if [who for who, _ in stretches] == ["mmap", "sendfile"]:
        (_, small), (_, large) = stretches
        return f"crossover between {name(small[-1])} and {name(large[0])}: {told}{_undecided(found)}"
    return f"no single crossover: {told}{_undecided(found)}"


def name(size: int) -> str:
    """64 KiB."""
    return SIZE_NAMES.get(size, f"{size:,} B")


def _span(sizes: list[int]) -> str:
    return f"at {name(sizes[0])}" if len(sizes) == 1 else f"from {name(sizes[0])} to {name(sizes[-1])}"


def _undecided(found: Mapping[int, str | None]) -> str:
    sizes = [name(size) for size, who in found.items() if who is None]
    return f" (neither at {', '.join(sizes)})" if sizes else ""


# --- the engine against a bare loop, and CPU against read ---------------------------------------


def against_bare_loop(results: Results) -> Finding:
    """log.transfer by sendfile as a part of what a bare loop of os.sendfile reaches, medians."""
    said = []
    for sink in results.values("sink"):
        ratios = {}
        for size in sorted(results.values("size")):
            keys = {"sink": sink, "size": size, "cache": "warm"}
            engine = results.where(way=LOG, method="sendfile", **keys)
            bare = results.where(way=BARE, method=OS_SENDFILE, **keys)
            if engine and bare:
                ratios[size] = engine[0].figures[THROUGHPUT].median / bare[0].figures[THROUGHPUT].median
        if ratios:
            parts = [f"{name(size)} {ratio:.2f}" for size, ratio in ratios.items()]
            said.append(f"{sink}: {', '.join(parts)}")
    claim = f"log.transfer by sendfile reaches {ENOUGH} of a bare loop of os.sendfile"
    return Finding(claim, "Of its throughput, by size: " + "\n".join(said) if said else "Not measured.")


def cpu_against_read(results: Results) -> Finding:
    """The sender's CPU time a byte of each method over read's, medians, at the size nearest 64 KiB."""
    size = min(results.values("size"), key=lambda one: abs(one - 64 * KIB))
    said = []
    for sink in results.values("sink"):
        figures = contenders(results, CPU, way=LOG, sink=sink, size=size, cache="warm")
        read = figures.pop("read", None)
        if read is not None:
            parts = [f"{method} {figure.median / read.median:.2f}" for method, figure in figures.items()]
            said.append(f"{sink} (read: {read.median:.3f} s/GB): {', '.join(parts)}")
    claim = "What is not copied costs no CPU: the sender's CPU time a byte, as a part of read's"
    return Finding(claim, f"At {name(size)}, warm: " + "\n".join(said))
