"""Promise: what is measured of tables gives the right answers, and the page has the results."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from places import REPOSITORY

sys.path.append(str(REPOSITORY))
pytest.importorskip("duckdb", reason="DuckDB is not installed")
pytest.importorskip("polars", reason="polars is not installed")

from benchmarks import bench_tables, table_works
from benchmarks.table_works import ITSELF, MS, RANGE, Case, Data

pytestmark = pytest.mark.kind("programs")

RECORDS = 12_345


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Data]:
    with table_works.made(tmp_path_factory.mktemp("tables"), RECORDS, 10) as made:
        yield made


@pytest.mark.parametrize("case", list(table_works.cases()), ids=" ".join)
def test_a_work_is_measured(case: Case, data: Data) -> None:
    assert table_works.run(case, data)[MS] > 0


def test_a_wrong_answer_is_told(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table_works.WAYS, "DuckDB", lambda case, data: 1)
    with pytest.raises(RuntimeError, match="1 is not"):
        table_works.run(Case(RANGE, "DuckDB"), data)


def test_the_memory_of_a_process_is_told(data: Data) -> None:
    assert table_works.peak(Case("count(*)", ITSELF), data) > 10


def test_the_page_has_what_is_kept() -> None:
    text = bench_tables.PAGE.read_text(encoding="utf-8")
    assert bench_tables.page(text, bench_tables.stored()) == text
