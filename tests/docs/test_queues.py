"""docs/queue-rules.md has the rules of share groups, and code and tests refer to no other ones; the tables of
docs/queues.md are those of the settings.
"""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from types import ModuleType

import pytest
from loading import loaded
from places import REPOSITORY

from benchmarks import bench_queue, queue_consumers
from benchmarks.queue_consumers import Case

PAGE = (REPOSITORY / "docs" / "queue-rules.md").read_text(encoding="utf-8")
RULES = re.findall(r"^- \*\*([QPD]\d+)\*\* ", PAGE, re.MULTILINE)
NAMED = re.compile(r"(?<![A-Za-z0-9])Q[0-9]{1,3}(?![A-Za-z0-9])|(?<=_)q[0-9]{1,3}(?=_)|Q[0-9]{1,3}(?= to Q)")
OTHERS = ("tests/models/simulation/cases.py", "tests/spark/test_sink_kill.py", "tests/docs/test_queues.py")
"""Files in which such a word means something else."""


def referring() -> dict[str, set[str]]:
    """Return the rules that files name, by file."""
    found = {}
    for place in ("segstore", "tests", "tools"):
        for path in sorted((REPOSITORY / place).rglob("*.py")):
            name = str(path.relative_to(REPOSITORY))
            rules = {rule.upper() for rule in NAMED.findall(path.read_text(encoding="utf-8"))}
            if rules and name not in OTHERS:
                found[name] = rules
    return found


def numbers(letter: str) -> list[int]:
    return [int(rule[1:]) for rule in RULES if rule[0] == letter]


def test_the_page_has_each_rule_once_in_order() -> None:
    for letter in "QPD":
        assert numbers(letter) == sorted(set(numbers(letter)))
    assert numbers("P") == [*range(1, 13)]
    assert len(numbers("Q")) > 95


def test_code_and_tests_name_rules_that_there_are() -> None:
    found = referring()
    assert len(found) > 30
    assert {name: sorted(rules - {*RULES}) for name, rules in found.items() if rules - {*RULES}} == {}


def test_the_page_names_rules_that_there_are() -> None:
    assert {rule.upper() for rule in NAMED.findall(PAGE)} - {*RULES} == set()


GUIDE = (REPOSITORY / "docs" / "queues.md").read_text(encoding="utf-8")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REPOSITORY / "tools"))
    return loaded(REPOSITORY / "tools" / "queue_tables.py")


def test_the_tables_are_up_to_date(tool: ModuleType) -> None:
    assert tool.page(GUIDE) == GUIDE, "run `.venv/bin/python tools/queue_tables.py`"


def test_a_table_that_is_not_up_to_date_is_seen(tool: ModuleType) -> None:
    assert tool.page(GUIDE.replace("`share.delivery.count.limit` |", "`share.limit` |")) == GUIDE
    with pytest.raises(ValueError, match="not taken"):
        tool.page(GUIDE.replace("<!-- not taken -->", ""))


# --- figures -------------------------------------------------------------------------------------


def test_the_figures_are_those_of_the_results() -> None:
    assert bench_queue.page(GUIDE, bench_queue.stored()) == GUIDE, "run bench_queue.update()"
    with pytest.raises(ValueError, match="the page must have"):
        bench_queue.page(GUIDE.replace("<!-- figures -->", ""), None)


def test_each_figure_that_is_wanted_is_of_a_case_that_is_measured() -> None:
    for wanted in bench_queue.WANTED:
        assert {wanted.of, wanted.to or wanted.of} <= {*bench_queue.CASES}, wanted.claim


MEASURED = [
    Case(queue_consumers.SHARE, 3, 100),
    Case(queue_consumers.SHARE, 1, 1, durable=True),
    Case(queue_consumers.CONSUMER, 1, 1, durable=True),
    Case(queue_consumers.PERSIST, 2),
    Case(queue_consumers.SQLITE, 2, durable=True),
]


@pytest.mark.kind("costly unit tests")
@pytest.mark.parametrize("case", MEASURED, ids=lambda case: f"{case.consumers} of {case.way}")
def test_a_case_is_measured(case: Case, tmp_path: Path) -> None:
    """The run counts what is not acknowledged: see `run`."""
    if not queue_consumers.can_run(case):
        pytest.skip("persist-queue is not installed")
    found = queue_consumers.run(case, 0.01, str(tmp_path))
    assert found[queue_consumers.RATE] > 0
    assert 0 < found[queue_consumers.P50] <= found[queue_consumers.P99]
    assert 0 <= found[queue_consumers.LEAST] <= 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.kind("costly unit tests")
def test_a_first_job_is_measured(tmp_path: Path) -> None:
    for way in queue_consumers.FIRSTS:
        assert queue_consumers.run(Case(way), 0.01, str(tmp_path))[queue_consumers.MS] > 0


@pytest.mark.kind("costly unit tests")
def test_a_job_that_is_left_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_consumers, "DONE", f"{queue_consumers.DONE} AND id != 7")
    with pytest.raises(RuntimeError, match="1 of 200 jobs are not acknowledged"):
        queue_consumers.run(Case(queue_consumers.SQLITE), 0.01, str(tmp_path))


def test_a_consumer_that_fails_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_consumers, "CLAIM", "no statement")
    with pytest.raises(sqlite3.OperationalError, match="syntax error"):
        queue_consumers.run(Case(queue_consumers.SQLITE, 2), 0.01, str(tmp_path))
