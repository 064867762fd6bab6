"""What a figure is, and when one is better than others. Threads: any; no state.

A figure is several runs of the same thing. Its interval has the true median with a probability of
CONFIDENCE at least, whatever the distribution (the sign test's interval, of order statistics): for five to
eight runs from the lowest to the highest, because all of them must lie on one side to miss it; for 11 from
the third to the ninth, so that disturbances of a run or two neither make nor hide a winner. One figure is
called better than another only where their intervals don't touch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any, TypeVar

from segstore.errors import InvalidArgumentError

RUNS = 7
FEWEST_TO_WIN = 5
CONFIDENCE = 0.93

K = TypeVar("K")


@dataclass(frozen=True)
class Figure:
    """The same thing measured again and again, in the order of time; at least once, finite numbers."""

    runs: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.runs or not all(map(math.isfinite, self.runs)):
            raise InvalidArgumentError(f"a figure needs at least one run, all finite, not {self.runs!r}")

    @property
    def median(self) -> float:
        return median(self.runs)

    @property
    def low(self) -> float:
        """Where the interval begins."""
        return sorted(self.runs)[outside(len(self.runs))]

    @property
    def high(self) -> float:
        """Where it ends."""
        return sorted(self.runs)[-1 - outside(len(self.runs))]

    @property
    def spread(self) -> float:
        """How far the interval reaches from the median, as a part of the median; 0 where that is 0."""
        middle = self.median
        return max(self.high - middle, middle - self.low) / abs(middle) if middle else 0.0

    def as_json(self) -> list[float]:
        """All runs, of which everything else follows."""
        return list(self.runs)

    @classmethod
    def of(cls, json: Iterable[float]) -> Figure:
        """From runs, or from what `as_json` gave. Raises InvalidArgumentError."""
        return cls(tuple(map(float, json)))

    def per(self, amount: float) -> Figure:
        """`amount` divided by each run: seconds become a rate."""
        return Figure(tuple(amount / run for run in self.runs))

    def times(self, factor: float) -> Figure:
        """Each run in another unit."""
        return Figure(tuple(run * factor for run in self.runs))


@cache
def outside(runs: int) -> int:
    """How many of so many runs the interval leaves out on each side: the most that CONFIDENCE allows."""
    outer, missed = 0, 2.0 / 2**runs
    while 1 - (missed := missed + 2 * math.comb(runs, outer + 1) / 2**runs) >= CONFIDENCE:
        outer += 1
    return outer


def winner(figures: Mapping[K, Figure], more_is_better: bool) -> K | None:
    """The one whose interval overlaps no other's and is the best.

    None where it overlaps another's, where any has fewer than 5 runs, and where there is nothing to beat.
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
    """Run all variants one after the other, `runs` times (A B C A B C …): the figures of each.

    Each turn begins with another variant, so that none always comes behind the same one. `ran` is told
    of each run. A variant gives the same names every time.
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


def _gathered(found: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    return {name: Figure.of(one[name] for one in found) for name in found[0]}
