"""Promise: each kind of append is measured on a log that gets all of it, and the page has the results."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from places import REPOSITORY

sys.path.append(str(REPOSITORY))

from benchmarks import append_kinds, result_pages
from benchmarks.append_kinds import KINDS, P50, P99, PLAIN, RATIO, SEND, Kind, Place, Setup
from segstore.bench import Results

pytestmark = pytest.mark.kind("programs")

SOME = [
    PLAIN,
    "a transaction of one record",
    SEND,
    "a follower, of a producer with an id",
    "a sweep each 10 ms",
]


def measured(names: list[str], directory: Path) -> Results:
    figures = append_kinds.measured(names, 1, 2, str(directory), lambda _: None)
    return append_kinds.results_of(figures, 1, 2, str(directory))


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_measured(name: str, tmp_path: Path) -> None:
    (cell,) = measured([name], tmp_path).cells
    assert cell.keys == {"kind": name, "of": KINDS[name].of}
    assert 0 < cell.figures[P50].median <= cell.figures[P99].median
    assert list(tmp_path.iterdir()) == []


def test_a_ratio_is_of_two_medians_in_a_round(tmp_path: Path) -> None:
    results = measured(SOME, tmp_path)
    by_name = {str(cell.keys["kind"]): cell.figures for cell in results.cells}
    for name, figures in by_name.items():
        theirs = by_name[KINDS[name].of][P50].median
        assert figures[RATIO].median == figures[P50].median / theirs
    assert by_name[PLAIN][RATIO].median == 1


def short(place: Place) -> Setup:
    """One that says that it appends two records, and appends one."""
    setup = append_kinds.appends(place.log(), b"v")
    return setup._replace(offsets=2)


def test_a_log_that_lacks_records_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "short", Kind(short))
    with pytest.raises(RuntimeError, match="short: the log ends at 4, and not at 8"):
        measured(["short"], tmp_path)


def test_what_is_measured_is_on_the_page_and_in_the_overview(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, others = tmp_path / "benchmarks.md", [tmp_path / "peers.md", tmp_path / "serve.md"]
    page.write_text(f"{append_kinds.BEGIN}old\n{append_kinds.END}")
    for each in others:
        each.write_text(f"{result_pages.BEGIN}old\n{result_pages.END}")
    out = tmp_path / "results"
    update = partial(result_pages.update, others[0], serve_page=others[1])
    monkeypatch.setattr(result_pages, "update", update)
    monkeypatch.setattr(append_kinds, "RESULTS", out)
    monkeypatch.setattr(append_kinds, "PAGE", page)
    monkeypatch.setattr(append_kinds, "KINDS", {PLAIN: KINDS[PLAIN]})
    asked = ["--out", str(out), "--runs", "1", "--calls", "2"]
    run = CliRunner().invoke(append_kinds.main, asked, catch_exceptions=False)
    assert run.exit_code == 0, run.output
    assert "| plain |" in page.read_text()
    assert (out / "README.md").read_text() == result_pages.overview(result_pages.results(out), out)


def test_the_page_has_the_results(tmp_path: Path) -> None:
    text = append_kinds.PAGE.read_text(encoding="utf-8")
    stored = append_kinds.stored()
    assert append_kinds.page(text, stored) == text, "run `make bench-append`, or append_kinds.page()"
    assert "No figures have been taken yet" in append_kinds.page(text, append_kinds.stored(tmp_path))
    made = append_kinds.page(text, replace(measured([PLAIN], tmp_path), settings={"runs": 1, "calls": 2}))
    assert "| plain |" in made
    with pytest.raises(ValueError, match="the page must have"):
        append_kinds.page(text.replace(append_kinds.BEGIN, ""), None)
