"""What follows from figures of zero copy: wins, the crossover, the table of copies, the choice of auto,
comparisons of two runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from segstore.bench.figures import Figure
from segstore.bench.results import Cell, Results
from segstore.bench.zero_copy import claims, report
from segstore.bench.zero_copy.claims import beats, compare, marked, recommended, who_wins, win
from segstore.bench.zero_copy.contenders import EXHIBITS, NOT_BUILT
from segstore.bench.zero_copy.copies import copy_table, rows
from segstore.bench.zero_copy.measure import CPU, THROUGHPUT
from segstore.bench.zero_copy.plan import BARE, KIB, LOG, MIB, OS_SENDFILE, Contender, ContenderGroup
from segstore.bench.zero_copy.syscalls import Judged, SyscallCounts
from segstore.errors import InvalidArgumentError

pytestmark = pytest.mark.kind("programs")

SMALL, MIDDLE, LARGE = KIB, 64 * KIB, MIB


def near(middle: float, spread: float = 0.01, runs: int = 5) -> Figure:
    return Figure(tuple(middle * (1 + spread * (2 * i / (runs - 1) - 1)) for i in range(runs)))


def cell(size: int, method: str, fast: float, cpu: float = 1.0, **more: Any) -> Cell:
    keys = {"way": LOG, "size": size, "cache": "warm", "sink": "tcp", "method": method}
    notes = {"calls": more.pop("calls", {})}
    return Cell({**keys, **more}, {THROUGHPUT: near(fast), CPU: near(cpu)}, notes)


def results(*cells: Cell, name: str = "zero-copy") -> Results:
    return Results(name, "?", {}, {"runs": 5}, cells)


# --- wins ----------------------------------------------------------------------------------------

WINS = {
    "apart": (near(110), near(100), True),
    "the intervals overlap": (near(101), near(100), False),
    "apart by less than the margin": (near(103), near(100), False),
    "worse": (near(90), near(100), False),
    "one bad run": (Figure((110, 110, 110, 110, 90)), near(100), False),
    "too few runs": (near(110, runs=4), near(100, runs=4), False),
}


@pytest.mark.parametrize("name", WINS)
def test_one_beats_the_other(name: str) -> None:
    one, other, expected = WINS[name]
    assert beats(one, other, THROUGHPUT) == expected
    less, more = (Figure(tuple(1 / run for run in figure.runs)) for figure in (one, other))
    assert beats(less, more, CPU) == expected


def test_a_winner_beats_all() -> None:
    figures = {"a": near(100), "b": near(110), "c": near(120)}
    assert win(figures, THROUGHPUT) == "c"
    assert win(figures, CPU) == "a"
    assert win({**figures, "d": near(121)}, THROUGHPUT) is None
    assert win({"a": near(1)}, THROUGHPUT) is None


# --- mmap against sendfile -----------------------------------------------------------------------

CROSSOVERS: dict[str, tuple[tuple[str | None, str | None, str | None], str]] = {
    "as people say": (
        ("mmap", "sendfile", "sendfile"),
        "crossover between 1 KiB and 64 KiB: mmap wins at 1 KiB, sendfile wins from 64 KiB to 1 MiB",
    ),
    "with a tie between": (
        ("mmap", None, "sendfile"),
        "crossover between 1 KiB and 1 MiB: mmap wins at 1 KiB, sendfile wins at 1 MiB (neither at 64 KiB)",
    ),
    "sendfile everywhere": (("sendfile",) * 3, "no crossover, sendfile wins from 1 KiB to 1 MiB"),
    "mmap or neither": ((None, "mmap", None), "no crossover, mmap wins at 64 KiB (neither at 1 KiB, 1 MiB)"),
    "nothing": ((None, None, None), "no difference that can be told at any size"),
    "the other way round": (
        ("sendfile", "mmap", "mmap"),
        "no single crossover: sendfile wins at 1 KiB, mmap wins from 64 KiB to 1 MiB",
    ),
    "to and fro": (
        ("mmap", "sendfile", "mmap"),
        "no single crossover: mmap wins at 1 KiB, sendfile wins at 64 KiB, mmap wins at 1 MiB",
    ),
}


@pytest.mark.parametrize("name", CROSSOVERS)
def test_the_crossover_in_words(name: str) -> None:
    winners, expected = CROSSOVERS[name]
    sizes = (SMALL, MIDDLE, LARGE)
    assert claims.crossover(dict(zip(sizes, winners, strict=True))) == expected
    cells = [
        cell(size, method, 200 if method == best else 100)
        for size, best in zip(sizes, winners, strict=True)
        for method in ("mmap", "sendfile")
    ]
    said = claims.small_and_large(results(*cells)).answer
    assert f"In throughput, through log.transfer: tcp: {expected}." in said
    assert "In the sender's CPU, through log.transfer: tcp: no difference" in said


def test_of_few_runs_nothing_is_told() -> None:
    few = Results("zero-copy", "?", {}, {"runs": 2}, [cell(SMALL, "mmap", 1), cell(SMALL, "sendfile", 9)])
    assert claims.small_and_large(few).answer.startswith("Not told")


def test_the_engine_against_a_bare_loop_and_read() -> None:
    found = results(
        cell(MIDDLE, "sendfile", 96, 0.2),
        cell(MIDDLE, "read", 50, 0.4),
        cell(MIDDLE, OS_SENDFILE, 100, 0.2, way=BARE),
    )
    assert "64 KiB 0.96" in claims.against_bare_loop(found).answer
    assert "sendfile 0.50" in claims.cpu_against_read(found).answer
    assert claims.against_bare_loop(results(cell(MIDDLE, "read", 1))).answer == "Not measured."


# --- the table of copies -------------------------------------------------------------------------

AS_TOLD: dict[str, Mapping[str, float]] = {
    "read": {"pread64": 1, "write": 1},
    "mmap": {"mmap": 1, "write": 1},
    "sendfile": {"sendfile": 1},
    "splice": {"splice": 1},
}


def test_calls_as_told() -> None:
    found = results(*(cell(MIDDLE, method, 1, way=BARE, calls=calls) for method, calls in AS_TOLD.items()))
    assert "tcp: the calls are as told" in copy_table(found).answer
    assert [row[4:] for row in rows(found)] == [["4", "4"], ["4", "4"], ["2", "2"], ["2", "2"], ["2", "2"]]


def test_calls_not_as_told() -> None:
    calls = {**AS_TOLD, "splice": {"splice": 2.5}}
    found = results(*(cell(MIDDLE, method, 1, way=BARE, calls=made) for method, made in calls.items()))
    assert "splice makes 2.5 splice in place of 1 splice" in copy_table(found).answer
    assert rows(found)[-1][-1] == "5"


# --- what auto shall take ------------------------------------------------------------------------

CHOICES: dict[str, tuple[list[tuple[int, str, float, float]], list[tuple[int | None, str]]]] = {
    "nothing beats sendfile": ([(SMALL, "read", 100, 1.0)], [(None, "sendfile")]),
    "faster": (
        [(SMALL, "read", 200, 1.0), (MIDDLE, "read", 50, 1.0)],
        [(SMALL, "read"), (None, "sendfile")],
    ),
    "cheaper": ([(LARGE, "splice", 100, 0.5)], [(MIDDLE, "sendfile"), (None, "splice")]),
    "faster, but dearer": ([(SMALL, "mmap", 200, 2.0)], [(None, "sendfile")]),
    "two, the faster one": (
        [(SMALL, "mmap", 200, 1.0), (SMALL, "read", 300, 1.0)],
        [(SMALL, "read"), (None, "sendfile")],
    ),
    "auto is no method of its own": ([(SMALL, "auto", 300, 0.5)], [(None, "sendfile")]),
}


@pytest.mark.parametrize("name", CHOICES)
def test_what_auto_shall_take(name: str) -> None:
    others, expected = CHOICES[name]
    usual = [cell(size, "sendfile", 100) for size in (SMALL, MIDDLE, LARGE)]
    found = results(*usual, *(cell(size, method, fast, cpu) for size, method, fast, cpu in others))
    assert recommended(found) == {"tcp": expected}


def test_where_auto_takes_another_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [cell(size, "sendfile", 100) for size in (SMALL, MIDDLE, LARGE)]
    found = results(*sizes, cell(SMALL, "read", 200))
    monkeypatch.setattr(claims, "choose", lambda sink: "read")
    said = "tcp: read up to 1 KiB, sendfile (auto has another at 64 KiB, 1 MiB)"
    assert claims.what_auto_takes(found).answer == said


# --- two runs ------------------------------------------------------------------------------------


def two(a: float, b: float, name: str = "zero-copy") -> Results:
    return results(cell(SMALL, "mmap", a), cell(SMALL, "sendfile", b), name=name)


def test_two_runs() -> None:
    same = compare(two(200, 100), two(150, 100))
    assert (list(same.same.values()), same.different, same.once) == (["mmap"], {}, {})
    different = compare(two(200, 100), two(100, 200))
    assert list(different.different.values()) == [("mmap", "sendfile")]
    once = compare(two(200, 100), two(100, 100))
    assert (once.same, once.different, list(once.once.values())) == ({}, {}, ["mmap"])


def test_who_wins() -> None:
    found = marked(two(200, 100))
    assert [cell.notes["wins"] for cell in found.cells] == [[THROUGHPUT], []]
    said = (
        "In throughput 1 of 1 cells have a winner: mmap 1.\nIn the sender's CPU 0 of 1 cells have a winner."
    )
    assert who_wins(found).answer == said


def test_what_only_one_run_measured_is_not_held_against_it() -> None:
    other = results(cell(LARGE, "mmap", 200), cell(LARGE, "sendfile", 100))
    held = compare(two(200, 100), other)
    assert (held.same, held.different, held.once) == ({}, {}, {})


def test_results_of_something_else_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="zero-copy and of batching"):
        compare(two(1, 1), two(1, 1, name="batching"))


# --- what is said of the measurement itself -------------------------------------------------------

KEY = (ContenderGroup(MIDDLE, "warm", "tcp"), Contender(LOG, "zerocopy"))
NOTICES = {
    "all copied": ({KEY: SyscallCounts({}, 12, 12)}, {}, "all 12 notices"),
    "some": ({KEY: SyscallCounts({}, 12, 3)}, {}, "Of 12 notices that the kernel gave, 3 said"),
    "none": ({KEY: SyscallCounts({}, 0, 0)}, {}, "Not measured."),
    "missing": ({}, {"zerocopy": "the kernel has it not"}, "Not available here: the kernel has it not."),
    "one is missing": (
        {KEY: SyscallCounts({}, 12, 3)},
        {"io_uring": "the kernel has it not"},
        "it had copied after all. Not available here: the kernel has it not.",
    ),
    "both are missing": ({}, dict.fromkeys(EXHIBITS, NOT_BUILT), f"Not available here: {NOT_BUILT}."),
}


@pytest.mark.parametrize("name", NOTICES)
def test_notices_of_zerocopy(name: str) -> None:
    counted, missing, said = NOTICES[name]
    assert said in report.zerocopy(counted, missing).answer


def test_strace_agrees_or_not() -> None:
    alike = Judged({"sendfile": 8}, {"sendfile": 8})
    other = Judged({"sendfile": 8}, {"sendfile": 9})
    said = report.calls_judged({("tcp", "sendfile"): alike, ("pipe", "sendfile"): other}).answer
    assert said.startswith("The same for 1 of 2")
    assert "sendfile to pipe: 8 sendfile were counted, strace saw 9 sendfile" in said
    assert report.calls_judged("there is no strace here").answer == "Not judged: there is no strace here."


def test_runs_that_were_not_cold_are_told() -> None:
    warm = Cell({**cell(SMALL, "mmap", 1).keys, "cache": "cold"}, {}, {"not cold": 3})
    assert "1 KiB to tcp by mmap (3)" in report.cold_enough(results(warm)).answer
    cold = Cell(warm.keys, {}, {})
    assert report.cold_enough(results(cold)).answer == "mincore said so before every run."
    assert report.cold_enough(two(1, 1)).answer == "Not measured."
