"""`segstore consume --share`: what is printed, and what becomes of it, on a store and on a server."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from cli import json_lines, ok, run, start_program
from consumers import LONG_MS
from share_consumers import counts, opened, state, worker
from waiting import PATIENCE

import segstore

ENDS = ("--timeout-ms", "0")


@pytest.fixture
def store_path(store_dir: Path) -> Path:
    """A closed store whose topic "t" has ten records; group g begins at the first."""
    with opened(store_dir):
        pass
    return store_dir


def left(path: Path) -> dict[int, int | None]:
    """Delivery counts of what the group gets next."""
    with opened(path) as store, worker(store) as queue:
        return counts(queue.poll_flat())


def test_records_are_printed_and_accepted(store_path: Path) -> None:
    result = ok("consume", "t", "--share", "g", *ENDS, "--format", "values", "-s", store_path)
    assert result.stdout.splitlines() == [f"0-{number}" for number in range(10)]
    assert result.stderr == ""
    assert left(store_path) == {}


def test_a_new_group_says_where_it_begins(store_path: Path) -> None:
    """At the log's end, by default; the command that it names gives the group the records before."""
    result = ok("consume", "t", "--share", "new", *ENDS, "-s", store_path)
    assert result.stdout == ""
    told = re.search("`segstore (.*)`", result.stderr)
    assert told is not None, result.stderr
    ok(*told[1].split(), "-s", store_path)
    assert len(json_lines(ok("consume", "t", "--share", "new", *ENDS, "-s", store_path))) == 10


ACKS = {
    "accept": {},
    "release": dict.fromkeys(range(4), 2) | dict.fromkeys(range(4, 10), 1),
    "reject": {},
}


@pytest.mark.parametrize("ack", ACKS)
def test_what_becomes_of_them(store_path: Path, ack: str) -> None:
    most = ("--max-messages", "4" if ack == "release" else "10")
    rows = json_lines(ok("consume", "t", "--share", "g", "--ack", ack, *ENDS, *most, "-s", store_path))
    assert [row["offset"] for row in rows] == [*range(int(most[1]))]
    assert left(store_path) == ACKS[ack]


def test_delivery_counts_are_shown(store_path: Path) -> None:
    first = ("consume", "t", "--share", "g", *ENDS, "--offsets", "-s", store_path)
    rows = json_lines(ok(*first, "--ack", "release", "-n", "2"))
    rows += json_lines(ok(*first, "-n", "3", "--mode", "record-limit"))
    assert [(row["offset"], row["delivery_count"]) for row in rows] == [
        (0, 1),
        (1, 1),
        (0, 2),
        (1, 2),
        (2, 2),
    ]
    assert rows[0]["value"] == "0-0"
    assert left(store_path) == {3: 2, **dict.fromkeys(range(4, 10), 1)}


MODES = {"batch": {2: 2, 3: 2}, "record-limit": {2: 1, 3: 1}}


@pytest.mark.parametrize("mode", MODES)
def test_how_many_are_acquired(store_path: Path, mode: str) -> None:
    ok("consume", "t", "--share", "g", "--mode", mode, *ENDS, "-n", "2", "-s", store_path)
    assert left(store_path) == {**MODES[mode], **dict.fromkeys(range(4, 10), 1)}


REFUSED = {
    "a place": (["--share", "g", "-o", "3"], "--start can't be given with --share"),
    "following": (
        ["--share", "g", "--follow", "-p", "0"],
        "--partition, --follow can't be given with --share",
    ),
    "without a group": (["--ack", "reject", "--offsets"], "--ack, --offsets can't be given without --share"),
    "counts of bare values": (
        ["--share", "g", "--offsets", "--format", "raw"],
        "--offsets needs --format ndjson",
    ),
    "no such topic": (["--share", "g"], "no topic 'u'"),
}


@pytest.mark.parametrize(("arguments", "text"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(store_path: Path, arguments: list[str], text: str) -> None:
    topic = "u" if "topic" in text else "t"
    result = run("consume", topic, *arguments, "-s", store_path)
    assert result.exit_code in (1, 2)
    assert text in result.stderr


@pytest.mark.kind("programs")
def test_it_waits_until_it_is_interrupted(store_path: Path) -> None:
    with start_program("consume", "t", "--share", "g", "-s", store_path) as process:
        assert process.stdout is not None
        try:
            rows = [json.loads(process.stdout.readline()) for _ in range(10)]
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert [row["offset"] for row in rows] == [*range(10)]
    assert (process.returncode, err) == (130, b"")


def test_a_server_is_asked_by_librdkafka(store_dir: Path) -> None:
    with opened(store_dir) as store, segstore.serve(store, port=0) as server:
        place = ("--share", "g", "-b", server.bootstrap_servers, "--timeout-ms", str(int(LONG_MS)))
        rows = json_lines(ok("consume", "t", *place, "-n", "4", "--offsets", "--ack", "release"))
        rows += json_lines(ok("consume", "t", *place, "-n", "10", "--offsets"))
        assert {(row["offset"], row["delivery_count"]) for row in rows[:4]} == {(n, 1) for n in range(4)}
        assert sorted({row["offset"] for row in rows[4:]}) == [*range(10)]
        assert {row["delivery_count"] for row in rows[4:]} == {2}
        assert state(store)[1] == 0
        refused = run("consume", "t", *place, "--mode", "record-limit")
        assert refused.exit_code == 2
        assert "whole batches" in refused.stderr
