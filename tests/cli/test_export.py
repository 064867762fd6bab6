"""`segstore export` and `segstore import`: round trips, parts of a log, and files that are complete or not
there.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from cli import COMMAND, json_lines, ok, run
from partitions import Partition
from staging import left_in_inbox
from stores import START_MS, Clock, records
from waiting import PATIENCE, until

import segstore
from segstore.records import TRANSACTIONAL_FLAG, Columns, Template
from segstore.storage.log.append import append_batches

FORMATS = ["parquet", "arrow", "ndjson"]
ROWS = [
    # value, key, headers, timestamp
    (b"plain", b"key", [], START_MS),
    (b"", b"", [("h", b"")], START_MS - 5),
    (None, None, [("h", None), ("h", b"\xff\x00")], 0),
    (b"\xff\xfe not text", b"\x80", [("name", b"v")], -1),
    ("Zürich\n\"'".encode(), None, [], START_MS + 1),
]


@pytest.fixture
def store(store_dir: Path) -> Any:
    """Topic "t": every kind of record in partition 0 and 2 of three."""
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t", 3)
        for number in (0, 2):
            for value, key, headers, stamp in ROWS:
                store.partition("t", number).append(value, key, headers, stamp)
        yield store


def rows(log: segstore.PartitionLog) -> list[tuple[Any, ...]]:
    return [(r.value, r.key, list(r.headers), r.timestamp) for r in records(log)]


@pytest.mark.parametrize("form", FORMATS)
def test_there_and_back(form: str, store: segstore.Store, store_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / f"t.{form}"
    assert "10 records" in ok("export", "t", file, "-s", store_dir).stderr
    ok("import", "u", file, "--partitions", 3, "-c", "compression.type=zstd", "-s", tmp_path / "other")
    with segstore.open(tmp_path / "other") as other:
        assert other.topics()["u"].config == {"compression.type": "zstd"}
        assert [rows(other.partition("u", n)) for n in range(3)] == [ROWS, [], ROWS]
    assert segstore.check(tmp_path / "other") == []
    assert [path.name for path in tmp_path.glob("t.*")] == [file.name]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_columns_as_others_read_them(
    form: str, store: segstore.Store, store_dir: Path, tmp_path: Path
) -> None:
    ok("export", "t", tmp_path / "t", "-f", form, "-s", store_dir)
    if form == "parquet":
        table = pq.read_table(tmp_path / "t")
    else:
        with pa.ipc.open_stream((tmp_path / "t").read_bytes()) as reader:
            table = reader.read_all()
    assert table.column_names == ["partition", "offset", "timestamp", "key", "value", "headers"]
    assert table.schema.field("timestamp").type == pa.timestamp("ms", "UTC")
    assert table["partition"].to_pylist() == [0] * 5 + [2] * 5
    assert table["offset"].to_pylist() == list(range(5)) * 2
    assert table["value"].to_pylist()[:5] == [row[0] for row in ROWS]


def test_ndjson_to_a_pipe_is_what_consume_prints(store: segstore.Store, store_dir: Path) -> None:
    shown = ok("export", "t", "-", "-f", "ndjson", "-s", store_dir).stdout
    assert shown == ok("consume", "t", "-s", store_dir).stdout


PARTS = {
    "all": ([], range(5)),
    "start": (["--start", 3], range(3, 5)),
    "end": (["--end", 2], range(2)),
    "both": (["--start", 1, "--end", 4], range(1, 4)),
    "beyond": (["--end", 99], range(5)),
    "a start beyond": (["--start", 99], range(0)),
    "nothing": (["--start", 4, "--end", 4], range(0)),
    "earliest to latest": (["--start", "earliest", "--end", "latest"], range(5)),
    "from latest": (["--start", "latest"], range(0)),
    "by the names of before": (["--from-offset", 1, "--to-offset", 4], range(1, 4)),
    "from time": (["--from-time", START_MS + 2], range(2, 5)),
    "to time": (["--to-time", "2023-11-14T22:13:20.003Z"], range(3)),
    "from a time that never was": (["--from-time", "2100-01-01"], range(0)),
    "to a time that never was": (["--to-time", "2100-01-01"], range(5)),
}


@pytest.mark.parametrize("case", PARTS)
def test_a_part_of_a_log(case: str, store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.partition("t").append_batch([b"x"] * 5, timestamps=[START_MS + i for i in range(5)])
    options, expected = PARTS[case]
    found = json_lines(ok("export", "t", "-", "-f", "ndjson", *options, "-s", store_dir))
    assert [row["offset"] for row in found] == list(expected)


@pytest.mark.parametrize("case", PARTS)
def test_consume_has_the_same_ranges(case: str, store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.partition("t").append_batch([b"x"] * 5, timestamps=[START_MS + i for i in range(5)])
    options, expected = PARTS[case]
    if case == "a start beyond":
        assert "out of range" in run("consume", "t", *options, "-s", store_dir).stderr
        return
    found = json_lines(ok("consume", "t", *options, "-s", store_dir))
    assert [row["offset"] for row in found] == list(expected)


COLUMNS = ("value", "topic", "timestamp_type", "key")


@pytest.mark.parametrize("form", FORMATS)
def test_columns_are_those_asked_for_and_can_be_imported(
    form: str, store: segstore.Store, store_dir: Path, tmp_path: Path
) -> None:
    file = tmp_path / f"t.{form}"
    ok("export", "t", file, "--columns", ",".join(COLUMNS), "-p", 2, "-s", store_dir)
    if form == "ndjson":
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert [name for name in lines[0] if not name.endswith("_encoding")] == list(COLUMNS)
        assert {(line["topic"], line["timestamp_type"]) for line in lines} == {("t", 0)}
    else:
        table = pq.read_table(file) if form == "parquet" else pa.ipc.open_stream(file).read_all()
        assert table.column_names == list(COLUMNS)
        assert set(zip(table["topic"].to_pylist(), table["timestamp_type"].to_pylist(), strict=True)) == {
            ("t", 0)
        }
    ok("import", "u", file, "--partitions", 1, "-s", tmp_path / "other")
    with segstore.open(tmp_path / "other") as other:
        assert [row[:2] for row in rows(other.partition("u"))] == [row[:2] for row in ROWS]


def test_open_transactions_are_left_out_by_default(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.partition("t").append(b"plain")
        template = Template(TRANSACTIONAL_FLAG, producer_id=7, producer_epoch=0, base_sequence=0)
        append_batches(store.partition("t"), Columns([b"open"]), template=template)
    ndjson = ["export", "t", "-", "-f", "ndjson", "-s", store_dir]
    assert len(json_lines(ok(*ndjson))) == 1
    assert len(json_lines(ok(*ndjson, "--isolation-level", "read_uncommitted"))) == 2


@pytest.mark.kind("costly unit tests")
def test_a_broker_s_partition(broker_partition: Partition, tmp_path: Path) -> None:
    where = ["-s", broker_partition.root, "--isolation-level", "read_uncommitted"]
    ok("export", broker_partition.topic, tmp_path / "t.parquet", "-p", broker_partition.index, *where)
    table = pq.read_table(tmp_path / "t.parquet")
    expected = broker_partition.expected()
    assert table["offset"].to_pylist() == [e.offset for e in expected]
    assert table["value"].to_pylist() == [e.value for e in expected]


def test_what_was_there_stays_where_the_export_fails(
    store: segstore.Store, store_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "t.ndjson"
    target.write_text("before")
    monkeypatch.setattr("segstore.cli.consume.ndjson", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("export", "t", target, "--force", "-s", store_dir)
    assert target.read_text() == "before"
    assert list(tmp_path.glob("t.*")) == [target]


@pytest.mark.kind("programs")
def test_an_interrupt_leaves_no_half_file(store_dir: Path, tmp_path: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        for _ in range(60):  # seconds of work, of which the first moment is waited for
            store.partition("t").append_batch([b"x" * 1000] * 8000, compression="zstd")
    half = tmp_path / "t.ndjson.part"
    command = [*COMMAND, "export", "t", str(tmp_path / "t.ndjson"), "-s", str(store_dir)]
    child = subprocess.Popen(
        command, stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )
    until(lambda: child.poll() is not None or (half.exists() and half.stat().st_size))
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=PATIENCE)
    assert (child.returncode, b"Traceback" in err) == (130, False)
    assert list(tmp_path.glob("t.*")) == []


WRONG = {
    "no format": (["export", "t", "{tmp}/t"], 2, "does not say it by its suffix"),
    "two begins": (
        ["export", "t", "-", "-f", "arrow", "--from-time", 0, "--from-offset", 0],
        2,
        "not both",
    ),
    "no such topic": (["export", "u", "-", "-f", "arrow"], 1, "no topic 'u'; there are: t"),
    "no such partition": (["export", "t", "-", "-f", "arrow", "-p", "9"], 1, "has no partition 9"),
    "no directory": (["export", "t", "{tmp}/no/t.parquet"], 1, "there is no directory {tmp}/no"),
    "times in reverse": (
        ["export", "t", "{tmp}/t.parquet", "--from-time", "2030-01-01", "--to-time", "2020-01-01"],
        2,
        "--from-time is after --to-time",
    ),
    "offsets in reverse": (
        ["export", "t", "{tmp}/t.parquet", "--from-offset", 2, "--to-offset", 1],
        2,
        "--start is after --end",
    ),
    "no such column": (
        ["export", "t", "{tmp}/t.parquet", "--columns", "key,val"],
        2,
        "no column 'val'; there",
    ),
    "no such offset": (["export", "t", "{tmp}/t.parquet", "--start", "-1"], 2, "neither an offset nor"),
    "import into nothing": (
        ["import", "u", "{tmp}/rows.ndjson"],
        1,
        "there are: t (--partitions N makes it)",
    ),
    "make what is there": (["import", "t", "{tmp}/rows.ndjson", "--partitions", "3"], 1, "is there already"),
    "config alone": (
        ["import", "t", "{tmp}/rows.ndjson", "-c", "retention.ms=1"],
        2,
        "--partitions too",
    ),
    "import of lines": (["import", "t", "{tmp}/rows.txt"], 2, "by its suffix"),
    "no parquet": (["import", "t", "{tmp}/rows.parquet"], 1, "no Parquet"),
    "no arrow": (["import", "t", "{tmp}/rows.arrow"], 1, "no Arrow IPC"),
    "a partition too many": (
        ["import", "t", "{tmp}/rows.ndjson"],
        1,
        "partition 7; t has [0, 1, 2]: `segstore alter t --partitions 8` adds it",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_uses(case: str, store_dir: Path, tmp_path: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t", 3)
    for name in ("rows.ndjson", "rows.txt", "rows.parquet", "rows.arrow"):
        (tmp_path / name).write_text('{"value": "x", "partition": 7}\n')
    arguments, status, message = WRONG[case]
    result = run(*[str(a).format(tmp=tmp_path) for a in arguments], "-s", store_dir)
    assert result.exit_code == status
    assert message.format(tmp=tmp_path) in " ".join(result.stderr.split())
    with segstore.open(store_dir) as store:
        assert sorted(store.topics()) == ["t"]
        assert not any(store.partition("t", n).end_offset for n in range(3))


BROKEN = {
    "no such partition": ['{"value": "x", "partition": 7}'],
    "no such form": ["no json"],
    "after much was read": ['{"value": "x"}'] * 90_000 + ["["],
}


@pytest.mark.kind("costly unit tests")
@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("made", [None, 2], ids=["there", "new"])
def test_an_import_that_fails_leaves_nothing(
    case: str, made: int | None, store_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "rows.ndjson").write_text("\n".join(BROKEN[case]) + "\n")
    with segstore.open(store_dir) as store:
        store.create_topic("t", 2)
    topic, options = ("u", ["--partitions", made]) if made else ("t", [])
    told = run("import", topic, tmp_path / "rows.ndjson", *options, "-s", store_dir)
    assert (told.exit_code, "records" in told.stderr.replace("a record", "")) == (1, False)
    with segstore.open(store_dir, mode="r") as store:
        assert list(store.topics()) == ["t"]
        assert [store.partition("t", n).end_offset for n in range(2)] == [0, 0]
    assert sorted(path.name for path in store_dir.glob("?-*")) == ["t-0", "t-1"]
    assert left_in_inbox(store_dir) == []


@pytest.mark.kind("costly unit tests")
@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("there", [False, True], ids=["missing", "empty"])
def test_an_import_that_fails_leaves_no_store(case: str, there: bool, tmp_path: Path) -> None:
    (tmp_path / "rows.ndjson").write_text("\n".join(BROKEN[case]) + "\n")
    place = tmp_path / "store"
    if there:
        place.mkdir()
        place.chmod(0o711)
    told = run("import", "u", tmp_path / "rows.ndjson", "--partitions", 2, "-s", place)
    assert told.exit_code == 1
    assert place.exists() == there
    if there:
        assert (list(place.iterdir()), place.stat().st_mode & 0o777) == ([], 0o711)


def test_the_progress_reaches_the_end_over_offsets_that_are_not_there(
    store_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a log of which compaction has left a tenth; and of the part of a batch."""
    with segstore.open(store_dir, config={"log.cleaner.threads": 0}) as store:
        store.create_topic("t", config={"cleanup.policy": "compact", "segment.bytes": 1000})
        for i in range(100):
            store.partition("t").append_batch([b"x" * 50] * 2, keys=[b"%d" % (i % 10)] * 2)
        assert store.sweep()[0].compacted_records > 100
    told: list[tuple[int, int]] = []

    @contextlib.contextmanager
    def bar(total: int, *_: object, **__: object) -> Iterator[Any]:
        class Bar:
            task_ids = (0,)

            def update(self, task: int, advance: int) -> None:
                told.append((told[-1][0] + advance if told else advance, total))

        yield Bar()

    monkeypatch.setattr("segstore.cli.export.progress_bar", bar)
    for end in (200, 199):
        told.clear()
        ok("export", "t", "--force", tmp_path / "t.ndjson", "--to-offset", end, "-s", store_dir)
        assert told[-1] == (end, end)


@pytest.mark.kind("programs")
@pytest.mark.parametrize("form", FORMATS)
def test_a_terminal_gets_no_binary_form(form: str, store_dir: Path) -> None:
    """Parquet's bytes stood between the lines of its progress bar."""
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.partition("t").append(b"value")
    ours, terminal = pty.openpty()
    try:
        arguments = [*COMMAND, "export", "t", "-", "-s", str(store_dir), "-f", form]
        done = subprocess.run(
            arguments, stdout=terminal, stderr=subprocess.PIPE, timeout=PATIENCE, check=False
        )
        refused = f"A terminal can't show {form}: give a FILE, or a pipe."
        assert (done.returncode, refused in done.stderr.decode()) == (
            (0, False) if form == "ndjson" else (2, True)
        )
    finally:
        os.close(terminal)
        os.close(ours)


@pytest.mark.parametrize("form", FORMATS)
def test_bytes_are_those_of_keys_and_values(form: str, store_dir: Path, tmp_path: Path) -> None:
    """An Arrow column's offsets were counted too."""
    with segstore.open(store_dir) as store:
        for topic in ("t", "u"):
            store.create_topic(topic)
        store.partition("t").append_batch([b"a", b"bc", None, b""], keys=[b"k", None, b"kk", b""])
    path = tmp_path / f"t.{form}"
    told = [ok("export", "t", path, "-s", store_dir), ok("import", "u", path, "-s", store_dir)]
    told.append(ok("produce", "u", path, "-s", store_dir))
    assert [" 4 records, 6 bytes" in each.stderr for each in told] == [True] * 3, [t.stderr for t in told]


def test_an_arrow_file_of_one_record_is_small(store_dir: Path, tmp_path: Path) -> None:
    """Columns without anything in them, headers here, are no longer than the others."""
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.partition("t").append(b"x")
    ok("export", "t", tmp_path / "t.arrow", "-s", store_dir)
    assert (tmp_path / "t.arrow").stat().st_size < 4096


def test_a_pipe_and_a_link_stay_what_they_are(store: segstore.Store, store_dir: Path, tmp_path: Path) -> None:
    pipe, link, told = tmp_path / "pipe", tmp_path / "link.ndjson", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: told.append(pipe.read_bytes()))
    reader.start()
    ok("export", "t", pipe, "-f", "ndjson", "-s", store_dir)
    assert pipe.is_fifo()
    reader.join()
    link.symlink_to(tmp_path / "rows.ndjson")
    ok("export", "t", link, "-s", store_dir)
    assert link.is_symlink()
    assert told == [(tmp_path / "rows.ndjson").read_bytes()]
