"""Defines a figure, and the winner among figures. Threads: any; there is no state.

A figure has the values of several runs of one measurement. For every distribution the figure's interval
contains the true median with a probability of at least CONFIDENCE: it is the interval of the sign test,
between two order statistics. If there are five to eight runs, the interval reaches from the lowest value to
the highest value. It misses the true median only if all values are below the true median, or all values are
above the true median. If there are 11 runs, the interval reaches from the third lowest value to the third
highest value, so that one or two disturbed runs neither make nor hide a winner. A figure is called better
than another figure only if their intervals don't touch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any, TypeVar

from segstore.bench.choices import RUNS as RUNS
from segstore.errors import InvalidArgumentError

FEWEST_TO_WIN = 5
CONFIDENCE = 0.93

K = TypeVar("K")


@dataclass(frozen=True)
class Figure:
    """The values of a repeated measurement, in the order in which they were measured. There is at least one
    value, and all values are finite.
    """

    runs: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.runs or not all(map(math.isfinite, self.runs)):
            raise InvalidArgumentError(f"a figure needs at least one run, all finite, not {self.runs!r}")

    @property
    def median(self) -> float:
        return median(self.runs)

    @property
    def low(self) -> float:
        """Return the lower end of the interval."""
        return sorted(self.runs)[outside(len(self.runs))]

    @property
    def high(self) -> float:
        """Return the upper end of the interval."""
        return sorted(self.runs)[-1 - outside(len(self.runs))]

    @property
    def spread(self) -> float:
        """Return the distance from the median to the farther end of the interval, as a fraction of the
        median; 0 if the median is 0.
        """
        middle = self.median
        return max(self.high - middle, middle - self.low) / abs(middle) if middle else 0.0

    def as_json(self) -> list[float]:
        """Return the values of all runs. (The median and the interval are not stored: they are computed
        from these values.)
        """
        return list(self.runs)

    @classmethod
    def of(cls, json: Iterable[float]) -> Figure:
        """Make a figure from the values of runs, as `as_json` returns them. Raises InvalidArgumentError."""
        return cls(tuple(map(float, json)))

    def times(self, factor: float) -> Figure:
        """Return a new figure, whose values are this figure's values multiplied by `factor`. Used to change
        the unit.
        """
        return Figure(tuple(run * factor for run in self.runs))


@cache
def outside(runs: int) -> int:
    """Return how many of `runs` values are below the interval. The same number of values is above it. It is
    the largest number for which the interval contains the true median with a probability of at least
    CONFIDENCE, and 0 if there are too few runs for this probability.
    """
    outer, missed = 0, 2.0 / 2**runs
    while 1 - (missed := missed + 2 * math.comb(runs, outer + 1) / 2**runs) >= CONFIDENCE:
        outer += 1
    return outer


def winner(figures: Mapping[K, Figure], more_is_better: bool) -> K | None:
    """Return the name of the figure with the best median if its interval overlaps the interval of no other
    figure, else None. Return None also if a figure has fewer than FEWEST_TO_WIN runs, or if there is only one
    figure.
    """
    if len(figures) < 2 or any(len(figure.runs) < FEWEST_TO_WIN for figure in figures.values()):
        return None
    sign = 1 if more_is_better else -1
    best = max(figures, key=lambda name: sign * figures[name].median)
    mine = figures[best]
    for name, other in figures.items():
        if name != best and not (mine.low > other.high if more_is_better else mine.high < other.low):
            return None
    return best


def by_turns(
    variants: Mapping[K, Callable[[], Mapping[str, float]]],
    runs: int,
    ran: Callable[[K], None] = lambda _: None,
) -> dict[K, dict[str, Figure]]:
    """Run all variants in each of `runs` turns, and return the figures of each variant by the figures' names.
    Each turn begins with another variant (A B C, B C A, C A B …), so that disturbances that come at intervals
    do not always hit the same variant. `ran(name of the variant)` is called after each run. A variant must
    return the same names in each run.
    """
    if runs < 1:
        raise InvalidArgumentError(f"runs must be at least 1, not {runs}")
    names = list(variants)
    seen: dict[K, list[Mapping[str, float]]] = {name: [] for name in names}
    for turn in range(runs):
        for name in _turned(names, turn):
            seen[name].append(variants[name]())
            ran(name)
    return {name: _gathered(found) for name, found in seen.items()}


def _turned(names: Sequence[K], turn: int) -> list[K]:
    first = turn % len(names) if names else 0
    return [*names[first:], *names[:first]]


def _gathered(runs: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    return {name: Figure.of(run[name] for run in runs) for name in runs[0]}
