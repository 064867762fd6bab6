"""Figures, winners, results, pictures and tables of segstore.bench."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import xml.etree.ElementTree
from pathlib import Path

import pytest
from rich.console import Console

from segstore.bench import RUNS, Cell, ClaimFinding, Figure, Results, load, machine, winner, write
from segstore.bench.figures import CONFIDENCE, by_turns, outside
from segstore.bench.plots import bars, label, lines, panels, save
from segstore.bench.results import text
from segstore.bench.terminal import figure_text, findings, machine_text, markdown, number_text, table
from segstore.errors import InvalidArgumentError

pytestmark = pytest.mark.kind("programs")


def near(middle: float, spread: float = 0.5, runs: int = 5) -> Figure:
    """Runs from middle - spread to middle + spread."""
    return Figure(tuple(middle + spread * (2 * i / (runs - 1) - 1) for i in range(runs)))


def some_results() -> Results:
    cells = [
        Cell({"way": way, "bytes": size}, {"MB/s": near(speed), "µs": near(1000 / speed)}, {"calls": size})
        for size in (512, 65536)
        for way, speed in (("read", 100.0), ("mmap|ed", 200.0))
    ]
    where = machine("/", ["rich", "no-such-package"])
    return Results("some", "Which?", where, {"runs": 5}, cells, [ClaimFinding("mmap wins", "It does.")])


def test_a_figure() -> None:
    figure = Figure((3.0, 1.0, 2.0, 10.0))
    assert (figure.median, figure.low, figure.high, figure.spread) == (2.5, 1.0, 10.0, 3.0)
    assert Figure.of(json.loads(json.dumps(figure.as_json()))) == figure
    assert figure.times(2) == Figure((6.0, 2.0, 4.0, 20.0))


@pytest.mark.parametrize("runs", range(1, 40))
def test_an_interval_has_the_median_as_often_as_is_said(runs: int) -> None:
    """As many of the runs lie below the median as coins fall on one side."""
    left_out = outside(runs)
    missed = [k for k in range(runs + 1) if k <= left_out or runs - k <= left_out]
    wrong = sum(math.comb(runs, k) for k in missed) / 2**runs
    assert wrong <= 1 - CONFIDENCE or left_out == 0
    wider = sum(math.comb(runs, k) for k in range(left_out + 2)) * 2 / 2**runs
    assert wider > 1 - CONFIDENCE
    figure = Figure(tuple(range(runs, 0, -1)))
    assert (figure.low, figure.high) == (1 + left_out, runs - left_out)


@pytest.mark.parametrize("runs", [(), (1.0, float("nan")), (float("inf"),)], ids=str)
def test_no_figure(runs: tuple[float, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match="at least one run, all finite"):
        Figure(runs)


WINNERS = {
    "far apart, more is better": ({"a": near(10), "b": near(20), "c": near(30)}, True, "c"),
    "far apart, less is better": ({"a": near(10), "b": near(20), "c": near(30)}, False, "a"),
    "the two best overlap": ({"a": near(10), "b": near(30, 2), "c": near(31)}, True, None),
    "others overlap": ({"a": near(10), "b": near(10), "c": near(31)}, True, "c"),
    "they touch": ({"a": Figure((1.0,) * 4 + (2.0,)), "b": Figure((2.0,) * 5)}, True, None),
    "one has four runs": ({"a": near(10, runs=4), "b": near(20)}, True, None),
    "alone": ({"a": near(10)}, True, None),
    "nobody": ({}, True, None),
    "one run of the best is bad": ({"a": near(10), "b": Figure((50.0,) * 6 + (5.0,))}, True, None),
    "of 15, three are bad": ({"a": near(10, runs=15), "b": Figure((50.0,) * 12 + (5.0,) * 3)}, True, "b"),
    "of 15, four are bad": ({"a": near(10, runs=15), "b": Figure((50.0,) * 11 + (5.0,) * 4)}, True, None),
    "one run of the others is good": ({"a": Figure((9.0,) * 6 + (99.0,)), "b": near(50)}, True, None),
}


@pytest.mark.parametrize("name", WINNERS)
def test_winner(name: str) -> None:
    figures, more_is_better, best = WINNERS[name]
    assert winner(figures, more_is_better) == best


def test_variants_take_turns_and_each_is_once_the_first() -> None:
    order: list[str] = []
    count = iter(range(100))
    told: list[str] = []
    figures = by_turns(
        {name: lambda name=name: (order.append(name), {"n": next(count)})[1] for name in "abc"},
        3,
        told.append,
    )
    assert "".join(order) == "".join(told) == "abcbcacab"
    assert figures == {
        "a": {"n": Figure((0, 5, 7))},
        "b": {"n": Figure((1, 3, 8))},
        "c": {"n": Figure((2, 4, 6))},
    }
    with pytest.raises(InvalidArgumentError, match="at least 1, not 0"):
        by_turns({"a": dict}, 0)
    assert RUNS >= 5


def test_results_are_kept(tmp_path: Path) -> None:
    results, path = some_results(), tmp_path / "some.json"
    write(results, path)
    assert load(path) == results
    first = path.read_bytes()
    write(load(path), path)
    assert path.read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == ["some.json"]


def test_the_order_of_keys_is_of_no_account() -> None:
    results = some_results()
    turned = [
        Cell(dict(reversed(cell.keys.items())), dict(reversed(cell.figures.items())), cell.notes)
        for cell in results.cells
    ]
    assert text(results) == text(dataclasses.replace(results, cells=turned))


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"name": 1}', "\xff", '{"cells": [{"figures": {"a": []}}]}']
)
def test_no_results(tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(InvalidArgumentError, match=r"bad\.json holds no results"):
        load(path)


def test_cells_are_found_by_keys() -> None:
    results = some_results()
    assert results.values("way") == ["read", "mmap|ed"]
    assert results.values("bytes") == [512, 65536]
    assert [cell.keys["bytes"] for cell in results.where(way="read")] == [512, 65536]
    assert results.cell(way="read", bytes=512).figures["MB/s"].median == 100
    with pytest.raises(InvalidArgumentError, match="2 cells"):
        results.cell(way="read")
    with pytest.raises(InvalidArgumentError, match="0 cells"):
        results.cell(way="writing")


def test_the_machine_is_told(tmp_path: Path) -> None:
    found = json.loads(json.dumps(machine(tmp_path, ["rich", "no-such-package"])))
    assert found["packages"]["rich"]
    assert found["packages"]["segstore"]
    assert found["packages"]["no-such-package"] is None
    assert found["cores"] >= 1
    assert found["memory"] > 1 << 20
    assert found["filesystem"]["type"] != "unknown"
    shm = machine("/dev/shm")["filesystem"]
    assert (shm["type"], shm["rotational"]) == ("tmpfs", None)


NUMBERS = {
    0: "0",
    1234.4: "1,234",
    123.4: "123",
    12.34: "12.3",
    1.234: "1.23",
    0.1234: "0.123",
    0.0001: "1.0e-04",
}


def test_numbers_have_three_digits_that_count() -> None:
    assert {number: number_text(number) for number in NUMBERS} == NUMBERS
    assert number_text(-1234.4) == "-1,234"
    assert figure_text(near(100, 5)) == "100 ±5%"
    assert figure_text(Figure((7.0,))) == "7.00"


def test_tables() -> None:
    results = some_results()
    console = Console(file=io.StringIO(), width=80)
    console.print(table(results), findings(results), machine_text(results))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "mmap|ed  65,536  200 ±0%" in " ".join(shown.split(" ")).replace("   ", "  ")
    assert "It does." in shown
    assert markdown(results).splitlines()[:3] == [
        "| way | bytes | MB/s | µs |",
        "| :-- | --: | --: | --: |",
        "| read | 512 | 100 ±0% | 10.0 ±5% |",
    ]
    assert "mmap\\|ed" in markdown(results, results.where(way="mmap|ed"))


def draw(path: Path) -> list[str]:
    with panels("Two", 2) as (left, right):
        lines(left, {"a": {1: near(1), 10: near(20)}, "b": {1: near(3), 10: near(2)}})
        bars(right, {"g": {"a": near(1), "b": near(2)}, "h": {"b": near(4)}}, values=True)
        return save(left.figure, path)


def test_pictures_are_the_same_each_time(tmp_path: Path) -> None:
    first, again = draw(tmp_path / "first"), draw(tmp_path / "again")
    assert [Path(path).name for path in first] == ["first.png", "first.svg"]
    for one, other in zip(first, again, strict=True):
        assert Path(one).read_bytes() == Path(other).read_bytes()
    assert Path(first[0]).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert xml.etree.ElementTree.parse(first[1]).getroot().tag.endswith("svg")


def test_a_drawing_keeps_to_the_users_settings_nowhere_and_leaves_them(tmp_path: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"font.size": 30.0}):
        with panels("T", 1) as (axes,):
            label(axes, "x, bytes", "y, µs", xlog=True, ylog=True)
            lines(axes, {"a": {1: near(1), 10: near(20)}})
            assert matplotlib.rcParams["font.size"] == 10
            assert (axes.get_xscale(), axes.get_yscale(), axes.get_xlabel()) == ("log", "log", "x, bytes")
        assert matplotlib.rcParams["font.size"] == 30.0
