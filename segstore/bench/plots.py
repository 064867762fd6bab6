"""Draws results as pictures. On disk: a PNG and an SVG for each picture. The same results always give the
same bytes. Threads: only one thread may draw, because matplotlib's settings are those of the whole process.

Colours are from Okabe and Ito's palette, which colour-blind people can distinguish; lines also differ in
their markers. If a figure has several runs, an error bar or a band shows its interval. matplotlib is imported
when the first picture is drawn.
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
# This is a dict. Its type is Any, because the keys have a type of matplotlib, which may be missing.
SETTINGS: Any = {
    "svg.hashsalt": "segstore",
    "svg.fonttype": "path",
    # matplotlib contains this font, so texts look the same on every machine.
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
DPI = 100
SHADES = 256
"""The number of colours in a PNG. With this number the file has a third of the bytes that it would have with
all colours, and looks the same.
"""
PANEL = (6.4, 4.2)  # width and height in inches

Series = Mapping[str, Mapping[float, Figure]]
"""Name of a line -> its points. The points are a mapping: place on the x axis -> figure."""


@contextmanager
def panels(title: str, count: int, columns: int | None = None) -> Iterator[list[Axes]]:
    """Context manager: yield `count` axes under one title, in rows of `columns`, or side by side if `columns`
    is None. To save the picture, pass the attribute `figure` of one of these axes to `save`. Raises
    MissingPackageError if matplotlib is not installed.
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
    """Context manager: during the block matplotlib has its default settings, changed by SETTINGS. Used also
    when a picture is saved, because saving draws parts of the picture.
    """
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def label(axes: Axes, xlabel: str, ylabel: str, *, xlog: bool = False, ylog: bool = False) -> None:
    """Set the texts at both axes. `xlog` makes the x axis logarithmic, and `ylog` makes the y axis
    logarithmic.
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
    """For each name in `series` draw a line through the medians, and a band that shows the intervals. `names`
    are the names of the lines of all axes in the picture, so that a name has the same colour in all axes.
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
    """Draw groups of bars, each with an error bar. `groups` is: name of a group -> name of a bar -> figure.
    Bars of the same name have the same colour in all groups. If `values`, the medians are written above the
    bars.
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
    """Set marks with the texts `texts` at `places` on the x axis, and remove all other marks from it."""
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
