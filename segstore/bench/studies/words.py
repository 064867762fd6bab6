"""Makes sentences about figures. Threads: any; there is no state.

A contest compares two figures of the same kind. The better figure wins if the intervals of the two figures
don't overlap (`figures.winner`). Each sentence is made from the measured figures: no expected result is in
this code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from segstore.bench.figures import FEWEST_TO_WIN, Figure, winner
from segstore.bench.results import Results
from segstore.bench.terminal import number_text

_UNITS = ("CPU s/GB", "reads/s", "ms", "µs", "MiB")


class Contest(NamedTuple):
    """A comparison of two figures. The claim is that `first` is better than `second`. `where` is the name by
    which a text refers to the contest.
    """

    where: str
    first: str
    second: str
    figures: tuple[Figure, Figure]
    unit: str
    more_is_better: bool

    @property
    def winner(self) -> str | None:
        return winner(dict(zip((self.first, self.second), self.figures, strict=True)), self.more_is_better)

    @property
    def enough(self) -> bool:
        return all(len(figure.runs) >= FEWEST_TO_WIN for figure in self.figures)

    def text(self) -> str:
        """Return a text with both medians. The text also has the factor between the medians, or if the
        intervals overlap, the number of turns in which `first` was better.
        """
        ours, theirs = (figure.median for figure in self.figures)
        between = f"a factor of {factor(ours, theirs)}"
        if self.enough and not self.winner:
            between = f"the runs overlap; {self.first} is the better in {self.turns} of {self.runs} turns"
        return (
            f"{self.where}: {self.first} {number_text(ours)} {self.unit}, "
            f"{self.second} {number_text(theirs)} ({between})"
        )

    @property
    def runs(self) -> int:
        return len(self.figures[0].runs)

    @property
    def turns(self) -> int:
        """Return the number of turns in which `first` was better than `second`. Values of the same turn are
        compared, so a slow change of the machine's speed does not matter.
        """
        pairs = zip(self.figures[0].runs, self.figures[1].runs, strict=True)
        return sum(first > second if self.more_is_better else first < second for first, second in pairs)


def contest(
    results: Results,
    key: str,
    values: tuple[object, object],
    figure: str,
    more_is_better: bool,
    where: Mapping[str, object],
    words: tuple[str, str, str] | None = None,
) -> Contest:
    """Return the contest of two cells: both have the keys `where`, and the value of `key` is `values[0]` in
    one and `values[1]` in the other. `words` are the texts for `where` and for the two values; by default
    they are these values as texts. Raises InvalidArgumentError if a cell is missing.
    """
    ours, theirs = (results.cell(**{**where, key: value}).figures[figure] for value in values)
    place, first, second = words or (", ".join(map(str, where.values())), *map(str, values))
    return Contest(place, first, second, (ours, theirs), unit_of(figure), more_is_better)


def unit_of(figure: str) -> str:
    """Return the unit at the end of a figure's name. If the name ends with no known unit, return the name."""
    return next((unit for unit in _UNITS if figure.endswith(f" {unit}")), figure)


def factor(value: float, other: float) -> str:
    """Return the larger of the two values divided by the smaller value, as text."""
    small, large = sorted((value, other))
    return (
        f"{large / small:.2f}"
        if small and large < 10 * small
        else number_text(large / small)
        if small
        else "∞"
    )


def leaders(figures: Mapping[str, Figure], more_is_better: bool) -> list[str]:
    """Return the name of the figure with the best median, followed by the names of all figures whose
    intervals overlap that figure's interval.
    """
    sign = 1 if more_is_better else -1
    ordered = sorted(figures, key=lambda name: -sign * figures[name].median)
    best = figures[ordered[0]]
    return [name for name in ordered if figures[name].high >= best.low and figures[name].low <= best.high]


def headline(contests: Sequence[Contest]) -> str:
    """Return a sentence that says whether the claim of the contests holds. It holds if `first` wins each
    contest.
    """
    if not contests:
        return "Not measured here."
    if not all(contest.enough for contest in contests):
        return f"Too few runs to say: a win needs {FEWEST_TO_WIN}."
    won = sum(contest.winner == contest.first for contest in contests)
    lost = sum(contest.winner == contest.second for contest in contests)
    if won == len(contests):
        return "Yes."
    if lost == len(contests):
        return "No, it is the other way round."
    if not won and not lost:
        return "These runs show no difference."
    counts = f"it holds in {won} of {len(contests)} comparisons, the opposite in {lost}"
    return f"{'In part' if won else 'No'}: {counts}, and in {len(contests) - won - lost} the runs overlap."


def answer(contests: Sequence[Contest], *more: str) -> str:
    """Return one text: the result of `headline`, the figures of each contest, and the sentences in `more`."""
    details = "; ".join(contest.text() for contest in contests)
    return " ".join(part for part in (headline(contests), details and f"{details}.", *more) if part)


def size_text(size: int) -> str:
    """Return a size as text, in B, KiB, MiB or GiB, such as "64 KiB"."""
    for unit, step in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << step:
            return f"{size / (1 << step):g} {unit}"
    return f"{size} B"
