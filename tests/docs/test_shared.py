"""docs/shared.md has all rules of a shared store, and the code that refers to it names no other ones."""

from __future__ import annotations

import re

import pytest
from places import REPOSITORY

PAGE = (REPOSITORY / "docs" / "shared.md").read_text(encoding="utf-8")
FAMILIES = {"F": 4, "L": 7, "E": 5, "V": 3, "H": 4, "A": 5, "S": 3}
RULES = [f"{letter}{number}" for letter, most in FAMILIES.items() for number in range(1, most + 1)]
REFERRING = sorted(
    path
    for pattern in ("*.py", "*.c", "*.h")
    for path in (REPOSITORY / "segstore").rglob(pattern)
    if "docs/shared.md" in path.read_text(encoding="utf-8")
)
NAMED = re.compile(r"\b[FLEVHAS][0-9]\b")


def test_the_page_has_each_rule_once_in_order() -> None:
    assert re.findall(r"^- \*\*(\w+)\*\* ", PAGE, re.MULTILINE) == RULES


def test_code_refers_to_the_page() -> None:
    assert len(REFERRING) > 5


@pytest.mark.parametrize("path", REFERRING, ids=lambda path: path.name)
def test_code_names_rules_that_there_are(path: object) -> None:
    assert hasattr(path, "read_text")
    named = set(NAMED.findall(path.read_text(encoding="utf-8")))
    assert named - set(RULES) == set()


def test_the_page_names_rules_that_there_are() -> None:
    assert set(NAMED.findall(PAGE)) == set(RULES)
