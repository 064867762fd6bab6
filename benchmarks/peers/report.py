"""What a run's results look like: tables for a terminal and a page, pictures, and findings in words.

On disk: pictures, where `draw` is told. Threads: one.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from segstore.bench import ClaimFinding, Figure, Results, winner
from segstore.bench.plots import bars, label, panels, save
from segstore.bench.terminal import figure_text, number_text

from .turn import APART, APPEND, DURABLE, DURABLE_ONE, ONE, P50, P99, RATE, READ, SCAN, TAIL, WORKS

OURS, COLUMNS = "segstore", "segstore, columns"
BARE = "LMDB, bare cursor", "bare file"
"""What does less than a store of records: in every table, but it wins nothing."""
KEYS = "value bytes", "peer", "work"
LEVELS = "page cache", "synced", "follower", "other"


class Question(NamedTuple):
    """One column of the table."""

    work: str
    figure: str
    more_is_better: bool

    @property
    def heading(self) -> str:
        return f"{self.work}, {self.figure}"


QUESTIONS = [
    *(Question(work, RATE, True) for work in (APPEND, SCAN, ONE, DURABLE, DURABLE_ONE)),
    Question(READ, P50, False),
    Question(TAIL, P50, False),
    Question(TAIL, P99, False),
    Question(APART, P50, False),
    Question(APART, P99, False),
]


def questions(results: Results) -> list[Question]:
    """Those of the works that were done."""
    return [question for question in QUESTIONS if question.work in results.values("work")]


def figures(results: Results, size: int, question: Question) -> dict[str, Figure]:
    """By peer; without those that have none."""
    cells = results.where(**{"value bytes": size, "work": question.work})
    return {cell.keys["peer"]: cell.figures[question.figure] for cell in cells if cell.figures}


def grid(results: Results, size: int) -> Iterable[list[tuple[str, bool]]]:
    """A row a peer: its name, then (text, whether it wins) for each question."""
    asked = questions(results)
    columns = [figures(results, size, question) for question in asked]
    wins = [winner(_stores(column), q.more_is_better) for column, q in zip(columns, asked, strict=True)]
    for peer in results.values("peer"):
        texts = [_text(results, size, peer, question) for question in asked]
        yield [(peer, False), *((text, peer == won) for text, won in zip(texts, wins, strict=True))]


def _stores(found: dict[str, Figure]) -> dict[str, Figure]:
    return {peer: figure for peer, figure in found.items() if peer not in BARE}


def _text(results: Results, size: int, peer: str, question: Question) -> str:
    for cell in results.where(**dict(zip(KEYS, (size, peer, question.work), strict=True))):
        return figure_text(cell.figures[question.figure]) if cell.figures else next(iter(cell.notes))
    return "–"


def table(results: Results, size: int) -> Table:
    """For a terminal; who wins is bold."""
    made = Table(title=f"values of {size:,} bytes", box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column("")
    for question in questions(results):
        made.add_column(question.heading, justify="right", min_width=9)
    for row in grid(results, size):
        made.add_row(*(Text(text, style="bold green" if won else "") for text, won in row))
    return made


def markdown(results: Results) -> str:
    """A table for each size of values, and what is behind it."""
    parts = []
    for size in results.values("value bytes"):
        lines = [[f"values of {size:,} bytes", *(question.heading for question in questions(results))]]
        lines.append([":--", *["--:"] * len(questions(results))])
        lines += [[f"**{text}**" if won else text for text, won in row] for row in grid(results, size)]
        parts.append("".join(f"| {' | '.join(line)} |\n" for line in lines))
    return "\n".join([*parts, legend(results)])


def legend(results: Results) -> str:
    """What the figures are, which versions were compared, who was absent."""
    runs, peers = results.settings["runs"], _peers(results)
    told = [
        f"Medians of {runs} runs, ± the distance to the farther end of the interval. Bold: clearly best, as"
        " no other interval overlaps.",
        "; ".join(f"{peer}: {_versions(of_it)}" for peer, of_it in peers) + ".",
    ]
    if bare := [peer for peer, _ in peers if peer in BARE]:
        told.append(f"{' and '.join(bare)}: lower bounds without any store logic; not ranked.")
    told += [f"{peer} is absent: {why}." for peer, why in sorted(results.settings["absent"].items())]
    return "\n".join(told) + "\n"


def _peers(results: Results) -> list[tuple[str, dict[str, Any]]]:
    """In the order of the cells; JSON keeps no other."""
    return [(peer, results.settings["peers"][peer]) for peer in results.values("peer")]


def _versions(of_it: dict[str, dict[str, str]]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(of_it["versions"].items()))


def settings(results: Results) -> str:
    """As Markdown: what each work does, and what gives each peer its level of durability."""
    said = results.settings["works"]
    lines = [f"- {work}: {said[work]}." for work in WORKS if work in said]
    lines += ["", "| peer | page cache | synced | follower | other |", "| :-- | :-- | :-- | :-- | :-- |"]
    for peer, of_it in _peers(results):
        lines.append(f"| {' | '.join([peer, *(of_it[what] for what in LEVELS)])} |")
    return "\n".join(lines) + "\n"


def findings(results: Results) -> list[ClaimFinding]:
    """For each size and question: is segstore, record by record as the others, the best?"""
    return [
        ClaimFinding(
            f"segstore is the best: {question.heading}, values of {size:,} bytes", _answer(found, question)
        )
        for size in results.values("value bytes")
        for question in questions(results)
        if OURS in (found := figures(results, size, question)) and len(_stores(found)) > 1
    ]


def _answer(found: dict[str, Figure], question: Question) -> str:
    bare = "".join(f" {peer}: {number_text(found[peer].median)}." for peer in BARE if peer in found)
    found = _stores(found)
    ours, columns = found.pop(OURS), found.pop(COLUMNS, None)
    more = question.more_is_better
    best = (max if more else min)(found, key=lambda peer: found[peer].median)
    verdict = {OURS: "Yes", best: "No"}.get(
        winner({OURS: ours, best: found[best]}, more) or "", "Not told apart"
    )
    high, low = sorted((ours.median, found[best].median), reverse=True)
    answer = f"{verdict}: segstore {number_text(ours.median)}, {best} {number_text(found[best].median)}"
    return f"{answer}, {high / low:.1f} times." + (_also(columns) if columns else "") + bare


def _also(columns: Figure) -> str:
    return f" In columns, which the others have not: {number_text(columns.median)}."


def draw(results: Results, path: Path) -> list[str]:
    """`path`.png and `path`.svg: a panel a question, a group of bars a peer."""
    with panels("The same work, side by side", len(questions(results)), columns=2) as axes:
        for one, question in zip(axes, questions(results), strict=True):
            better = "more" if question.more_is_better else "less"
            label(one, "", f"{question.figure} ({better} is better)", ylog=True)
            bars(one, _by_peer(results, question))
            one.set_title(question.heading)
            one.tick_params(axis="x", rotation=30)
            for name in one.get_xticklabels():
                name.set_horizontalalignment("right")
            legend = one.get_legend()
            if legend is not None:  # it would hide bars; one beside the panels says the same of all
                legend.remove()
        picture = axes[0].figure
        picture.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", frameon=False)
        return save(picture, path)


def _by_peer(results: Results, question: Question) -> dict[str, dict[str, Figure]]:
    """Those that have none have their place."""
    sizes = {size: figures(results, size, question) for size in results.values("value bytes")}
    return {
        peer: {f"values of {size:,} bytes": found[peer] for size, found in sizes.items() if peer in found}
        for peer in results.values("peer")
    }
