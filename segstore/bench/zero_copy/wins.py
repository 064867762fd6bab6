"""What is called a win: an interval that lies on one side of the other's. Nothing on disk. Threads: any.

One method beats another where its interval (see `figures`) lies apart from the other's, by MARGIN at least,
and there were enough runs. Whatever bears on all methods alike then makes no winner, nor does a difference
that the next run may turn round.
"""

from __future__ import annotations

from collections.abc import Mapping

from segstore.bench.figures import Figure, winner
from segstore.bench.zero_copy.measure import CPU, THROUGHPUT

MARGIN = 0.03
"""Of the better one's nearest run: what two runs of one method on a machine at rest may differ by."""
MORE_IS_BETTER = {THROUGHPUT: True, CPU: False}
"""What can be won."""


def beats(one: Figure, other: Figure, measure: str) -> bool:
    """Whether `one` wins against `other`."""
    return win({"one": one, "other": other}, measure) == "one"


def win(figures: Mapping[str, Figure], measure: str) -> str | None:
    """The one that beats all others, by name; None where there is none such, or no other."""
    more = MORE_IS_BETTER[measure]
    best = winner(figures, more) if len(figures) > 1 else None
    if best is None:
        return None
    others = [figure for name, figure in figures.items() if name != best]
    if more:
        apart = figures[best].low >= (1 + MARGIN) * max(figure.high for figure in others)
    else:
        apart = figures[best].high * (1 + MARGIN) <= min(figure.low for figure in others)
    return best if apart else None
