"""Whether two runs agree on what they call a win. Nothing on disk. Threads: any."""

from __future__ import annotations

from dataclasses import dataclass, field

from segstore.bench.results import Results
from segstore.bench.zero_copy.cells import Group
from segstore.bench.zero_copy.claims import contenders
from segstore.bench.zero_copy.wins import MORE_IS_BETTER, win
from segstore.errors import InvalidArgumentError

Won = dict[tuple[str, Group, str], str]
"""(Way, group, measure) -> winner."""


@dataclass
class Comparison:
    """Cells that both runs call a win, with the `same` winner or with `different` ones; and those that only
    one of them does.
    """

    same: Won = field(default_factory=dict)
    different: dict[tuple[str, Group, str], tuple[str, str]] = field(default_factory=dict)
    once: Won = field(default_factory=dict)


def wins(results: Results) -> Won:
    """All wins among the methods of a cell."""
    found: Won = {}
    for way, group in sorted(_groups(results)):
        for measure in MORE_IS_BETTER:
            best = win(contenders(results, measure, way=way, **group._asdict()), measure)
            if best is not None:
                found[way, group, measure] = best
    return found


def _groups(results: Results) -> set[tuple[str, Group]]:
    return {(c.keys["way"], Group(c.keys["size"], c.keys["cache"], c.keys["sink"])) for c in results.cells}


def compare(one: Results, other: Results) -> Comparison:
    """Hold the wins of two runs against each other. InvalidArgumentError where they measured something
    else.
    """
    if one.name != other.name:
        raise InvalidArgumentError(f"results of {one.name} and of {other.name} can't be compared")
    ours, theirs = wins(one), wins(other)
    both = _groups(one) & _groups(other)
    found = Comparison()
    for key in sorted(key for key in ours.keys() | theirs.keys() if key[:2] in both):
        a, b = ours.get(key), theirs.get(key)
        if a is None or b is None:
            found.once[key] = a or b or ""
        elif a == b:
            found.same[key] = a
        else:
            found.different[key] = (a, b)
    return found
