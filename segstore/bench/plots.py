"""Draws results as pictures. On disk: a PNG and an SVG for each picture, the same bytes for the same results.
Threads: one thread draws, because matplotlib's settings belong to the process.

Colours are from Okabe and Ito's palette, which colour-blind people can distinguish; lines also differ in
their markers. If a figure has several runs, a bar or band shows its interval. matplotlib is imported with the
first picture.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any

from segstore.bench.figures import Figure
from segstore.errors import Needing
from segstore.files import Path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C7A00", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p")
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo", "--", "**")
SETTINGS: Any = {  # a dict; the type of its keys is matplotlib's, which may not be installed
    "svg.hashsalt": "segstore",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",  # a part of matplotlib, so the letters are the same on every machine
    "font.size": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
DPI = 100
SHADES = 256
"""The number of colours of a PNG: with so few colours the file has a third of the bytes, and looks the same.
"""
PANEL = (6.4, 4.2)  # inches

Series = Mapping[str, Mapping[float, Figure]]
"""Maps the name of a line to its figures by their place on the x axis."""


@contextmanager
def panels(title: str, count: int, columns: int | None = None) -> Iterator[list[Axes]]:
    """Context manager: yield `count` axes under one title, side by side or in rows of `columns`. To save the
    picture, pass the `figure` of any of these axes to `save`. Raises MissingPackageError without matplotlib.
    """
    with Needing("matplotlib", "a picture"):
        from matplotlib.figure import Figure as Picture
    across = min(columns or count, count)
    down = -(-count // across)
    with _style():
        picture = Picture(figsize=(PANEL[0] * across, PANEL[1] * down), layout="constrained")
        picture.suptitle(title)
        grid = list(picture.subplots(down, across, squeeze=False).flat)
        for spare in grid[count:]:
            spare.remove()
        yield grid[:count]


@contextmanager
def _style() -> Iterator[None]:
    """Context manager: apply SETTINGS over matplotlib's defaults, also while a picture is saved, because
    saving makes parts of the picture.
    """
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def label(axes: Axes, xlabel: str, ylabel: str, *, xlog: bool = False, ylog: bool = False) -> None:
    """Name both axes, with units. `xlog` makes the x axis logarithmic, `ylog` the y axis. A linear y axis
    begins at 0.
    """
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    if xlog:
        axes.set_xscale("log")
    if ylog:
        axes.set_yscale("log")
    else:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")


def lines(axes: Axes, series: Series, names: Sequence[str] = ()) -> None:
    """Draw a line for each name through the medians, and a band for the intervals. `names` are the names of
    all lines of all axes, so that a line has the same colour in all axes.
    """
    order = list(dict.fromkeys([*names, *series]))
    for name, points in series.items():
        at = order.index(name)
        colour = COLOURS[at % len(COLOURS)]
        where = sorted(points)
        figures = [points[x] for x in where]
        middle = [figure.median for figure in figures]
        marker = MARKERS[at % len(MARKERS)]
        axes.plot(where, middle, marker=marker, markersize=5, label=name, color=colour)
        low, high = [f.low for f in figures], [f.high for f in figures]
        axes.fill_between(where, low, high, alpha=0.15, linewidth=0, color=colour)
    _finished(axes, len(series))


def bars(axes: Axes, groups: Mapping[str, Mapping[str, Figure]], *, values: bool = False) -> None:
    """Draw groups of bars, each with an error bar. `groups` maps a group to its figures by name; a name has
    one colour in all groups. If `values`, the medians are written above the bars.
    """
    from segstore.bench.terminal import number_text

    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    width = 0.8 / max(len(names), 1)
    for at, name in enumerate(names):
        where = [x + (at - (len(names) - 1) / 2) * width for x, g in enumerate(groups.values()) if name in g]
        figures = [group[name] for group in groups.values() if name in group]
        style: dict[str, Any] = {"color": COLOURS[at % len(COLOURS)], "hatch": HATCHES[at % len(HATCHES)]}
        middle = [figure.median for figure in figures]
        error = [[f.median - f.low for f in figures], [f.high - f.median for f in figures]]
        drawn = axes.bar(where, middle, width, yerr=error, label=name, edgecolor="white", capsize=2, **style)
        if values:
            axes.bar_label(drawn, labels=[number_text(m) for m in middle], padding=2, fontsize=8)
    axes.set_xticks(range(len(groups)), list(groups))
    _finished(axes, len(names))


def ticks(axes: Axes, places: Sequence[float], texts: Sequence[str]) -> None:
    """Set the marks of the x axis to `places` with `texts`, and remove all other marks."""
    axes.set_xticks(list(places), list(texts))
    axes.minorticks_off()


def save(picture: Picture | Any, path: Path) -> list[str]:
    """Write `path`.png and `path`.svg, and return their paths. Raises OSError."""
    from PIL import Image

    base, drawn = os.fspath(path), BytesIO()
    with _style():
        picture.savefig(drawn, format="png", dpi=DPI, metadata={"Software": None})
        Image.open(drawn).convert("RGB").quantize(SHADES).save(f"{base}.png", optimize=True)
        picture.savefig(f"{base}.svg", metadata={"Date": None, "Creator": None})
    return [f"{base}.png", f"{base}.svg"]


def _finished(axes: Axes, names: int) -> None:
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    if names > 1:
        axes.legend(frameon=False, fontsize=8)
