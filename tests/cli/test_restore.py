"""`segstore restore` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli import json_lines, ok, run
from made_archive import make_archive

import segstore
from segstore.archiving.sizes import log_bytes


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """The URI of an archive of a store with the topics a and b, whose records are stamped 0, 1, 2, ..."""
    source, uri = tmp_path / "source", str(tmp_path / "archive")
    with segstore.open(source) as store:
        for topic in ("a", "b"):
            store.create_topic(topic, config={"segment.bytes": 200})
            log = store.partition(topic)
            for n in range(20):
                log.append(b"value %d" % n, timestamp=n)
    make_archive(source, uri)
    return uri


def _values(path: Path, topic: str) -> list[str]:
    return [row["value"] for row in json_lines(ok("consume", topic, "-s", path, "--format", "ndjson"))]


EVERY = [f"value {n}" for n in range(20)]
RESTORED = {
    "the newest state": ((), {"a": 20, "b": 20}),
    "a time": (("--at", "4"), {"a": 5, "b": 5}),
    "a time as ISO 8601": (("--at", "1970-01-01T00:00:00.004Z"), {"a": 5, "b": 5}),
    "offsets": (("--at", "a:0:3", "--at", "b:0:7"), {"a": 3, "b": 7}),
    "an offset": (("--at", "a:0:3"), {"a": 3, "b": 20}),
    "a topic": (("--topics", "a"), {"a": 20}),
    "topics with commas": (("-t", "a,b", "--at", "9"), {"a": 10, "b": 10}),
}


@pytest.mark.parametrize("case", RESTORED)
def test_a_store_is_restored(uri: str, store_dir: Path, case: str) -> None:
    options, counts = RESTORED[case]
    told = ok("restore", uri, store_dir, *options)
    assert f"{store_dir}: {len(counts)} partitions, ".replace("1 partitions", "1 partition") in told.stderr
    topics = {row["topic"] for row in json_lines(ok("topics", "-s", store_dir, "--json"))}
    assert {each for each in topics if not each.startswith("__")} == {*counts}
    assert {topic: _values(store_dir, topic) for topic in counts} == {
        topic: EVERY[:count] for topic, count in counts.items()
    }


def test_the_result_as_json(uri: str, store_dir: Path) -> None:
    told = json.loads(ok("restore", uri, store_dir, "--json").stdout)
    assert (told["partitions"], told["bytes"]) == (2, log_bytes(uri))
    assert log_bytes(uri, ["a"]) * 2 == log_bytes(uri)


REFUSED = {
    "a time and an offset": (("--at", "4", "--at", "a:0:3"), 2, "not both"),
    "two times": (("--at", "4", "--at", "5"), 2, "Give one time"),
    "no time": (("--at", "yesterday"), 2, "TOPIC:PARTITION:OFFSET"),
    "an offset that is none": (("--at", "a:0:x"), 2, "TOPIC:PARTITION:OFFSET"),
    "no such topic": (("-t", "none"), 1, "'none' is not there"),
    "a store": (("--bootstrap", "h:1"), 2, "needs the files"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_usage(uri: str, store_dir: Path, case: str) -> None:
    options, status, told = REFUSED[case]
    done = run("restore", uri, store_dir, *options)
    assert (done.exit_code, told in done.stderr) == (status, True), done.stderr
    assert not store_dir.exists()


def test_secrets_of_a_uri_are_not_told(store_dir: Path) -> None:
    done = run("restore", "s3://key:pass/word@bucket/log?nothing=secret", store_dir)
    assert done.exit_code == 1
    assert [each for each in ("pass", "word", "secret") if each in done.output] == []


def test_there_is_no_archive(tmp_path: Path, store_dir: Path) -> None:
    done = run("restore", tmp_path / "none", store_dir)
    assert (done.exit_code, "there is no archive" in done.stderr) == (1, True)
