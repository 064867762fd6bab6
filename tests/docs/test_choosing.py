"""docs/choosing.md has the figures of the table in docs/benchmarks.md."""

from __future__ import annotations

from types import ModuleType

import pytest
from loading import loaded
from places import REPOSITORY

RESULTS = (REPOSITORY / "docs" / "benchmarks.md").read_text(encoding="utf-8")
PAGE = (REPOSITORY / "docs" / "choosing.md").read_text(encoding="utf-8")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REPOSITORY / "tools"))
    return loaded(REPOSITORY / "tools" / "choosing_table.py")


def test_the_figures_are_those_of_the_results(tool: ModuleType) -> None:
    assert tool.page(PAGE, RESULTS) == PAGE, "run `.venv/bin/python tools/choosing_table.py`"


def test_a_page_without_the_table_is_seen(tool: ModuleType) -> None:
    with pytest.raises(ValueError, match="no table"):
        tool.peers("# segstore\n")
    with pytest.raises(KeyError, match="LMDB"):
        tool.peers(RESULTS.replace("| LMDB |", "| LMBD |", 1))
