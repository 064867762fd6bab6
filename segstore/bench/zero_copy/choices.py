"""Which method the figures recommend for a sink and a size. Nothing on disk. Threads: any.

sendfile, unless another beats it: in throughput or CPU, and sendfile beats it in neither. Of several such
the one with the most throughput. What a size was not measured for goes with the next larger one that was.
"""

from __future__ import annotations

from itertools import groupby

from segstore.bench.results import Results
from segstore.bench.zero_copy.cells import LOG
from segstore.bench.zero_copy.claims import contenders
from segstore.bench.zero_copy.measure import THROUGHPUT
from segstore.bench.zero_copy.wins import MORE_IS_BETTER, beats

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
