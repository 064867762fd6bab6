"""`segstore produce`: every form of input, where records go, and input that is none."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from cli import json_lines, ok, run, start_program
from waiting import PATIENCE, until

import segstore
from segstore.client.producer.partitioner import partition_for_key

B64 = ["/w==", "base64"]
NOON = 1372680000000  # 2013-07-01T12:00:00Z


def records(path: Path, topic: str = "t", partition: int = 0) -> list[segstore.Record]:
    with segstore.open(path, mode="r") as store:
        log = store.partition(topic, partition)
        return list(log.read(log.start_offset)) if log.end_offset else []


def envelope(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


# name: (arguments, input, expected as (key, value, timestamp or None for now, headers))
INPUTS = {
    "lines": ([], b"a\n\nb\r\nc", [(None, b"a"), (None, b""), (None, b"b"), (None, b"c")]),
    "no lines": ([], b"", []),
    "lines with keys": (
        ["--key-separator", ":"],
        b"k:v:w\nx:\n:y\n",
        [(b"k", b"v:w"), (b"x", b""), (b"", b"y")],
    ),
    "lines that are no text": ([], b"\xff\x00\xfe\n", [(None, b"\xff\x00\xfe")]),
    "ndjson": (
        ["-f", "ndjson"],
        envelope(key="k", value="v", timestamp="2013-07-01T12:00:00Z", headers={"h": "1", "n": None}),
        [(b"k", b"v", NOON, [("h", b"1"), ("n", None)])],
    ),
    "ndjson, null and empty": (
        ["-f", "ndjson"],
        envelope(key=None, value="") + envelope(key="", value=None) + b"\n",
        [(None, b""), (b"", None)],
    ),
    "ndjson, base64": (
        ["-f", "ndjson"],
        envelope(key="/wA=", key_encoding=B64[1], value=B64[0], value_encoding=B64[1], headers=[["h", *B64]]),
        [(b"\xff\0", b"\xff", None, [("h", b"\xff")])],
    ),
    "ndjson, structured value": (["-f", "ndjson"], envelope(value={"ä": 1}), [(None, '{"ä": 1}'.encode())]),
    "ndjson, fields": (
        ["-f", "ndjson", "--key-field", "id", "--timestamp-field", "at"],
        b'{"id": 7, "at": 1372680000000,  "x": 1}\n',
        [(b"7", b'{"id": 7, "at": 1372680000000,  "x": 1}', NOON)],
    ),
    "ndjson, plain": (["-f", "ndjson", "--plain"], b'{"value": 1}\n', [(None, b'{"value": 1}')]),
    "ndjson, value field": (["-f", "ndjson", "--value-field", "v"], b'{"v": "x"}\n', [(None, b"x")]),
    "csv": (["-f", "csv"], b'id,v\r\n1,"a,b"\r\n', [(None, b'{"id": "1", "v": "a,b"}')]),
    "csv, columns": (
        ["-f", "csv", "--key-column", "id", "--value-column", "v", "--timestamp-column", "at"],
        b"\xef\xbb\xbfid,v,at\n1,a,2013-07-01 14:00+02:00\n",
        [(b"1", b"a", NOON)],
    ),
    "csv, header only": (["-f", "csv"], b"id,v\n", []),
}  # fmt: skip


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("case", INPUTS)
def test_input(case: str, codec: str, store_dir: Path) -> None:
    ok("create", "t", "-s", store_dir)
    arguments, data, expected = INPUTS[case]
    before = segstore_now()
    result = ok("produce", "t", "-s", store_dir, "--compression", codec, *arguments, stdin=data)
    assert result.stdout == ""
    assert result.stderr.startswith(f"t: {len(expected)} record")
    found = records(store_dir)
    assert [(r.key, r.value) for r in found] == [row[:2] for row in expected]
    for record, row in zip(found, expected, strict=True):
        stamp, headers = (*row[2:], None, None)[:2]
        assert record.headers == (headers or [])
        assert record.timestamp == stamp if stamp else before <= record.timestamp <= segstore_now()


def segstore_now() -> int:
    return int(datetime.datetime.now(datetime.timezone.utc).timestamp() * 1000)


BAD = {
    "no json": (["-f", "ndjson"], b'{"value": 1}\nx\n', "line 2: "),
    "no object": (["-f", "ndjson"], b"[1]\n", "line 1: no JSON object"),
    "no record": (["-f", "ndjson"], b'{"a": 1}\n', "say --plain"),
    "no field": (["-f", "ndjson", "--key-field", "id"], b'{"a": 1}\n', "no field 'id', there are a"),
    "no time": (["-f", "ndjson"], b'{"value": 1, "timestamp": "noon"}\n', "line 1: "),
    "no base64": (["-f", "ndjson"], b'{"value": "%", "value_encoding": "base64"}\n', "no base64"),
    "no partition": (["-f", "ndjson"], b'{"value": 1, "partition": 9}\n', "partition 9"),
    "no integer": (["-f", "ndjson"], b'{"value": 1, "partition": "x"}\n', "no integer"),
    "no column": (["-f", "csv", "--key-column", "id"], b"a,b\n1,2\n", "no column 'id'; there are: a, b"),
    "a long row": (["-f", "csv"], b"a,b\n1,2,3\n", "a row of 3 columns, but 2 names"),
    "no utf-8": (["-f", "csv"], b"a\n\xff\n", "no CSV in UTF-8"),
    "no csv time": (["-f", "csv", "--timestamp-column", "a"], b"a\nx\n", "no timestamp"),
    "no key separator": (["--key-separator", ":"], b"a:b\nbob\n", "line 2: no key separator ':': b'bob'"),
    "a pipe of parquet": (["-f", "parquet"], b"PAR1", "Parquet"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case: str, store_dir: Path) -> None:
    ok("create", "t", "-s", store_dir)
    arguments, data, expected = BAD[case]
    result = run("produce", "t", "-s", store_dir, *arguments, stdin=data)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()  # and none that says "0 records"
    assert expected in line
    assert records(store_dir) == []


def test_keys_go_where_kafka_sends_them(store_dir: Path) -> None:
    ok("create", "t", "-p", "5", "-s", store_dir)
    keys = [f"k{i}" for i in range(100)]
    ok(
        "produce",
        "t",
        "-f",
        "ndjson",
        "-s",
        store_dir,
        stdin=b"".join(envelope(key=k, value=k) for k in keys),
    )
    for partition in range(5):
        expected = [k.encode() for k in keys if partition_for_key(k.encode(), 5) == partition]
        assert [r.key for r in records(store_dir, "t", partition)] == expected


@pytest.mark.parametrize(
    ("arguments", "fields", "expected"),
    [
        ([], {"key": "a", "partition": 2}, 2),
        (["--partition", "1"], {"key": "a", "partition": 2}, 1),
        (["--partition", "1"], {"value": "a"}, 1),
        ([], {"value": "a"}, 0),
    ],
    ids=["the record's own", "the option's before it", "the option's", "without a key"],
)
def test_partition(arguments: list[str], fields: dict[str, Any], expected: int, store_dir: Path) -> None:
    ok("create", "t", "-p", "3", "-s", store_dir)
    ok("produce", "t", "-f", "ndjson", "-s", store_dir, *arguments, stdin=envelope(**fields))
    assert [len(records(store_dir, "t", p)) for p in range(3)] == [int(p == expected) for p in range(3)]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".txt"])
def test_the_suffix_says_the_format(suffix: str, store_dir: Path, tmp_path: Path) -> None:
    ok("create", "t", "-s", store_dir)
    source = tmp_path / f"input{suffix}"
    source.write_bytes(b'value\n{"value":"x"}\n' if suffix != ".jsonl" else b'{"value":"x"}\n')
    ok("produce", "t", source, "-s", store_dir)
    expected = {
        ".csv": [b'{"value": "{\\"value\\":\\"x\\"}"}'],
        ".jsonl": [b"x"],
        ".txt": [b"value", b'{"value":"x"}'],
    }
    if suffix == ".csv":
        assert [json.loads(r.value or b"") for r in records(store_dir)] == [{"value": '{"value":"x"}'}]
    else:
        assert [r.value for r in records(store_dir)] == expected[suffix]


def parquet_file(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    columns = {
        "key": pa.array([b"a", None, b"c"], pa.binary()),
        "value": pa.array(["1", "", None]),
        "timestamp": pa.array([NOON, NOON + 1, NOON + 2], pa.timestamp("ms", "UTC")),
        "headers": pa.array([[], [{"key": "h", "value": b"\xff"}], None], pa.list_(header)),
        "when": pa.array([datetime.date(2013, 7, 1)] * 3),
    }  # fmt: skip
    pq.write_table(pa.table(columns), path)


@pytest.mark.parametrize("partitions", [1, 3])
def test_parquet(partitions: int, store_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    parquet_file(tmp_path / "t.parquet")
    ok("create", "t", "-p", partitions, "-s", store_dir)
    ok("produce", "t", tmp_path / "t.parquet", "-s", store_dir)
    found = sorted(
        (r for p in range(partitions) for r in records(store_dir, "t", p)), key=lambda r: r.timestamp
    )
    assert [r[1:] for r in found] == [
        (NOON, b"a", b"1", []),
        (NOON + 1, None, b"", [("h", b"\xff")]),
        (NOON + 2, b"c", None, []),
    ]


def test_parquet_rows_as_json(store_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    parquet_file(tmp_path / "t.parquet")
    ok("create", "t", "-s", store_dir)
    ok(
        "produce",
        "t",
        tmp_path / "t.parquet",
        "--key-column",
        "value",
        "--timestamp-column",
        "when",
        "-s",
        store_dir,
    )
    found = records(store_dir)
    assert [r.key for r in found] == [b"1", b"", None]
    assert {r.timestamp for r in found} == {NOON - 12 * 3600_000}
    row = json.loads(found[0].value or b"")
    assert (row["key"], row["value"], row["when"]) == ("YQ==", "1", "2013-07-01")


def test_what_consume_prints_comes_back(store_dir: Path) -> None:
    ok("create", "t", "-p", "3", "-s", store_dir)
    with segstore.open(store_dir) as store:
        log = store.partition("t", 1)
        log.append(b"\xff", key="ä".encode(), headers=[("h", b"\xfe"), ("n", None), ("e", b"")], timestamp=5)
        log.append(None, key=b"", timestamp=6)
        log.append(b"", timestamp=7)
    printed = ok("consume", "t", "-s", store_dir).stdout
    ok("create", "u", "-p", "3", "-s", store_dir)
    ok("produce", "u", "-f", "ndjson", "-s", store_dir, stdin=printed)
    assert records(store_dir, "u", 1) == records(store_dir, "t", 1) != []
    assert json_lines(ok("consume", "u", "-s", store_dir)) == json_lines(ok("consume", "t", "-s", store_dir))


@pytest.mark.kind("programs")
def test_a_live_pipe_is_not_kept_waiting(store_dir: Path) -> None:
    """Each line is in the log before the next is written, as with `tail -f | segstore produce`."""
    ok("create", "t", "-s", store_dir)
    with start_program("produce", "t", "-s", store_dir) as process:
        assert process.stdin is not None
        for n in range(1, 4):
            process.stdin.write(b"line\n")
            process.stdin.flush()
            until(lambda n=n: len(records(store_dir)) == n or process.poll() is not None)
            assert process.poll() is None
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
