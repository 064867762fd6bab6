"""docs/clients.md agrees with the settings classes, and names only paths that exist."""

from __future__ import annotations

import re
from types import ModuleType

import pytest
from kafka import KafkaConsumer, KafkaProducer
from loading import loaded
from places import REPOSITORY

PAGE = (REPOSITORY / "docs" / "clients.md").read_text(encoding="utf-8")
PLACES = sorted(set(re.findall(r"`((?:segstore|tests|docs|benchmarks|tools)/[\w./]*)`", PAGE)))


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return loaded(REPOSITORY / "tools" / "client_settings.py")


def test_the_tables_are_up_to_date(tool: ModuleType) -> None:
    assert tool.page(PAGE) == PAGE, "run `.venv/bin/python tools/client_settings.py`"


@pytest.mark.parametrize(
    ("client", "theirs"), [("producer", KafkaProducer), ("consumer", KafkaConsumer)], ids=lambda x: str(x)
)
def test_every_setting_of_kafka_python_is_in_a_table(tool: ModuleType, client: str, theirs: type) -> None:
    tables = (
        tool.taken(tool.TABLES[client])
        + tool.refused(tool.TABLES[client])
        + tool.ignored(tool.TABLES[client])
    )
    assert [name for name in theirs.DEFAULT_CONFIG if f"`{name}`" not in tables] == []


def test_a_table_that_is_not_up_to_date_is_seen(tool: ModuleType) -> None:
    assert tool.page(PAGE.replace("| `linger_ms` |", "| `longer_ms` |")) == PAGE
    with pytest.raises(ValueError, match="producer settings"):
        tool.page(PAGE.replace("<!-- producer settings -->", ""))


@pytest.mark.parametrize("place", PLACES)
def test_place_is_there(place: str) -> None:
    assert (REPOSITORY / place).exists()
