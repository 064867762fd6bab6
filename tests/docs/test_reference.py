"""The pages of docs/reference/ are those that the code makes, and have every public name."""

from __future__ import annotations

import re
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
    headings = "\n### {0}\n", "\n### segstore.{0}\n", "\n| `{0}` |"
    text = tool.api() + tool.errors()
    for name in set(segstore.__all__) - {"__version__", "errors"}:
        assert any(heading.format(name) in text for heading in headings), name


PUBLIC = sorted(set(segstore.__all__) - {"__version__", "errors"} - set(segstore.errors.__all__))


@pytest.mark.parametrize("name", [name for name in PUBLIC if isinstance(getattr(segstore, name), type)])
def test_every_public_method_has_an_entry(tool: ModuleType, name: str) -> None:
    cls, text = getattr(segstore, name), tool.api()
    if cls.__name__ != name:
        assert f"### {name}\n\nAnother name of [`{cls.__name__}`]" in text
        return
    ours = {each for owner in cls.__mro__ if owner.__module__.startswith("segstore") for each in vars(owner)}
    methods = [each for each in dir(cls) if each in ours and each[0] != "_" and callable(getattr(cls, each))]
    assert [each for each in methods if f"\n#### {name}.{each}\n\n" not in text] == []


def test_names_of_the_insides_have_no_entry(tool: ModuleType) -> None:
    text = tool.api()
    assert "#### PartitionLog.append\n" in text
    assert [each for each in segstore.PartitionLog._inner if f"#### PartitionLog.{each}\n" in text] == []


ENTRIES = {
    "a function": "### segstore.copy\n\n```python\nsegstore.copy(\n    source:",
    "an inherited method": "#### Consumer.subscribe\n\n```python\nsubscribe(\n    topics: ",
    "a coroutine": "#### AsyncConsumer.getone\n\n```python\nawait getone(*partitions: TopicPartition) -> ",
    "a property": "#### PartitionLog.end_offset\n\n```python\nend_offset: int\n```\n",
    "a class method": "#### Reset.to_offset\n\n```python\nto_offset(offset: int) -> ",
    "a method of a public base": "#### ReplicatedStore.flush\n\nAs [`Store.flush`](#storeflush).\n",
    "a class that a function returns": "### Store\n\nReturned by [`open`](#segstoreopen).\n",
    "fields": "segstore.TopicPartition(topic: str, partition: int)\n",
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_an_entry_has_signature_and_text(tool: ModuleType, entry: str) -> None:
    assert entry in tool.api()


def test_links_of_the_page_lead_to_its_headings(tool: ModuleType) -> None:
    text = tool.api()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    anchors = [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings]
    assert len(set(anchors)) == len(anchors)
    assert set(re.findall(r"\]\(#(.+?)\)", text)) <= set(anchors)


def test_every_command_and_setting_is_there(tool: ModuleType) -> None:
    commands, settings = tool.cli(), tool.settings()
    assert [name for name in tool.COMMANDS if f"\n## segstore {name}\n" not in commands] == []
    for kind, _ in tool.SETTINGS.values():
        assert [each.name for each in kind.describe() if f"| `{each.name}` |" not in settings] == []


COMMAND_LINES = {
    "lines that click keeps": "```text\nlines    a record a line\nndjson   objects with key, value,",
    "code stays code": "Append the records that `export` wrote to TOPIC",
    "names stay whole": "producer_byte_rate and consumer_byte_rate",
    "choices": "| Codec of the batches; by default the topic's. One of none, gzip, ",
    "a default after its choices": " One of ndjson, raw, values. [default: ndjson] |",
    "exit statuses": "## Exit status\n\n| status | when |\n|---|---|\n| 0 | Done.",
}


@pytest.mark.parametrize("text", COMMAND_LINES.values(), ids=COMMAND_LINES)
def test_the_page_of_commands_is_readable_as_text(tool: ModuleType, text: str) -> None:
    page = tool.cli()
    assert text in page
    assert [each for each in ("\\`", "\\|", "\\[") if each in page] == []
