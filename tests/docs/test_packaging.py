"""docs/packaging.md names the wheels that are built, the dependencies that there are, and paths that are
there.
"""

from __future__ import annotations

import re

import pytest
from places import REPOSITORY

from benchmarks import bench_dependencies
from segstore.bench import load

PAGE = (REPOSITORY / "docs" / "packaging.md").read_text(encoding="utf-8")
PLACES = sorted(set(re.findall(r"`((?:segstore|tests|docs|tools)/[\w./]*)`", PAGE)))


def rows(heading: str, head: str = "|") -> list[list[str]]:
    """The cells of the first table below a heading whose head begins so, without that head."""
    lines = PAGE.partition(f"## {heading}\n")[2].splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith(head))
    table = [line for line in lines[begin:] if line.startswith("|") or not line]
    return [line.strip("|").split("|") for line in table[2 : table.index("")]]


def test_the_wheels_are_those_that_are_built() -> None:
    source = (REPOSITORY / "tools" / "wheels.py").read_text(encoding="utf-8")
    platforms = re.findall(r'^    "(\w+linux_\w+)": ', source, re.MULTILINE)
    assert [row[0].strip(" `") for row in rows("Wheels")] == [f"cp310-abi3-{each}" for each in platforms]


def needed() -> set[str]:
    """The packages that pyproject.toml names."""
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r"^dependencies = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    assert block is not None
    return set(re.findall(r'"([\w-]+)', block[1]))


def test_each_dependency_has_its_cost_and_its_reason() -> None:
    told = [row[0].strip() for row in rows("What each dependency costs")]
    assert set(told[1:-1]) == needed() == bench_dependencies.IMPORTED.keys()
    reasons = rows("What each dependency costs", "| package | who imports it")
    assert {name for row in reasons for name in row[0].strip().split(", ")} == needed()


def test_the_tables_are_those_of_the_results() -> None:
    results = load(REPOSITORY / "benchmarks" / "results" / "dependencies.json")
    assert bench_dependencies.page(PAGE, results) == PAGE, "run bench_dependencies.update()"
    with pytest.raises(ValueError, match="the page must have <!-- dependencies -->"):
        bench_dependencies.page(PAGE.replace("<!-- dependencies -->", ""), results)


def test_a_package_is_measured_with_what_it_needs() -> None:
    """Other than `without`, which have rows of their own."""
    assert bench_dependencies.needs("cffi") == ["pycparser"]
    assert bench_dependencies.needs("numpy") == []
    assert "pygments" in bench_dependencies.needs("rich")
    assert "pygments" not in bench_dependencies.needs("rich", ["pygments"])
    assert bench_dependencies.installed("pycparser") > 100_000
    assert bench_dependencies.taken(["-c", "import cffi"])[bench_dependencies.MS] > 0
    with pytest.raises(RuntimeError, match="no_such_module"):
        bench_dependencies.taken(["-c", "import no_such_module"])


@pytest.mark.parametrize("place", PLACES)
def test_place_is_there(place: str) -> None:
    assert (REPOSITORY / place).exists()
