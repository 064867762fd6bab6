"""Results as pictures: throughput and CPU by size, a line a method, a panel a sink and cache.

On disk: a PNG and an SVG each, where the caller wants them. Threads: one draws.
"""

from __future__ import annotations

import os
from collections import defaultdict

from segstore.bench.figures import Figure
from segstore.bench.plots import label, lines, panels, save, ticks
from segstore.bench.results import Results
from segstore.bench.zero_copy.cells import BARE, LOG
from segstore.bench.zero_copy.claims import name
from segstore.bench.zero_copy.measure import CPU, THROUGHPUT

TITLES = {
    LOG: "log.transfer: what each method reaches",
    BARE: "The bare system calls, without the engine, out of the page cache",
}
LABELS = {THROUGHPUT: "throughput, MB/s", CPU: "the sender's CPU, s/GB"}
FILES = {THROUGHPUT: "throughput", CPU: "cpu"}


def draw(results: Results, directory: str) -> list[str]:
    """Write all pictures: their paths. OSError; InvalidArgumentError without matplotlib."""
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
    with panels(TITLES[way], len(places), columns=2) as all_axes:
        for axes, (sink, cache) in zip(all_axes, places, strict=True):
            axes.set_title(f"{sink}, {cache}")
            label(axes, "bytes of one transfer", LABELS[measure], xlog=True, ylog=True)
            lines(axes, _series(results, measure, way, sink, cache), results.values("method"))
            axes.tick_params(axis="x", labelsize=8)  # 10 KiB and 16 KiB lie close together
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
