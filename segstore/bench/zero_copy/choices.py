"""Which method the figures recommend for a sink and a size. Nothing on disk. Threads: any.

sendfile, unless another beats it: in throughput or CPU, and sendfile beats it in neither. Of several such
the one with the most throughput. What a size was not measured for goes with the next larger one that was.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from segstore.bench.results import Finding, Results
from segstore.bench.zero_copy.cells import LOG
from segstore.bench.zero_copy.claims import contenders, name
from segstore.bench.zero_copy.measure import THROUGHPUT
from segstore.bench.zero_copy.wins import MORE_IS_BETTER, beats
from segstore.storage.transfer.choosing import TABLE

USUAL = "sendfile"

Table = dict[str, list[tuple[int | None, str]]]
"""Sink -> (up to so many bytes, method), the last one for all above: None."""


def recommended(results: Results) -> Table:
    """What "auto" shall take, by log.transfer's own figures out of the page cache."""
    table: Table = {}
    sizes = sorted(results.values("size"))
    for sink in results.values("sink"):
        chosen = [(size, choice(results, sink, size)) for size in sizes]
        steps = [(max(group)[0], method) for method, group in groupby(chosen, lambda one: one[1])]
        table[sink] = [*steps[:-1], (None, steps[-1][1])]
    return table


def choice(results: Results, sink: str, size: int) -> str:
    """The method for transfers of `size` bytes to `sink`."""
    found = {
        measure: contenders(results, measure, way=LOG, sink=sink, size=size, cache="warm")
        for measure in MORE_IS_BETTER
    }
    throughput = found[THROUGHPUT]
    if USUAL not in throughput:
        return USUAL
    better = [
        method
        for method in throughput
        if any(beats(figures[method], figures[USUAL], measure) for measure, figures in found.items())
        and not any(beats(figures[USUAL], figures[method], measure) for measure, figures in found.items())
    ]
    return max(better, key=lambda method: throughput[method].median, default=USUAL)


def what_auto_takes(results: Results) -> Finding:
    """The recommended table, and where the one that "auto" has differs from it."""
    said = []
    for sink, steps in recommended(results).items():
        has = [(size, now(sink, size)) for size in sorted(results.values("size"))]
        others = [name(size) for size, method in has if method != _at(steps, size)]
        text = ", ".join(f"{method}{_up_to(most)}" for most, method in steps)
        said.append(f"{sink}: {text}" + (f" (auto has another at {', '.join(others)})" if others else ""))
    return Finding('What method="auto" should take', "\n".join(said))


def now(sink: str, size: int) -> str:
    """What "auto" takes as it is."""
    return _at(TABLE[sink], size)


def _at(steps: Sequence[tuple[float | None, str]], size: int) -> str:
    return next(method for most, method in steps if most is None or size <= most)


def _up_to(most: int | None) -> str:
    return "" if most is None else f" up to {name(most)}"
