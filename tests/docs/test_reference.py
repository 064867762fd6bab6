"""The pages of docs/reference/ are those that the code makes, and have every public name."""

from __future__ import annotations

from types import ModuleType

import pytest
from loading import loaded
from places import REPOSITORY

import segstore


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REPOSITORY / "tools"))
    return loaded(REPOSITORY / "tools" / "reference.py")


def test_the_pages_are_up_to_date(tool: ModuleType) -> None:
    for name, make in tool.PAGES.items():
        kept = (tool.PLACE / name).read_text(encoding="utf-8")
        assert make() == kept, f"run `.venv/bin/python tools/reference.py`: {name}"


def test_every_public_name_has_its_place(tool: ModuleType) -> None:
    assert set(segstore.errors.__all__) <= set(segstore.__all__)
    text = tool.api() + tool.errors()
    for name in set(segstore.__all__) - {"__version__", "errors"}:
        assert any(f in text for f in (f".{name}\n", f"\n`{name}` is another", f"\n| `{name}` |")), name


def test_every_command_and_setting_is_there(tool: ModuleType) -> None:
    commands, settings = tool.cli(), tool.settings()
    assert [name for name in tool.COMMANDS if f"\n## segstore {name}\n" not in commands] == []
    for kind, _ in tool.SETTINGS.values():
        assert [each.name for each in kind.describe() if f"| `{each.name}` |" not in settings] == []
