"""`segstore upgrade`, and what `dump`, `consume` and `export` show of messages of magic 0 and 1."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli import json_lines, ok, run
from drawn_sets import EACH_KIND, KINDS
from message_sets import CODECS
from stores import write_segment

import segstore

MESSAGES = EACH_KIND.messages


@pytest.fixture
def path(store_dir: Path) -> Path:
    write_segment(store_dir / "t-0", 0, EACH_KIND.data)
    write_segment(store_dir / "u-0", 0, KINDS["magic 1, gzip"].data)
    segstore.open(store_dir).close()
    return store_dir


def values(path: Path) -> list[str | None]:
    return [row["value"] for row in json_lines(ok("consume", "t", "--store", path))]


def test_a_topic_is_upgraded_then_all(path: Path) -> None:
    before = values(path)
    assert before == [None if m.value is None else m.value.decode() for m in MESSAGES]
    (row,) = json_lines(ok("upgrade", "u", "--store", path, "--json"))
    assert (row["topic"], row["partition"], row["segments"], row["records"]) == ("u", 0, 1, 6)
    (row,) = json_lines(ok("upgrade", "--store", path, "--json"))
    assert (row["topic"], row["records"], row["error"]) == ("t", len(MESSAGES), None)
    assert row["bytes_before"] == len(EACH_KIND.data)
    assert values(path) == before
    done = ok("upgrade", "--store", path)
    assert (done.stdout, done.stderr.strip()) == ("", "nothing to upgrade")


def test_a_table_is_printed(path: Path) -> None:
    text = ok("upgrade", "--store", path).stdout
    assert "t-0" in text
    assert "u-0" in text
    assert "records" in text


def test_what_is_not_there_is_named(path: Path) -> None:
    done = run("upgrade", "nope", "--store", path)
    assert done.exit_code == 1
    assert "no topic 'nope'; there are: t, u" in done.stderr


def test_a_dump_shows_messages_as_they_lie_there(path: Path) -> None:
    """... a wrapper with its codec, and the messages in it."""
    rows = json_lines(ok("dump", path / "t-0", "--records", "--json"))
    batches = [row for row in rows if row["type"] == "batch"]
    assert {row["magic"] for row in batches} == {0, 1, 2}
    wrappers = [row for row in batches if row["magic"] < 2 and row["codec"] != "none"]
    assert {row["codec"] for row in wrappers} == set(CODECS[1:])
    assert sum(row["count"] for row in batches) == len(MESSAGES)
    ends = [(row["base_offset"], row["last_offset"]) for row in batches]
    assert all(first <= last for first, last in ends)
    assert (ends[0][0], ends[-1][1]) == (MESSAGES[0].offset, MESSAGES[-1].offset)
    records = [row for row in rows if row["type"] == "record"]
    assert [(r["offset"], r["timestamp"]) for r in records] == [(m.offset, m.timestamp) for m in MESSAGES]
    ok("upgrade", "--store", path)
    rows = json_lines(ok("dump", path / "t-0", "--json"))
    assert {row["magic"] for row in rows if row["type"] == "batch"} == {2}
