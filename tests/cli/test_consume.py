"""`segstore consume`: where it begins and ends, what it prints, and being cut short."""

from __future__ import annotations

import base64
import json
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli import COMMAND, json_lines, ok, start_program
from partitions import read_expected
from waiting import PATIENCE, until

import segstore


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    """An open store with topic "t": partition 0 has 10 records stamped 1000, 1100, ..., partition 1 has 5."""
    with segstore.open(store_dir) as opened:
        opened.create_topic("t", partitions=2)
        opened.partition("t", 0).append_batch(
            [b"%d" % i for i in range(10)], timestamps=[1000 + 100 * i for i in range(10)]
        )
        opened.partition("t", 1).append_batch([b"b%d" % i for i in range(5)], timestamps=[1000] * 5)
        yield opened


ALL = [str(i) for i in range(10)]
B = ["b0", "b1", "b2", "b3", "b4"]
RANGES = {
    "all": ([], ALL + B),
    "earliest": (["--offset", "earliest"], ALL + B),
    "one partition": (["-p", "1"], B),
    "both, in the order asked for": (["-p", "1", "-p", "0"], B + ALL),
    "an offset, by export's name": (["-p", "0", "--from-offset", "7"], ["7", "8", "9"]),
    "a time, by export's name": (["-p", "0", "--from-time", "1750"], ["8", "9"]),
    "an offset": (["-p", "0", "-o", "7"], ["7", "8", "9"]),
    "an offset in both": (["-o", "4"], [*ALL[4:], "b4"]),
    "the end": (["-p", "0", "-o", "10"], []),
    "latest": (["-o", "latest"], []),
    "a time in ms": (["-p", "0", "--time", "1750"], ["8", "9"]),
    "a time in ISO 8601": (["-p", "0", "--time", "1970-01-01T00:00:01.800Z"], ["8", "9"]),
    "a time with a zone": (["-p", "0", "--time", "1970-01-01T01:00:01.900+01:00"], ["9"]),
    "a date before all": (["--time", "1969-12-31"], ALL + B),
    "a time after all": (["--time", "2013-07-01"], []),
    "some": (["-n", "3"], ["0", "1", "2"]),
    "some of both": (["-n", "12"], [*ALL, "b0", "b1"]),
    "none": (["-n", "0"], []),
    "some from an offset": (["-p", "0", "-o", "5", "-n", "2"], ["5", "6"]),
    "following, until there are enough": (["-p", "0", "-o", "8", "-n", "2", "--follow"], ["8", "9"]),
}  # fmt: skip


@pytest.mark.parametrize("case", RANGES)
def test_range(case: str, store: segstore.Store) -> None:
    arguments, expected = RANGES[case]
    result = ok("consume", "t", "--format", "values", "-s", store.path, *arguments)
    assert result.stdout.splitlines() == expected
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("form", "expected"),
    [("values", b"a\n\n\n\xff\n"), ("raw", b"a\xff")],
)
def test_bytes_as_they_are(form: str, expected: bytes, store_dir: Path) -> None:
    with segstore.open(store_dir) as opened:
        opened.create_topic("t")
        opened.partition("t").append_batch([b"a", b"", None, b"\xff"])
    assert ok("consume", "t", "--format", form, "-s", store_dir).stdout_bytes == expected


def test_ndjson(store_dir: Path) -> None:
    with segstore.open(store_dir) as opened:
        opened.create_topic("t")
        log = opened.partition("t")
        log.append(
            "ä\n".encode(), key=b"\xff", headers=[("h", b"x"), ("h", b"\xff"), ("n", None)], timestamp=7
        )
        log.append(None, timestamp=8)
    first, second = json_lines(ok("consume", "t", "-s", store_dir))
    assert first == {
        "partition": 0,
        "offset": 0,
        "timestamp": 7,
        "key": "/w==",
        "key_encoding": "base64",
        "value": "ä\n",
        "headers": [["h", "x"], ["h", "/w==", "base64"], ["n", None]],
    }
    assert second == {"partition": 0, "offset": 1, "timestamp": 8, "key": None, "value": None}


@pytest.mark.parametrize(
    "topic", ["flights-snappy", "flights-compacted", "flights-none", "edge", "flights-txn"]
)
def test_a_brokers_records(topic: str, golden: Path) -> None:
    """The same as an ordinary Kafka consumer received."""
    (directory,) = (golden / "clean").glob(f"{topic}-[0-9]")
    expected = read_expected(golden / "records" / f"{directory.name}.jsonl.gz")
    rows = json_lines(ok("consume", topic, "-s", golden / "clean"))
    assert [(r["offset"], r["timestamp"], plain(r, "key"), plain(r, "value")) for r in rows] == [
        (e.offset, e.timestamp, e.key, e.value) for e in expected
    ]


def plain(row: dict, name: str) -> bytes | None:
    text = row[name]
    if row.get(f"{name}_encoding") == "base64":
        return base64.b64decode(text)
    return None if text is None else text.encode()


def test_committed_records_only(golden: Path) -> None:
    everything = json_lines(ok("consume", "flights-txn", "-s", golden / "clean"))
    committed = json_lines(
        ok("consume", "flights-txn", "--isolation-level", "read_committed", "-s", golden / "clean")
    )
    assert len(everything) == 150
    assert len(committed) == 100
    assert [r for r in committed if r not in everything] == []


# --- processes of their own ------------------------------------------------------------------


@pytest.mark.kind("programs")
def test_follows_a_live_writer_until_interrupted(store: segstore.Store) -> None:
    with start_program("consume", "t", "--follow", "-o", "latest", "-s", store.path) as process:
        assert process.stdout is not None
        try:
            # Whether it has begun can't be seen: records come until the first one is printed.
            first = one_line_of(process, store)
            assert first["value"] == "more"
            store.partition("t", 1).append(b"last", key=b"k")
            while (row := json.loads(process.stdout.readline()))["value"] == "more":
                assert row["offset"] > first["offset"]
            assert (row["partition"], row["offset"], row["key"], row["value"]) == (1, 5, "k", "last")
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, b"")


def one_line_of(process: subprocess.Popen[bytes], store: segstore.Store) -> dict:
    assert process.stdout is not None
    output = select.poll()  # any descriptor: a test run may have more than 1,024
    output.register(process.stdout, select.POLLIN)
    while not output.poll(100):
        assert process.poll() is None
        store.partition("t", 0).append(b"more")
    return json.loads(process.stdout.readline())


@pytest.mark.kind("programs")
def test_the_reader_goes_away(store: segstore.Store) -> None:
    store.partition("t", 0).append_batch([b"x" * 100] * 20_000)
    with start_program("consume", "t", "-s", store.path) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["value"] == "0"
        process.stdout.close()
        assert process.wait(PATIENCE) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""


@pytest.mark.kind("programs")
def test_interrupted_while_input_is_awaited(store_dir: Path) -> None:
    ok("create", "t", "-s", store_dir)
    with start_program("produce", "t", "-s", store_dir) as process:
        try:
            assert process.stdin is not None
            # The second is counted or not when the signal comes; the first was, before the second was read.
            for n, line in enumerate((b"kept\n", b"too\n"), 1):
                process.stdin.write(line)
                process.stdin.flush()
                until(lambda n=n: len(ok("consume", "t", "-s", store_dir).stdout.splitlines()) == n)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 130
        finally:
            process.kill()
        assert process.stderr is not None
        (line,) = process.stderr.read().splitlines()
        assert line.startswith((b"t: 1 record, ", b"t: 2 records, "))
    assert ok("consume", "t", "--format", "values", "-s", store_dir).stdout == "kept\ntoo\n"


@pytest.mark.kind("programs")
def test_a_damaged_batch_is_named(store_dir: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    with segstore.open(damaged) as opened:
        opened.create_topic("t")
        opened.partition("t").append(b"x" * 100)
    log = damaged / "t-0" / "00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:-1] + b"!")
    done = subprocess.run([*COMMAND, "consume", "t", "-s", damaged], capture_output=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert done.stderr.startswith(f"segstore: {log}: corrupt batch at position 0, offset 0: ".encode())
