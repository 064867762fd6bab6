"""docs/serve.md agrees with the server's handlers and settings."""

from __future__ import annotations

from types import ModuleType

import pytest
from loading import loaded
from places import REPOSITORY

from segstore.server.apis import Api
from segstore.server.handlers import HANDLERS

PAGE = (REPOSITORY / "docs" / "serve.md").read_text(encoding="utf-8")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REPOSITORY / "tools"))
    return loaded(REPOSITORY / "tools" / "serve_tables.py")


def test_the_tables_are_up_to_date(tool: ModuleType) -> None:
    assert tool.page(PAGE) == PAGE, "run `.venv/bin/python tools/serve_tables.py`"


def test_every_api_is_served_and_in_the_table(tool: ModuleType) -> None:
    assert set(Api) == set(HANDLERS)
    assert [api.message for api in Api if f"| {api.message} |" not in tool.apis()] == []


def test_a_page_without_a_table_is_seen(tool: ModuleType) -> None:
    with pytest.raises(ValueError, match="settings"):
        tool.page(PAGE.replace("<!-- settings -->", ""))
