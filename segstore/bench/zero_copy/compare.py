"""Who wins in each cell, and whether two runs agree on it. Nothing on disk. Threads: any."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from segstore.bench.results import Cell, Finding, Results
from segstore.bench.zero_copy.cells import Group
from segstore.bench.zero_copy.claims import MEASURES_SAID, contenders
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


def marked(results: Results) -> Results:
    """The same results; each cell's notes have in "wins" what its method wins there."""
    won = wins(results)
    return replace(results, cells=[_marked(cell, won) for cell in results.cells])


def _marked(cell: Cell, won: Won) -> Cell:
    way, group = _place(cell)
    mine = [measure for measure in MORE_IS_BETTER if won.get((way, group, measure)) == cell.keys["method"]]
    return replace(cell, notes={**cell.notes, "wins": mine})


def who_wins(results: Results) -> Finding:
    """How many cells have a winner, and who that is."""
    places, won, said = _groups(results), wins(results), []
    for measure, what in MEASURES_SAID.items():
        counts = Counter(method for (_, _, of), method in won.items() if of == measure)
        who = ", ".join(f"{method} {n}" for method, n in counts.most_common())
        head = f"In {what} {counts.total()} of {len(places)} cells have a winner"
        said.append(f"{head}: {who}." if who else f"{head}.")
    return Finding("One way is the best", "\n".join(said))


def _place(cell: Cell) -> tuple[str, Group]:
    keys = cell.keys
    return keys["way"], Group(keys["size"], keys["cache"], keys["sink"])


def _groups(results: Results) -> set[tuple[str, Group]]:
    return {_place(cell) for cell in results.cells}


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
