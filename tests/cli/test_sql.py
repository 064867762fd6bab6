"""`segstore sql`: what is printed and written, in each format; wrong input, terminals and interrupts."""

from __future__ import annotations

import csv
import io
import json
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from cli import json_lines, ok, run, start_program
from late_signals import send_to_this_thread, sent
from partitions import Partition
from stores import START_MS
from terminal import CTRL_C, Terminal
from waiting import PATIENCE, until

import segstore
from segstore.cli.sql_session import SqlSession
from segstore.records import TRANSACTIONAL_FLAG, Columns, Template
from segstore.storage.log.append import append_batches

pytest.importorskip("duckdb")

HEADERS = [("h", None), ("g", b"\xff")]


@pytest.fixture
def place(store_dir: Path) -> Path:
    """Topics "flights" of two partitions, "orders.eu" of one record of each kind, and "empty"."""
    with segstore.open(store_dir) as store:
        store.create_topic("flights", 2)
        for number in range(2):
            times = [START_MS + i for i in range(50)]
            store.partition("flights", number).append_batch([b"%d" % i for i in range(50)], timestamps=times)
        store.create_topic("empty")
        store.create_topic("orders.eu")
        log = store.partition("orders.eu")
        log.append(b"plain", b"k", [], START_MS)
        log.append(None, None, HEADERS, START_MS)
        log.append(b"\xff\xfe bin", b"", [], START_MS + 120)
        log.append('Zürich, "quoted"\nnew'.encode(), b"\x80", [], START_MS)
    return store_dir


ORDERS = 'select "offset", timestamp, key, value, headers from "orders.eu" order by 1'
START, LATER = "2023-11-14T22:13:20Z", "2023-11-14T22:13:20.12Z"
JSON_ROWS: list[dict[str, Any]] = [
    {"offset": 0, "timestamp": START, "key": "k", "value": "plain", "headers": None},
    {
        "offset": 1,
        "timestamp": START,
        "key": None,
        "value": None,
        "headers": [
            {"key": "h", "value": None},
            {"key": "g", "value": "/w==", "value_encoding": "base64"},
        ],
    },
    {
        "offset": 2,
        "timestamp": LATER,
        "key": "",
        "value": "//4gYmlu",
        "value_encoding": "base64",
        "headers": None,
    },
    {
        "offset": 3,
        "timestamp": START,
        "key": "gA==",
        "key_encoding": "base64",
        "value": 'Zürich, "quoted"\nnew',
        "headers": None,
    },
]


def test_records_as_json(place: Path) -> None:
    assert json_lines(ok("sql", ORDERS, "--format", "ndjson", "-s", place)) == JSON_ROWS
    assert json.loads(ok("sql", ORDERS, "--format", "json", "-s", place).stdout) == JSON_ROWS
    assert ok("sql", "select 1 where false", "--format", "json", "-s", place).stdout == "[]\n"


def test_records_as_csv_which_a_pipe_gets(place: Path) -> None:
    told = ok("sql", ORDERS, "-s", place).stdout
    header, *found = csv.reader(io.StringIO(told))
    assert header == ["offset", "timestamp", "key", "value", "headers"]
    assert [row[:4] for row in found] == [
        ["0", START, "k", "plain"],
        ["1", START, "", ""],
        ["2", LATER, "", "\\xff\\xfe bin"],
        ["3", START, "\\x80", 'Zürich, "quoted"\nnew'],
    ]
    assert json.loads(found[1][4]) == JSON_ROWS[1]["headers"]
    assert f'1,{START},,,"[' in told  # null is nothing, an empty text is quoted
    assert f'2,{LATER},"",' in told


def test_records_as_tables_of_others(place: Path, tmp_path: Path) -> None:
    for form in ("parquet", "arrow"):
        ok("sql", ORDERS, "--output", tmp_path / f"t.{form}", "-s", place)
    with pa.ipc.open_stream((tmp_path / "t.arrow").read_bytes()) as reader:
        streamed = reader.read_all()
    for table in (pq.read_table(tmp_path / "t.parquet"), streamed):
        assert table["value"].to_pylist()[1:3] == [None, b"\xff\xfe bin"]
        assert [(each["key"], each["value"]) for each in table["headers"].to_pylist()[1]] == HEADERS
        assert pa.types.is_timestamp(table.schema.field("timestamp").type)
    assert sorted(path.name for path in tmp_path.glob("t.*")) == ["t.arrow", "t.parquet"]


KINDS: dict[str, tuple[str, Any, str]] = {
    "null": ("null", None, ""),
    "a boolean": ("true", True, "true"),
    "a large sum": (
        "sum(i) from (values (9000000000000000000), (9000000000000000000)) t(i)",
        18 * 10**18,
        "18" + "0" * 18,
    ),
    "a decimal": ("1.10::decimal(9,2)", 1.1, "1.10"),
    "no number": ("'nan'::double", None, "nan"),
    "a list": ("[1, null]", [1, None], "[1, null]"),
    "bytes in a list": ("['\\xFF'::blob]", ["/w=="], '["\\\\xff"]'),
    "a struct": ("{'a': 'x'}", {"a": "x"}, '{"a": "x"}'),
    "a map": ("map {'k': 1}", {"k": 1}, '{"k": 1}'),
    "JSON": ("'{\"a\": [1]}'::json", {"a": [1]}, '{"a": [1]}'),
    "a date": ("date '2020-01-02'", "2020-01-02", "2020-01-02"),
    "a time": ("time '12:00:00'", "12:00:00", "12:00:00"),
    "a time without zone": ("timestamp '2020-01-02 00:00:00'", "2020-01-02T00:00:00", "2020-01-02T00:00:00"),
    "an interval": ("interval 26 hour", "1 day, 2:00:00", "1 day, 2:00:00"),
    "an enum": ("'a'::enum('a', 'b')", "a", "a"),
    "text to be escaped": ("'a\\\"' || chr(9)", 'a\\"\t', 'a\\"\t'),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_of_each_kind(kind: str, place: Path) -> None:
    query, as_json, as_text = KINDS[kind]
    query = f"select {query}" if " from " in query else f"select {query} as x"
    (row,) = json_lines(ok("sql", query, "--format", "ndjson", "-s", place))
    assert next(iter(row.values())) == as_json
    _, *found = csv.reader(io.StringIO(ok("sql", query, "-s", place).stdout))
    assert found == [[as_text]] if as_text else found in ([], [[]], [[""]])


QUERIES: dict[str, tuple[str, list[list[str]]]] = {
    "groups": (
        'select "partition", count(*) from flights group by 1 order by 1',
        [["partition", "count_star()"], ["0", "50"], ["1", "50"]],
    ),
    "an empty topic": ("select count(*) as n from empty", [["n"], ["0"]]),
    "no rows": ("select value from empty", [["value"]]),
    "two names alike": ("select 1 as a, 2 as a", [["a", "a"], ["1", "2"]]),
    "several statements": ("select 1 as a; ; select 2 as b; -- end", [["a"], ["1"], ["b"], ["2"]]),
    "of which some have no rows": (
        "create table t as select 7 as x; insert into t values (8); set threads = 1;"
        " select sum(x) as s from t",
        [["s"], ["15"]],
    ),
    "the topics": ("show tables", [["name"], ["empty"], ["flights"], ["orders.eu"]]),
    "bounds": ('select count(*) as n from flights where "offset" >= 40 and "partition" = 1', [["n"], ["10"]]),
}


@pytest.mark.parametrize("case", QUERIES)
def test_queries(case: str, place: Path, tmp_path: Path) -> None:
    query, expected = QUERIES[case]
    assert [*csv.reader(io.StringIO(ok("sql", query, "-s", place).stdout))] == expected
    script = tmp_path / "query.sql"
    script.write_text(query)
    for arguments, typed in ((["--file", script], None), (["-"], query), ([], query)):
        told = ok("sql", *arguments, "-s", place, stdin=typed).stdout
        assert [*csv.reader(io.StringIO(told))] == expected


WRONG: dict[str, tuple[list[object], int, str]] = {
    "no query": ([], 2, "Which query? Give one, as in `segstore sql"),
    "an empty one": ([" "], 2, "Which query?"),
    "no SQL": (["selct 1"], 2, 'Parser Error: syntax error at or near "selct"'),
    "no such topic": (["select * from flihgts"], 2, "flihgts does not exist! Did you mean"),
    "the topics that there are": (["select * from nope"], 2, "Topics: empty, flights, orders.eu"),
    "a name without quotes": (["select * from orders.eu"], 2, 'Names of topics as "orders.eu" are quoted'),
    "no such column": (["select nope from flights"], 2, '"nope" not found in FROM clause'),
    "offset without quotes": (["select offset from flights"], 2, 'The column "offset" is quoted'),
    "values of an empty topic": (["select * from empty", "--values", "json"], 1, "topic 'empty': values="),
    "the line": (["select 1;\n\nselect nope\nfrom flights"], 2, "(line 3)"),
    "an error while it runs": (["select error('boom')"], 1, "Invalid Input Error: boom"),
    "no such format": (["select 1", "--format", "xml"], 2, "'xml' is not one of"),
    "values of no format": (["select 1", "--values", "xml"], 2, "formats: json, avro. See"),
    "Avro without a schema": (["select 1", "--values", "avro"], 2, "needs --value-schema FILE"),
    "a schema of nothing": (["select 1", "--value-schema", "{tmp}/q.sql"], 2, "is for --values avro"),
    "no schema of Avro": (
        ["select * from empty", "--values", "avro", "--value-schema", "{tmp}/q.sql"],
        1,
        "no Avro schema",
    ),
    "values of no topic": (["select 1", "--values", "nope=json"], 1, "no topic 'nope'; there are: empty"),
    "two queries": (["select 1", "--file", "{tmp}/q.sql"], 2, "Give QUERY or --file, not both."),
    "no format of a file": (["select 1", "-o", "{tmp}/t"], 2, "does not say it by its suffix"),
    "a table in a file": (["select 1", "-o", "{tmp}/t.csv", "--format", "table"], 2, "one of the other"),
    "a file that is there": (["select 1", "-o", "{tmp}/q.parquet"], 1, "--force replaces it"),
    "two results in a file": (["select 1; select 2", "-o", "{tmp}/t.csv"], 2, "several results"),
    "no result for a file": (["create table t as select 1", "-o", "{tmp}/t.csv"], 2, "no result"),
    "a type that Parquet has not": (["select interval 1 day", "-o", "{tmp}/t.parquet"], 1, "as varchar"),
    "a server": (["select 1", "--bootstrap", "h:1"], 2, "needs the files of a store"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_uses_are_one_line(case: str, place: Path, tmp_path: Path) -> None:
    for name in ("q.sql", "q.parquet"):
        (tmp_path / name).write_text("select 1")
    arguments, status, message = WRONG[case]
    result = run("sql", *[str(each).format(tmp=tmp_path) for each in arguments], "-s", place)
    (line,) = result.stderr.splitlines()
    assert (result.exit_code, message in line) == (status, True), line
    assert list(tmp_path.glob("t*")) == []


def test_what_becomes_of_a_bad_value(place: Path) -> None:
    with segstore.open(place) as store:
        store.partition("empty").append_batch([b'{"a": 1}', b"bad"])
    query = ["sql", "select * exclude (timestamp) from empty", "--values", "json", "-s", place]
    result = run(*query)
    (line,) = result.stderr.splitlines()
    assert result.exit_code == 1
    assert line.startswith("segstore: empty-0, offset 1: its value can't be deserialized: JSONDecodeError: ")
    assert line.endswith("(--on-bad null or --on-bad column passes it by)")
    query += ["--format", "ndjson"]
    assert [each["a"] for each in json_lines(ok(*query, "--on-bad", "null"))] == [1, None]
    told = [each["value_error"] for each in json_lines(ok(*query, "--on-bad", "column"))]
    assert (told[0], "JSONDecodeError" in told[1]) == (None, True)


def test_values_in_avro(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastavro")
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
    (tmp_path / "r.avsc").write_text(json.dumps(schema))
    with segstore.open(place) as store:
        values = segstore.serializer("avro", schema).column([{"a": 1}, {"a": 2}])
        store.partition("empty").append_batch(values)
    query = ["select sum(a) as s from empty", "--values", "avro", "--value-schema", tmp_path / "r.avsc"]
    assert json_lines(ok("sql", *query, "--format", "ndjson", "-s", place)) == [{"s": 3}]


def test_no_store(tmp_path: Path) -> None:
    result = run("sql", "select 1", "-s", tmp_path / "none")
    assert (result.exit_code, "no such store" in result.stderr) == (1, True)


@pytest.mark.parametrize("package", ["duckdb", "pyarrow"])
def test_a_package_that_is_not_installed(package: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = run("sql", "select 1", "-s", place)
    told = f"segstore: segstore sql needs {package}, which is not installed: pip install {package}\n"
    assert (result.exit_code, result.stderr) == (1, told)


def test_damage_is_told_as_the_engine_tells_it(place: Path) -> None:
    file = place / "flights-0" / "00000000000000000000.log"
    data = bytearray(file.read_bytes())
    data[80] ^= 0xFF
    before = file.read_bytes()
    file.write_bytes(data)
    try:
        result = run("sql", "select max(value) from flights", "-s", place)
    finally:
        file.write_bytes(before)
    (line,) = result.stderr.splitlines()
    assert (result.exit_code, "corrupt batch at position 0" in line, "Traceback" in line) == (1, True, False)


def test_beside_a_live_writer_each_query_sees_what_is_there(place: Path) -> None:
    query = ["sql", "select count(*) as n from empty", "--format", "ndjson", "-s", place]
    with segstore.open(place) as store:
        for expected in (1, 2):
            store.partition("empty").append(b"x")
            assert json_lines(ok(*query)) == [{"n": expected}]


def test_open_transactions_are_left_out_by_default(place: Path) -> None:
    with segstore.open(place) as store:
        template = Template(TRANSACTIONAL_FLAG, producer_id=7, producer_epoch=0, base_sequence=0)
        append_batches(store.partition("empty"), Columns([b"open"]), template=template)
    query = ["sql", "select count(*) as n from empty", "--format", "ndjson", "-s", place]
    assert json_lines(ok(*query)) == [{"n": 0}]
    assert json_lines(ok(*query, "--isolation-level", "read_uncommitted")) == [{"n": 1}]


@pytest.mark.kind("costly unit tests")
def test_a_broker_s_partition(broker_partition: Partition) -> None:
    query = f'select "offset" from "{broker_partition.topic}" where "partition" = {broker_partition.index}'
    level = ["--isolation-level", "read_uncommitted", "--format", "ndjson"]
    found = json_lines(ok("sql", query, *level, "-s", broker_partition.root))
    assert [row["offset"] for row in found] == [each.offset for each in broker_partition.expected()]


@pytest.mark.kind("programs")
def test_a_terminal_gets_a_table_of_its_width(place: Path) -> None:
    with Terminal("sql", "select * from flights", "-s", place) as terminal:
        assert terminal.end() == 0
    lines = terminal.plain().replace("\r", "\n").splitlines()
    shown = [line.strip() for line in lines if line.strip().startswith("flights ")]
    assert len(shown) == 40
    assert max(map(len, lines[lines.index(next(x for x in lines if "TIMESTAMPTZ" in x)) :])) <= 80
    assert any(line.strip() == "… 60 more rows" for line in lines)
    assert START in shown[0]


@pytest.mark.kind("programs")
def test_what_a_table_has_for_null_bytes_and_long_values(place: Path) -> None:
    query = 'select key, value, repeat(chr(120), 300) as x from "orders.eu" order by "offset"'
    with Terminal("sql", query, "-s", place) as terminal:
        assert terminal.end() == 0
    for text in ("NULL", "\\xff\\xfe bin", '"quoted"\\nnew', "x…", "4 rows", "VARCHAR"):
        assert text in terminal.plain()


@pytest.mark.kind("programs")
def test_a_terminal_shows_a_plan_line_by_line(place: Path) -> None:
    with Terminal("sql", "explain select count(*) from flights", "-s", place) as terminal:
        assert terminal.end() == 0
    assert "\\n" not in terminal.plain()
    assert any(line.startswith("│ Function: PYTHON_ARROW_SCAN") for line in terminal.plain().splitlines())


@pytest.mark.kind("programs")
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_terminal_gets_no_binary_form(form: str, place: Path) -> None:
    with Terminal("sql", "select 1", "--format", form, "-s", place) as terminal:
        assert terminal.end() == 2
    assert f"A terminal can't show {form}" in terminal.plain()


ENDLESS = "select sum(a.i * b.i) from range(1000000000) a(i), range(1000000000) b(i)"


@pytest.mark.kind("programs")
def test_ctrl_c_ends_a_query_with_one_line(place: Path) -> None:
    query = f"select 'begun' as x; {ENDLESS}"
    with Terminal("sql", query, "-s", place) as terminal:
        terminal.read_until(lambda shown: "1 row" in shown)
        terminal.type(CTRL_C)
        assert terminal.end() == 130
    assert terminal.plain().split("1 row")[1].strip().splitlines()[-1] == "segstore: interrupted"
    assert "Traceback" not in terminal.plain()


def test_ctrl_c_that_comes_just_before_the_wait_ends_a_query(place: Path) -> None:
    """A signal that another thread gets does not end the main thread's sleep, just as one that comes after
    Python's last check for signals. The query is interrupted in the end if the handler does not run.
    """

    def ring() -> None:
        until(lambda: session._running.running())
        time.sleep(0.5)  # so that the endless call runs, and the main thread waits
        send_to_this_thread(signal.SIGINT)

    with (
        segstore.open(place, mode="r") as store,
        SqlSession(store, ENDLESS, {}, "read_uncommitted") as session,
        sent(ring, session._con.interrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        list(session.results())


@pytest.mark.parametrize("is_taken", [False, True])
@pytest.mark.parametrize("number", range(3))
def test_an_interrupt_while_a_call_is_handed_over_ends_it(
    number: int, is_taken: bool, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that takes it may be within DuckDB before the main thread knows that it was taken."""
    calls = iter(range(10))

    class Pool(ThreadPoolExecutor):
        def submit(self, *given: Any) -> Any:
            is_last = next(calls) == number
            if is_taken or not is_last:
                future = super().submit(*given)
            if is_last:
                until(lambda: not is_taken or future.running() or future.done())
                raise KeyboardInterrupt
            return future

    monkeypatch.setattr("segstore.cli.sql_session.ThreadPoolExecutor", Pool)
    with (
        segstore.open(place, mode="r") as store,
        pytest.raises(KeyboardInterrupt),
        SqlSession(store, ENDLESS, {}, "read_uncommitted") as session,
    ):
        next(session.results())
    assert next(calls) == number + 1


@pytest.mark.kind("programs")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_no_half_file(
    number: signal.Signals, status: int, place: Path, tmp_path: Path
) -> None:
    half = tmp_path / "t.csv.part"
    query = "select i from range(1000000000000) t(i)"
    child = start_program("sql", query, "-o", tmp_path / "t.csv", "-s", place)
    until(lambda: child.poll() is not None or (half.exists() and half.stat().st_size))
    child.send_signal(number)
    _, err = child.communicate(timeout=PATIENCE)
    assert (child.returncode, err) == (status, b"segstore: interrupted\n")
    assert list(tmp_path.glob("t.*")) == []


@pytest.mark.kind("programs")
def test_a_pipe_that_is_closed_ends_a_query(place: Path) -> None:
    child = start_program("sql", "select i from range(1000000000000) t(i)", "-s", place)
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdout.readline() == b"i\n"
    child.stdout.close()
    assert (child.wait(PATIENCE), child.stderr.read()) == (141, b"")


@pytest.mark.kind("programs")
def test_a_user_s_duckdbrc_is_not_read(place: Path, tmp_path: Path) -> None:
    (tmp_path / ".duckdbrc").write_text("create table of_rc as select 1; no sql")
    with Terminal("sql", "show tables", "-s", place, HOME=str(tmp_path)) as terminal:
        assert terminal.end() == 0
    assert "of_rc" not in terminal.plain()


WIDTHS: dict[str, tuple[list[int], list[int], int, list[int]]] = {
    "they fit": ([5, 5], [5, 5], 80, [5, 5]),
    "the widest is cut": ([5, 100, 20], [5, 8, 8], 60, [5, 29, 20]),
    "two are cut": ([5, 100, 90], [5, 8, 8], 51, [5, 20, 20]),
    "numbers are not cut": ([20, 100], [20, 8], 32, [20, 8]),
    "the middle is left out": ([20] * 5, [20] * 5, 51, [20, 0, 0, 0, 20]),
    "one that is too wide": ([100], [100], 40, [35]),
}


@pytest.mark.parametrize("case", WIDTHS)
def test_widths_of_columns(case: str) -> None:
    from segstore.cli.sql_table import fitted

    widths, least, room, expected = WIDTHS[case]
    assert fitted(widths, least, room) == expected
