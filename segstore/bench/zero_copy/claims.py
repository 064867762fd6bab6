"""Common claims about zero copy, and the answers that the figures of a measurement give to them. Also finds
the winner of each cell, and the recommended methods.

Threads: any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from segstore.bench.figures import FEWEST_TO_WIN, Figure, winner
from segstore.bench.results import Cell, ClaimFinding, Results
from segstore.bench.zero_copy.measure import CPU, THROUGHPUT
from segstore.bench.zero_copy.plan import BARE, KIB, LOG, OS_SENDFILE, SIZE_NAMES, ContenderGroup
from segstore.errors import InvalidArgumentError
from segstore.storage.transfer.methods import choose
from segstore.storage.transfer.sinks import Sink

# --- wins --------------------------------------------------------------------------------------

# The code below decides which method wins.
#
# A method beats another method if its interval (see `figures`) is better than the other interval by at least
# MARGIN, and if there were enough runs. So no method wins because of a disturbance, or because of a
# difference that the next measurement may reverse.

MARGIN = 0.03
"""The minimum distance between the winner's interval and the interval of every other method, as a fraction.
On an idle machine two measurements of the same method may differ by less than this.
"""
MORE_IS_BETTER = {THROUGHPUT: True, CPU: False}
"""Measure in which a method can win -> whether a larger value is better."""


def beats(one: Figure, other: Figure, measure: str) -> bool:
    """Return whether figure `one` beats figure `other`."""
    return win({"one": one, "other": other}, measure) == "one"


def win(figures: Mapping[str, Figure], measure: str) -> str | None:
    """Return the name of the figure that beats all other figures. Return None if no figure beats all others,
    or if there is only one figure.
    """
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


# --- claims ------------------------------------------------------------

ENOUGH = 0.95
"""The fraction of a bare loop's throughput that `log.transfer` must reach."""
WAYS_SAID = {LOG: "through log.transfer", BARE: "by bare calls"}
MEASURES_SAID = {THROUGHPUT: "throughput", CPU: "the sender's CPU"}


def contenders(results: Results, measure: str, **keys: Any) -> dict[str, Figure]:
    """Return method -> the figure of `measure`, for the cells whose keys include `keys`. Leave out "auto" and
    the bare loop of os.sendfile, because each of them uses the method of another contender.
    """
    return {
        cell.keys["method"]: cell.figures[measure]
        for cell in results.where(**keys)
        if measure in cell.figures and cell.keys["method"] not in ("auto", OS_SENDFILE)
    }


# --- mmap against sendfile --------------------------------------------------------------------


def small_and_large(results: Results) -> ClaimFinding:
    """Return a finding that says for each sink, with a warm cache, at which size the winner changes from mmap
    to sendfile.
    """
    claim = "mmap is fast for small files, sendfile for large ones"
    if results.settings["runs"] < FEWEST_TO_WIN:
        return ClaimFinding(claim, f"Not told: nothing is called a win of fewer than {FEWEST_TO_WIN} runs.")
    said = []
    for way in (way for way in WAYS_SAID if results.where(way=way)):
        for measure, what in MEASURES_SAID.items():
            sinks = results.values("sink")
            found = [f"{sink}: {crossover(verdicts(results, measure, way, sink))}" for sink in sinks]
            said.append(f"In {what}, {WAYS_SAID[way]}: {'; '.join(found)}.")
    return ClaimFinding(claim, "\n".join(said))


def verdicts(results: Results, measure: str, way: str, sink: str) -> dict[int, str | None]:
    """Return size -> which of mmap and sendfile wins, None if neither wins."""
    found: dict[int, str | None] = {}
    for size in sorted(results.values("size")):
        figures = contenders(results, measure, way=way, sink=sink, size=size, cache="warm")
        if {"mmap", "sendfile"} <= figures.keys():
            found[size] = _better(figures, measure)
    return found


def _better(figures: Mapping[str, Figure], measure: str) -> str | None:
    for one, other in (("mmap", "sendfile"), ("sendfile", "mmap")):
        if beats(figures[one], figures[other], measure):
            return one
    return None


def crossover(found: Mapping[int, str | None]) -> str:
    """Return a text that says which of mmap and sendfile wins at which sizes. `found` is the result of
    `verdicts`.
    """
    won = [(size, who) for size, who in found.items() if who]
    stretches = [(who, [size for size, _ in group]) for who, group in groupby(won, lambda one: one[1])]
    if not found:
        return "not measured"
    if not stretches:
        return "no difference that can be told at any size"
    wins = ", ".join(f"{who} wins {_span(sizes)}" for who, sizes in stretches)
    if len(stretches) == 1:
        return f"no crossover, {wins}{_undecided(found)}"
    if [who for who, _ in stretches] == ["mmap", "sendfile"]:
        (_, small), (_, large) = stretches
        return f"crossover between {name(small[-1])} and {name(large[0])}: {wins}{_undecided(found)}"
    return f"no single crossover: {wins}{_undecided(found)}"


def name(size: int) -> str:
    """Return the size as text, such as "64 KiB"."""
    return SIZE_NAMES.get(size, f"{size:,} B")


def _span(sizes: list[int]) -> str:
    return f"at {name(sizes[0])}" if len(sizes) == 1 else f"from {name(sizes[0])} to {name(sizes[-1])}"


def _undecided(found: Mapping[int, str | None]) -> str:
    sizes = [name(size) for size, who in found.items() if who is None]
    return f" (neither at {', '.join(sizes)})" if sizes else ""


# --- the engine against a bare loop, and CPU against read ---------------------------------------


def against_bare_loop(results: Results) -> ClaimFinding:
    """Return a finding with the median throughput of log.transfer by sendfile, as a fraction of the median
    throughput of a bare loop of os.sendfile.
    """
    said = []
    for sink in results.values("sink"):
        ratios = {}
        for size in sorted(results.values("size")):
            keys = {"sink": sink, "size": size, "cache": "warm"}
            engine = results.where(way=LOG, method="sendfile", **keys)
            bare = results.where(way=BARE, method=OS_SENDFILE, **keys)
            if engine and bare:
                ratios[size] = engine[0].figures[THROUGHPUT].median / bare[0].figures[THROUGHPUT].median
        if ratios:
            parts = [f"{name(size)} {ratio:.2f}" for size, ratio in ratios.items()]
            said.append(f"{sink}: {', '.join(parts)}")
    claim = f"log.transfer by sendfile reaches {ENOUGH} of a bare loop of os.sendfile"
    return ClaimFinding(claim, "Of its throughput, by size: " + "\n".join(said) if said else "Not measured.")


def cpu_against_read(results: Results) -> ClaimFinding:
    """Return a finding with the sender's median CPU time per byte by each method, as a fraction of the median
    CPU time per byte by `read`. The size is the measured size that is nearest to 64 KiB.
    """
    size = min(results.values("size"), key=lambda one: abs(one - 64 * KIB))
    said = []
    for sink in results.values("sink"):
        figures = contenders(results, CPU, way=LOG, sink=sink, size=size, cache="warm")
        read = figures.pop("read", None)
        if read is not None:
            parts = [f"{method} {figure.median / read.median:.2f}" for method, figure in figures.items()]
            said.append(f"{sink} (read: {read.median:.3f} s/GB): {', '.join(parts)}")
    claim = "What is not copied costs no CPU: the sender's CPU time per byte, relative to `read`"
    return ClaimFinding(claim, f"At {name(size)}, warm: " + "\n".join(said))


# --- choices -----------------------------------------------------------------------------------

# The code below finds the method that the figures recommend for a sink and a size.
#
# Sendfile is recommended, unless another method beats sendfile in throughput or CPU time, and sendfile does
# not beat this method in either. If there are several such methods, the method with the highest throughput is
# recommended. For a size that was not measured, the recommendation is that of the next larger size.

USUAL = "sendfile"

Table = dict[str, list[tuple[int | None, str]]]
"""Sink -> steps (largest size in bytes, method), in order of size. In the last step the size is None, which
stands for all larger sizes.
"""


def recommended(results: Results) -> Table:
    """Return the methods that "auto" should choose, according to the figures of log.transfer with a warm page
    cache.
    """
    table: Table = {}
    sizes = sorted(results.values("size"))
    for sink in results.values("sink"):
        chosen = [(size, choice(results, sink, size)) for size in sizes]
        steps = [(max(group)[0], method) for method, group in groupby(chosen, lambda one: one[1])]
        table[sink] = [*steps[:-1], (None, steps[-1][1])]
    return table


def choice(results: Results, sink: str, size: int) -> str:
    """Return the recommended method for transfers of `size` bytes to `sink`."""
    found = {
        measure: contenders(results, measure, way=LOG, sink=sink, size=size, cache="warm")
        for measure in MORE_IS_BETTER
    }
    throughput = found[THROUGHPUT]
    if USUAL not in throughput:
        return USUAL
    better = [
        method
        for method in throughput
        if any(beats(figures[method], figures[USUAL], measure) for measure, figures in found.items())
        and not any(beats(figures[USUAL], figures[method], measure) for measure, figures in found.items())
    ]
    return max(better, key=lambda method: throughput[method].median, default=USUAL)


def what_auto_takes(results: Results) -> ClaimFinding:
    """Return a finding with the recommended methods, and the sizes at which "auto" now chooses another
    method.
    """
    said = []
    for sink, steps in recommended(results).items():
        now = choose(Sink(-1, sink, False))
        others = [name(size) for size in sorted(results.values("size")) if now != _at(steps, size)]
        text = ", ".join(f"{method}{_up_to(most)}" for most, method in steps)
        said.append(f"{sink}: {text}" + (f" (auto has another at {', '.join(others)})" if others else ""))
    return ClaimFinding('What method="auto" should take', "\n".join(said))


def _at(steps: Sequence[tuple[int | None, str]], size: int) -> str:
    return next(method for most, method in steps if most is None or size <= most)


def _up_to(most: int | None) -> str:
    return "" if most is None else f" up to {name(most)}"


# --- compare -----------------------------------------------------------------------------------

# The code below finds the winners, and compares the winners of two measurements.

Won = dict[tuple[str, ContenderGroup, str], str]
"""(way, group, measure) -> winning method."""


@dataclass
class ClaimComparison:
    """A comparison of the wins in two measurements, for the groups that both have. `same` are the groups with
    the same winner in both, `different` are the groups with different winners, and `once` are the groups that
    have a winner in only one of them.
    """

    same: Won = field(default_factory=dict)
    different: dict[tuple[str, ContenderGroup, str], tuple[str, str]] = field(default_factory=dict)
    once: Won = field(default_factory=dict)


def wins(results: Results) -> Won:
    """Return (way, group, measure) -> winning method. Leave out groups without a winner."""
    found: Won = {}
    for way, group in sorted(_groups(results)):
        for measure in MORE_IS_BETTER:
            best = win(contenders(results, measure, way=way, **group._asdict()), measure)
            if best is not None:
                found[way, group, measure] = best
    return found


def marked(results: Results) -> Results:
    """Return a copy of the results in which each cell has a note "wins": a list of the measures in which the
    cell's method wins.
    """
    won = wins(results)
    return replace(results, cells=[_marked(cell, won) for cell in results.cells])


def _marked(cell: Cell, won: Won) -> Cell:
    way, group = _place(cell)
    mine = [measure for measure in MORE_IS_BETTER if won.get((way, group, measure)) == cell.keys["method"]]
    return replace(cell, notes={**cell.notes, "wins": mine})


def who_wins(results: Results) -> ClaimFinding:
    """Return a finding with the number of groups that have a winner, and the number of wins of each method,
    for each measure.
    """
    places, won, said = _groups(results), wins(results), []
    for measure, what in MEASURES_SAID.items():
        counts = Counter(method for (_, _, of), method in won.items() if of == measure)
        who = ", ".join(f"{method} {n}" for method, n in counts.most_common())
        head = f"In {what} {counts.total()} of {len(places)} cells have a winner"
        said.append(f"{head}: {who}." if who else f"{head}.")
    return ClaimFinding("One way is the best", "\n".join(said))


def _place(cell: Cell) -> tuple[str, ContenderGroup]:
    keys = cell.keys
    return keys["way"], ContenderGroup(keys["size"], keys["cache"], keys["sink"])


def _groups(results: Results) -> set[tuple[str, ContenderGroup]]:
    return {_place(cell) for cell in results.cells}


def compare(one: Results, other: Results) -> ClaimComparison:
    """Compare the wins in the results of two measurements. Raises InvalidArgumentError if the two results
    have different names.
    """
    if one.name != other.name:
        raise InvalidArgumentError(f"results of {one.name} and of {other.name} can't be compared")
    ours, theirs = wins(one), wins(other)
    both = _groups(one) & _groups(other)
    found = ClaimComparison()
    for key in sorted(key for key in ours.keys() | theirs.keys() if key[:2] in both):
        a, b = ours.get(key), theirs.get(key)
        if a is None or b is None:
            found.once[key] = a or b or ""
        elif a == b:
            found.same[key] = a
        else:
            found.different[key] = (a, b)
    return found
