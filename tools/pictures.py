"""Draws the pictures of the explanation pages out of stored results, and writes what the studies found below
them.

Usage: `.venv/bin/python tools/pictures.py`. On disk: docs/pictures/, and docs/why-fast.md between its
markers; tests/docs/test_pictures.py holds that both are of the results in benchmarks/results/.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from client_settings import between
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from segstore.bench import Results, load
from segstore.bench.plots import bars, label, lines, panels, save, ticks
from segstore.bench.studies import study
from segstore.bench.terminal import number_text
from segstore.bench.zero_copy.claims import name as size_name
from segstore.bench.zero_copy.measure import CPU, THROUGHPUT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

    from segstore.bench.figures import Figure

ROOT = Path(__file__).parents[1]
RESULTS, PICTURES = ROOT / "benchmarks" / "results", ROOT / "docs" / "pictures"
PAGE = ROOT / "docs" / "why-fast.md"
STUDIES = (
    *("append-ways", "batching", "sequential-writes", "caches", "compression", "index-interval"),
    "partitions",
)
KEY = "results"
"""The text in a PNG that says of which results it is, by their SHA-256."""

PEERS = ("segstore", "LMDB", "SQLite", "RocksDB", "persist-queue", "Kafka")
WORKS = {
    "append": ("records/s", "append in batches of 1,000"),
    "append by 1": ("records/s", "append one by one"),
    "durable by 1": ("records/s", "the same, each synced"),
    "scan": ("records/s", "scan"),
    "point read": ("p50 µs", "point read (logarithmic; less is better)"),
    "tail follow, other process": (
        "p50 µs",
        "until another process has a record (logarithmic; less is better)",
    ),
}
LATENCIES = ("p50 µs",)
GLANCE = {
    "append by 1": "append one by one, records/s",
    "scan": "scan, records/s",
    "tail follow, other process": "another process sees it, µs\n(less is better)",
    "point read": "read one at random, µs\n(less is better)",
}
OURS, OTHERS = "#0072B2", "#A6A6A6"
SENT = {THROUGHPUT: "throughput, MB/s", CPU: "CPU time of the sender, s/GB"}


class Drawn(NamedTuple):
    """A picture: the name of the results that it is of, and how it is drawn."""

    results: str
    draw: Callable[[Results], Picture]


def peers(results: Results) -> Picture:
    """A panel a work, for values of 100 bytes."""
    with panels("The same work, side by side: records of 100 bytes", len(WORKS), columns=2) as axes:
        for one, (work, (figure, title)) in zip(axes, WORKS.items(), strict=True):
            cells = results.where(**{"value bytes": 100, "work": work})
            by_peer = {cell.keys["peer"]: cell.figures for cell in cells}
            label(one, "", figure, ylog=figure in LATENCIES)
            found = {name: by_peer[name] for name in PEERS if by_peer.get(name)}
            bars(one, {name: {figure: figures[figure]} for name, figures in found.items()}, values=True)
            one.set_title(title)
            one.tick_params(axis="x", labelsize=8)
            if figure in LATENCIES:
                one.set_ylim(1, 2 * one.get_ylim()[1])
                one.yaxis.set_major_formatter("{x:,.0f}")
        return axes[0].figure  # type: ignore[return-value]


def glance(results: Results) -> Picture:
    """For the first screen: works that a log is good at, the wake-up of a follower, and point reads."""
    title = f"Records of 100 bytes: medians, and the range of {results.settings['runs']} runs"
    with panels(title, len(GLANCE)) as axes:
        for one, (work, name) in zip(axes, GLANCE.items(), strict=True):
            cells = results.where(**{"value bytes": 100, "work": work})
            figure = WORKS[work][0]
            _rows(one, {cell.keys["peer"]: cell.figures[figure] for cell in cells if cell.figures})
            one.set_title(name, fontsize=10)
            one.tick_params(axis="y", length=0, labelleft=one is axes[0])
        picture = axes[0].figure
        picture.set_size_inches(10, 2.6)
        return picture  # type: ignore[return-value]


def _rows(axes: Axes, by_peer: Mapping[str, Figure]) -> None:
    """A horizontal bar for each of PEERS. One that is ten times as long as ours ends at the edge."""
    ours = by_peer[PEERS[0]].median
    longest = max(
        by_peer[name].high for name in PEERS if name in by_peer and by_peer[name].median < 10 * ours
    )
    axes.set_xlim(0, 1.4 * longest)
    for y, name in enumerate(PEERS):
        if name not in by_peer:
            axes.text(0.02 * longest, y, "not offered", va="center", fontsize=9)
            continue
        median, low, high = by_peer[name].median, by_peer[name].low, by_peer[name].high
        axes.barh(y, median, color=OTHERS if y else OURS)
        if median > 1.4 * longest:
            axes.text(1.36 * longest, y, f"{number_text(median)} …", va="center", ha="right", fontsize=9)
            continue
        axes.errorbar(
            median, y, xerr=[[median - low], [high - median]], color="black", linewidth=0.8, capsize=2
        )
        axes.text(high + 0.04 * longest, y, number_text(median), va="center", fontsize=9)
    axes.set_yticks(range(len(PEERS)), PEERS)
    axes.invert_yaxis()
    axes.xaxis.set_visible(False)
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)


def transfers(results: Results) -> Picture:
    """Throughput and CPU of each method to TCP, from a warm and from a cold page cache."""
    places = [(measure, cache) for measure in SENT for cache in ("warm", "cold")]
    sizes = sorted(results.values("size"))
    with panels("log.transfer to a TCP socket, by method", len(places), columns=2) as axes:
        for one, (measure, cache) in zip(axes, places, strict=True):
            cells = results.where(way="log", sink="tcp", cache=cache)
            methods = list(dict.fromkeys(cell.keys["method"] for cell in cells))
            by_method: dict[str, dict[float, Any]] = {method: {} for method in methods}
            for cell in cells:
                by_method[cell.keys["method"]][cell.keys["size"]] = cell.figures[measure]
            label(one, "bytes of one transfer", SENT[measure], xlog=True, ylog=True)
            lines(one, by_method)
            one.set_title(f"{cache} page cache")
            one.tick_params(axis="x", labelsize=8)  # 10 KiB and 16 KiB lie close together
            ticks(one, sizes, [size_name(size).replace(" ", "\n") for size in sizes])
        return axes[0].figure  # type: ignore[return-value]


DRAWN: Mapping[str, Drawn] = {
    **{name: Drawn(name, lambda results: study(results.name).plot(results)) for name in STUDIES},
    "glance": Drawn("peers", glance),
    "peers": Drawn("peers", peers),
    "zero-copy": Drawn("zero-copy", transfers),
}


def digest(results: str) -> str:
    """Which results a picture is of."""
    return hashlib.sha256((RESULTS / f"{results}.json").read_bytes()).hexdigest()


def drawn(name: str, directory: Path) -> Path:
    """Draw a picture as a PNG into a directory, and return its path."""
    results, draw = DRAWN[name]
    with tempfile.TemporaryDirectory() as scratch:
        png, _ = save(draw(load(RESULTS / f"{results}.json")), str(Path(scratch, name)))
        told = PngInfo()
        told.add_text(KEY, digest(results))
        Image.open(png).save(directory / f"{name}.png", optimize=True, pnginfo=told)
    return directory / f"{name}.png"


def found(results: Results) -> str:
    """What a study found, as a list: each claim with its answer, and the first comparison behind it."""
    told = []
    for finding in results.findings:
        first, *others = finding.answer.split("; ")
        told.append(f"- **{finding.claim}** {first}{' …' if others else ''}")
    return "\n".join(told)


def page(text: str) -> str:
    """The page with its findings as they should be. ValueError where a marker is missing."""
    for name in STUDIES:
        results = load(RESULTS / f"{name}.json")
        text = between(f"<!-- {name} -->", f"<!-- end of {name} -->", text, found(results))
    return text


def main() -> None:
    """Write all."""
    PICTURES.mkdir(exist_ok=True)
    for name in DRAWN:
        drawn(name, PICTURES)
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
