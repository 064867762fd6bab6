"""docs/packaging.md names the wheels that are built, the dependencies that there are, and paths that are
there.
"""

from __future__ import annotations

import re

import pytest
from places import REPOSITORY

PAGE = (REPOSITORY / "docs" / "packaging.md").read_text(encoding="utf-8")
PLACES = sorted(set(re.findall(r"`((?:segstore|tests|docs|tools)/[\w./]*)`", PAGE)))


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    lines = PAGE.partition(f"## {heading}\n")[2].splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("|"))
    table = [line for line in lines[begin:] if line.startswith("|") or not line]
    return [line.strip("|").split("|") for line in table[2 : table.index("")]]


def test_the_wheels_are_those_that_are_built() -> None:
    source = (REPOSITORY / "tools" / "wheels.py").read_text(encoding="utf-8")
    platforms = re.findall(r'^    "(\w+linux_\w+)": ', source, re.MULTILINE)
    assert [row[0].strip(" `") for row in rows("Wheels")] == [f"cp310-abi3-{each}" for each in platforms]


def test_each_dependency_has_its_cost() -> None:
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r"^dependencies = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    assert block is not None
    needed = set(re.findall(r'"([\w-]+)', block[1]))
    told = [row for row in rows("What each dependency costs") if "nothing any more" not in row[4]]
    assert {name for row in told for name in row[0].strip().split(", ")} == needed


@pytest.mark.parametrize("place", PLACES)
def test_place_is_there(place: str) -> None:
    assert (REPOSITORY / place).exists()
