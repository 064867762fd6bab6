"""docs/queue-rules.md has the rules of share groups, and code and tests refer to no other ones; the tables of
docs/queues.md are those of the settings.
"""

from __future__ import annotations

import re
from types import ModuleType

import pytest
from loading import loaded
from places import REPOSITORY

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
