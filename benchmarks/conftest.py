"""Fixtures of the studies, and the table that a run ends with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Results

import segstore

RESULTS = pytest.StashKey[Results]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RESULTS] = Results()


@pytest.fixture
def results(pytestconfig: pytest.Config) -> Results:
    return pytestconfig.stash[RESULTS]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[segstore.Store]:
    with segstore.open(tmp_path / "store") as store:
        yield store


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    results = config.stash[RESULTS]
    if not results:
        return
    terminalreporter.section("targets")
    width = max(len(result.name) for result in results)
    for r in results:
        bound = ">=" if r.least else "<="
        verdict = "met" if r.met else "MISSED"
        line = f"{r.name:<{width}}  {r.figure:8.2f} {bound} {r.target:<6g} {r.unit:<6} {verdict:<6}  {r.note}"
        terminalreporter.write_line(line, green=r.met, red=not r.met)
