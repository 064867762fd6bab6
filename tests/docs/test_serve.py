"""docs/serve.md agrees with the server's handlers and settings, and its example works when it is pasted."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from loading import loaded
from places import REPOSITORY

import segstore
from segstore.server.apis import Api
from segstore.server.handlers import HANDLERS

PAGE = (REPOSITORY / "docs" / "serve.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


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


def test_the_example_works_when_pasted(store_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example, _ = EXAMPLES
    exec(example.replace('"flights-log"', repr(str(store_dir))), {})
    assert capsys.readouterr().out == "0 b'UA1545' b'on time'\n"
    with segstore.open(store_dir, "r") as store:
        assert store.topics()["flights"].partitions == 1


def test_the_example_of_security_works_when_pasted(
    store_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, example = EXAMPLES
    exec(example.replace('"flights-log"', repr(str(store_dir))), {})
    assert capsys.readouterr().out == "1\n"
