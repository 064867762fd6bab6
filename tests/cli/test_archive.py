"""`segstore archive` as a user calls it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli import json_lines, ok, run, start_program
from waiting import until

import segstore
from segstore.archiving.remote import RemoteFiles


@pytest.fixture
def filled(store_dir: Path) -> Path:
    with segstore.open(store_dir) as store:
        for topic in ("a", "b"):
            store.create_topic(topic, config={"segment.bytes": 300})
            for n in range(20):
                store.partition(topic).append(b"value %d" % n)
    return store_dir


def _records(path: Path) -> dict[str, list[dict[str, object]]]:
    names = [row["topic"] for row in json_lines(ok("topics", "-s", path, "--json"))]
    return {name: json_lines(ok("consume", name, "-s", path)) for name in names if not name.startswith("__")}


@contextmanager
def _running(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    process = start_program("archive", *arguments)
    try:
        assert process.stdout is not None
        assert b"is archived at" in process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.kind("S3 server")
def test_a_store_is_archived_once_and_restored(filled: Path, tmp_path: Path, s3_bucket: str) -> None:
    """In S3, too; the second run goes on."""
    for uri in (str(tmp_path / "archive"), s3_bucket):
        for topic in ("a", "b", "b"):
            with segstore.open(filled) as store:
                store.partition(topic).append(b"one more")
            told = ok("archive", uri, "-s", filled, "--once").stdout
            assert "has all that" in told
            assert "tests" not in re.sub(r"/\S*segstore-tests\S*", "", told)  # a part of the secret
        target = tmp_path / f"restored{len(uri)}"
        ok("restore", uri, target)
        assert _records(target) == _records(filled)
        assert ok("archive", "verify", uri).stdout == ""


def test_only_some_topics(filled: Path, tmp_path: Path) -> None:
    ok("archive", tmp_path / "archive", "-s", filled, "--once", "--topics", "b")
    ok("restore", tmp_path / "archive", tmp_path / "restored")
    assert [*_records(tmp_path / "restored")] == ["b"]


@pytest.mark.kind("programs")
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_it_runs_until_a_signal(filled: Path, tmp_path: Path, number: int, status: int) -> None:
    uri = tmp_path / "archive"
    with _running(uri, "-s", filled, "--interval", "20ms") as process:
        with segstore.open(filled) as store:
            store.partition("a").append(b"while it runs")
        until(lambda: b"while it runs" in _all_bytes(uri))
        process.send_signal(number)
        _, log = process.communicate(timeout=60)
    assert process.returncode == status
    assert b" stops: " in log


def _all_bytes(uri: Path) -> bytes:
    remote = RemoteFiles(str(uri))
    return b"".join(remote.read(name) for name in remote.list("commits/"))


@pytest.mark.kind("programs")
def test_another_archiver_takes_over(filled: Path, tmp_path: Path) -> None:
    """The first one ends with an error."""
    uri = tmp_path / "archive"
    with _running(uri, "-s", filled, "--interval", "20ms") as first:
        until(lambda: RemoteFiles(str(uri)).list("commits/"))
        ok("archive", uri, "-s", filled, "--once")
        with segstore.open(filled) as store:
            store.partition("a").append(b"news")
        _, log = first.communicate(timeout=60)
    assert (first.returncode, b"taken the archive over" in log) == (1, True), log


@pytest.mark.kind("programs")
def test_metrics_and_health(filled: Path, tmp_path: Path) -> None:
    with _running(tmp_path / "archive", "-s", filled, "--http", "0") as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1].decode()
        until(lambda: _status(f"{address}/readyz") == 200)
        with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
            assert b"segstore_archive_" in answer.read()


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_damaged_objects_are_told_by_name(filled: Path, tmp_path: Path) -> None:
    uri = tmp_path / "archive"
    ok("archive", uri, "-s", filled, "--once")
    damaged = next(each for each in uri.rglob("*.log"))
    data = damaged.read_bytes()
    damaged.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    done = run("archive", "verify", uri, "--json")
    assert done.exit_code == 1
    assert {json.loads(line)["path"] for line in done.stdout.splitlines()} == {str(damaged.relative_to(uri))}
    refused = run("restore", uri, tmp_path / "restored")
    assert (refused.exit_code, str(damaged.relative_to(uri)) in refused.stderr) == (1, True)
    assert not (tmp_path / "restored").exists()


REFUSED = {
    "no URI": ((), 2, "Missing argument"),
    "two URIs": (("x", "y"), 2, "Give one URI"),
    "no URI to verify": (("verify",), 2, "Give one URI"),
    "no store": (("x",), 2, "Which store is archived? Give --store PATH"),
    "a store that is none": (("x", "-s", "none"), 1, "none"),
    "an interval": (("x", "-s", "none", "--interval", "often"), 2, "'often' is not a time"),
    "a size": (("x", "-s", "none", "--retention-bytes", "much"), 2, "'much' is not a size"),
    "a unit": (("x", "-s", "none", "--interval", "1y"), 2, "the unit 'y' is none of"),
    "JSON": (("x", "-s", "none", "--json"), 2, "--json is for"),
    "a store to verify": (("verify", "x", "-s", "none"), 2, "--store does not go with"),
    "no archive": (("verify", "none"), 1, "there is no archive"),
    "a cluster": (("x", "--bootstrap", "h:1"), 2, "needs the files of a store"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, status, told = REFUSED[case]
    done = run("archive", *arguments)
    assert (done.exit_code, told in done.stderr) == (status, True), done.stderr
    assert [*tmp_path.iterdir()] == []
