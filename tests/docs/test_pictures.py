"""The pictures of the pages, and what docs/why-fast.md says of them, are of the results that are stored."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from loading import loaded
from PIL import Image
from places import REPOSITORY

DOCS = REPOSITORY / "docs"
ASKED = "run `.venv/bin/python tools/pictures.py`"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REPOSITORY / "tools"))
    return loaded(REPOSITORY / "tools" / "pictures.py")


def test_each_picture_is_of_the_stored_results_and_small(tool: ModuleType) -> None:
    for name, (results, _) in tool.DRAWN.items():
        path = DOCS / "pictures" / f"{name}.png"
        assert Image.open(path).text[tool.KEY] == tool.digest(results), ASKED
        assert path.stat().st_size < 100_000


def test_each_picture_is_on_a_page_and_each_page_has_its_pictures(tool: ModuleType) -> None:
    shown = [
        (page.parent / place).resolve()
        for page in DOCS.rglob("*.md")
        for place in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    ]
    assert sorted(shown) == sorted(DOCS / "pictures" / f"{name}.png" for name in tool.DRAWN)
    assert sorted((DOCS / "pictures").iterdir()) == sorted(shown)


def test_the_findings_are_those_of_the_results(tool: ModuleType) -> None:
    text = tool.PAGE.read_text(encoding="utf-8")
    assert tool.page(text) == text, ASKED
    with pytest.raises(ValueError, match="batching"):
        tool.page(text.replace("<!-- batching -->", ""))


def test_a_picture_of_other_results_is_seen(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tool.drawn("partitions", tmp_path)
    assert Image.open(made).text[tool.KEY] == tool.digest("partitions")
    monkeypatch.setattr(tool, "RESULTS", tmp_path)
    (tmp_path / "partitions.json").write_text("{}")
    assert Image.open(made).text[tool.KEY] != tool.digest("partitions")
