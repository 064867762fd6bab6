"""The command line as a whole: help, usage, errors, and the commands about topics."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from cli import COMMAND, json_lines, ok, run
from waiting import PATIENCE

import segstore
from segstore.cli.app import COMMANDS, ListedCommand, one_line
from segstore.cli.places.of_store import EMPTY
from segstore.storage.meta.directory_safety import NEITHER

NAMES = [
    *("topics", "create", "alter", "delete", "produce", "consume", "export", "import", "sql", "groups"),
    "quotas",
    *(
        "serve",
        "config",
        "members",
        "mirror",
        "follow",
        "promote",
        "demote",
        "unfence",
        "end-mirror",
        "checkpoints",
        "stats",
        "replicas",
        "elect",
        "reassign",
        "heal",
        "replicate",
        "unreplicate",
        "sweep",
        "upgrade",
        "copy",
        "archive",
        "restore",
        "dump",
        "check",
        "bench",
    ),
    "demo",
]


def test_no_arguments_print_help_with_every_command() -> None:
    shown = ok().stdout
    assert list(COMMANDS) == NAMES
    assert [name for name in NAMES if f" {name} " not in shown] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_list_says_what_the_help_of_the_command_begins_with(name: str) -> None:
    listed = ListedCommand(name)
    first, *_ = str(listed.itself().help).split("\n\n")
    assert (listed.itself().name, listed.help) == (name, " ".join(first.split()))


@pytest.mark.kind("programs")
def test_the_list_of_commands_brings_no_engine() -> None:
    code = """
import atexit, sys
from segstore.cli import main
atexit.register(lambda: print(*sys.modules))
main([])
"""
    run_ = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    found = {name for name in run_.stdout.split() if name.startswith("segstore.")}
    assert {name for name in found if not name.startswith("segstore.cli")} == {
        *("segstore.errors", "segstore.first_use", "segstore.main_interpreter"),
        *("segstore.threads", "segstore.version"),
    }


@pytest.mark.parametrize("name", NAMES)
def test_help_of_a_command(name: str) -> None:
    shown = ok(name, "--help").stdout
    assert f" {name} [OPTIONS]" in shown
    if name not in (
        "config",
        "dump",
        "bench",
        "demo",
        "mirror",
        "end-mirror",
        "follow",
        "promote",
        "unfence",
        "restore",
    ):
        assert "SEGSTORE_PATH" in shown


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("bench", "demo")])
def test_a_command_without_arguments_is_wrong_usage(name: str) -> None:
    result = run(name)
    assert result.exit_code == 2
    assert result.stdout == ""


@pytest.mark.parametrize(
    "name", ["stats", "sweep", "upgrade", "check", "copy x", "export t -", "checkpoints ls"]
)
def test_a_command_that_needs_a_store_asks_for_it(name: str) -> None:
    (line,) = run(*name.split()).stderr.splitlines()
    assert re.search(r": Which store\? Give (its PATH, or )?--store( PATH)?, or set SEGSTORE_PATH\.", line)


USAGE = {
    "no such command": ["topic"],
    "no such option": ["topics", "--stroe", "x"],
    "config without value": ["create", "t", "-s", "{store}", "--config", "retention.ms"],
    "no partitions": ["create", "t", "-s", "{store}", "--partitions", "0"],
    "nothing to alter": ["alter", "t", "-s", "{store}"],
    "set and deleted": ["alter", "t", "-s", "{store}", "-c", "retention.ms=1", "-d", "retention.ms"],
    "no time": ["consume", "t", "-s", "{store}", "--time", "yesterday"],
    "no offset": ["consume", "t", "-s", "{store}", "--offset", "first"],
    "offset and time": ["consume", "t", "-s", "{store}", "--offset", "1", "--time", "0"],
    "no such format": ["produce", "t", "-s", "{store}", "--format", "xml"],
    "no such file": ["produce", "t", "no-such-file.csv", "-s", "{store}"],
    "dump of nothing": ["dump", "no-such-file.log"],
    "delete without anybody to ask": ["delete", "t", "-s", "{store}"],
}


@pytest.mark.parametrize("case", USAGE)
def test_wrong_usage(case: str, store_dir: Path) -> None:
    ok("create", "t", "-s", store_dir)
    result = run(*[a.format(store=store_dir) for a in USAGE[case]])
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    command = USAGE[case][0] if case != "no such command" else ""
    assert line.startswith(f"segstore {command}".strip() + ": ")
    assert line.endswith(f"See `segstore {command}".strip() + " --help`.")


UNKNOWN = {
    "a command": (["consum"], "segstore: No such command 'consum': did you mean consume? See"),
    "a command of a group": (["groups", "lst"], "segstore groups: No such command 'lst': did you mean list?"),
    "a command like none": (["rm"], "segstore: No such command 'rm'. See `segstore --help`."),
    "an option": (["topics", "--stor", "x"], "No such option '--stor': did you mean --store? See"),
    "the nearest option first": (
        ["consume", "t", "--ofset", "1"],
        "segstore consume: No such option '--ofset': did you mean --offset or --offsets or --set? See",
    ),
    "an option before the command": (["--stoer", "x", "topics"], "'--stoer': did you mean --store? See"),
    "an option like none": (["create", "t", "--dry"], "segstore create: No such option '--dry'. See"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_a_name_that_is_none_has_its_neighbours(case: str) -> None:
    arguments, told = UNKNOWN[case]
    result = run(*arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert told in line


EXTRA = {
    "a number of partitions": (["create", "t", "3"], "(3): did you mean --partitions 3?"),
    "a number of records": (["consume", "t", "10"], "(10): did you mean --max-records 10?"),
    "a setting": (["create", "t", "retention.ms=7d"], "did you mean --config retention.ms=7d?"),
    "an option": (["consume", "t", "follow"], "(follow): did you mean --follow?"),
    "a path": (["create", "t", "./log"], "(./log): did you mean --store ./log?"),
    "the store first": (["create", "log", "t"], "(t): it takes TOPIC, and the store by --store PATH."),
    "no argument": (["sweep", "t"], "(t): it takes no argument, and the store by --store PATH."),
    "several": (["delete", "t", "u", "v"], "arguments (u v): it takes TOPIC, and the store by --store PATH."),
    "without a store": (["demo", "now"], "(now): it takes no argument."),
}


@pytest.mark.parametrize("case", EXTRA)
def test_an_argument_too_many_says_what_was_meant(case: str, store_dir: Path) -> None:
    arguments, expected = EXTRA[case]
    with_store = [] if arguments[0] == "demo" else ["-s", store_dir]
    result = run(*arguments, *with_store)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "Got unexpected extra argument" in line
    assert expected in line
    assert line.endswith(f"See `segstore {arguments[0]} --help`.")
    assert not store_dir.exists()


ERRORS = {
    "no such store": (["topics", "-s", "{missing}"], "is the path right? `segstore create` makes a new one"),
    "a copy where none can be": (["copy", "/proc/x", "-s", "{store}"], "/proc/x: No copy can be made there"),
    "an export where none can be": (
        ["export", "t", "{missing}/x.ndjson", "-s", "{store}"],
        "missing/x.ndjson: The file can't be made there: there is no directory {missing}",
    ),
    "a store two directories deep": (
        ["create", "u", "-s", "{missing}/b"],
        "{missing}/b: there is no directory {missing}: only the last directory of a path is made",
    ),
    "a home that no shell expanded": (
        ["create", "u", "-s", "{missing}/~/b"],
        "made; a shell expands ~, and os.path.expanduser",
    ),
    "no such topic": (["consume", "u", "-s", "{store}"], "no topic 'u'; there are: t"),
    "no such partition": (["consume", "t", "-p", "9", "-s", "{store}"], "has no partition 9; it has [0]"),
    "partition to produce to": (["produce", "t", "-p", "9", "-s", "{store}"], "has no partition 9"),
    "an offset that is not there": (["consume", "t", "-o", "7", "-s", "{store}"], "offset 7 of t-0"),
    "a topic twice": (["create", "t", "-s", "{store}"], "'t' is there already"),
    "a bad name": (["create", "t?", "-s", "{missing}"], "'t?' can't be a topic's name"),
    "a bad setting": (["create", "u", "-c", "retention.sm=1", "-s", "{missing}"], "did you mean"),
    "a bad value": (["alter", "t", "-c", "retention.ms=x", "-s", "{store}"], "retention.ms"),
    "fewer partitions": (["alter", "t", "-p", "1", "-s", "{store}"], "1"),
    "alter what is not there": (["alter", "u", "-p", "2", "-s", "{missing}"], "no such store"),
    "produce to what is not there": (["produce", "u", "-s", "{missing}"], "no such store"),
    "delete what is not there": (["delete", "u", "-y", "-s", "{store}"], "no topic 'u'"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_is_one_line_and_nothing_is_made(case: str, store_dir: Path, tmp_path: Path) -> None:
    ok("create", "t", "-s", store_dir)
    arguments, expected = ERRORS[case]
    result = run(*[a.format(store=store_dir, missing=tmp_path / "missing") for a in arguments], stdin="")
    assert result.exit_code == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("segstore: ")
    assert expected.format(missing=tmp_path / "missing") in line
    assert not (tmp_path / "missing").exists()


NO_STORES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "names like partitions' alone": (("dbus-1/conf", "polkit-1/rules", "hosts"), NEITHER),
    "other files": (("notes.txt",), NEITHER),
    "nothing": ((), EMPTY),
    "a new file system": (("lost+found/",), EMPTY),
    "hidden files": ((".git/",), EMPTY),
    "a lock": ((".lock",), EMPTY),
    "a broker's log": (("dbus-1/conf", "t-0/00000000000000000000.log"), ""),
    "a broker's metadata": (("t-0/partition.metadata",), ""),
    "a broker without topics": (("meta.properties",), ""),
}


READING = ["topics", "stats", "check", "consume t", "groups list", "sweep", "copy x"]


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("case", NO_STORES)
def test_what_is_no_store_is_refused(
    case: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, told = NO_STORES[case]
    place = tmp_path / "place"
    place.mkdir()
    for name in files:
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).mkdir() if name.endswith("/") else (place / name).touch()
    before = sorted(place.rglob("*"))
    with monkeypatch.context() as within:
        within.chdir(tmp_path)
        result = run(*command.split(), "-s", place)
    if told:
        assert (result.exit_code, result.stderr) == (1, f"segstore: {place}: {told}\n")
    assert command == "check" or "dbus" not in result.stdout
    assert sorted(place.rglob("*")) == before or (not told and command == "sweep")
    assert (tmp_path / "x").exists() <= (not told)


@pytest.mark.kind("programs")
def test_a_second_writer_is_told_who_the_first_is(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        run_ = subprocess.run(
            [*COMMAND, "produce", "t", "-s", store_dir], input=b"x", capture_output=True, timeout=PATIENCE
        )
        assert run_.returncode == 1
        assert b"is open for writing in process" in run_.stderr
        sweep = subprocess.run([*COMMAND, "sweep", "-s", store_dir], capture_output=True, timeout=PATIENCE)
        assert sweep.stderr.endswith(b"do this there, or stop that process first\n")
        assert json_lines(ok("topics", "--json", "-s", store_dir))[0]["topic"] == "t"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device", "/a/b"), "/a/b: No space left on device"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (segstore.StorageError("fenced"), "fenced"),
        (segstore.SegstoreError("two\nlines"), "two lines"),
        (segstore.SegstoreError(), "SegstoreError"),
    ],
)
def test_one_line(error: Exception, line: str) -> None:
    assert one_line(error) == line


def test_the_life_of_a_topic(store_dir: Path) -> None:
    ok("create", "flights", "-p", "2", "-c", "compression.type=zstd", "-s", store_dir)
    (row,) = json_lines(ok("topics", "--json", "-s", store_dir))
    assert (row["topic"], len(row["partitions"]), row["config"]) == (
        "flights",
        2,
        {"compression.type": "zstd"},
    )
    ok("produce", "flights", "-p", "1", "-s", store_dir, stdin="a\nb\nc\n")
    ok("alter", "flights", "-p", "3", "-c", "retention.ms=5", "-d", "compression.type", "-s", store_dir)
    (row,) = json_lines(ok("topics", "--json", "-s", store_dir))
    assert row["config"] == {"retention.ms": 5}
    assert [(p["start_offset"], p["end_offset"]) for p in row["partitions"]] == [(0, 0), (0, 3), (0, 0)]
    log = store_dir / "flights-1" / "00000000000000000000.log"
    assert row["bytes"] == row["partitions"][1]["bytes"] == log.stat().st_size
    shown = ok("topics", "-s", store_dir).stdout
    assert "flights" in shown
    assert "retention.ms=5" in shown
    assert "end offset" in ok("topics", "flights", "-s", store_dir).stdout
    ok("delete", "flights", "--yes", "-s", store_dir)
    result = ok("topics", "-s", store_dir)
    assert result.stdout == ""
    assert "no topics" in result.stderr


def test_a_topic_that_is_there_may_be_left(store_dir: Path) -> None:
    ok("create", "t", "-s", store_dir, "-p", 2, "--if-not-exists")
    again = ok("create", "t", "-s", store_dir, "--if-not-exists", "-c", "retention.ms=1")
    assert (again.stdout, again.stderr) == ("", "t is there already\n")
    assert json_lines(ok("topics", "--json", "-s", store_dir))[0]["config"] == {}
    told = run("create", "t", "-s", store_dir).stderr
    assert "'t' is there already: `segstore alter` changes it, and --if-not-exists leaves it as it is" in told


def test_fewer_partitions_change_no_setting(store_dir: Path) -> None:
    """The settings were changed before the number was refused."""
    ok("create", "t", "-s", store_dir, "-p", 2)
    for number in (1, 2):
        result = run("alter", "t", "-s", store_dir, "-p", number, "-c", "retention.ms=1")
        told = f"segstore: --partitions {number}: t has 2 already; the number can only grow\n"
        assert (result.exit_code, result.stderr) == (1, told)
    assert json_lines(ok("topics", "--json", "-s", store_dir))[0]["config"] == {}


def test_internal_topics_come_last_and_empty_partitions_are_folded(store_dir: Path) -> None:
    with segstore.open(store_dir, config={"offsets.topic.num.partitions": 4}) as store:
        store.create_topic("t", 2)
        store.create_topic("zebras")
        store.partition("t", 1).append(b"x")
        consumer = segstore.Consumer(store, "t", group_id="g", auto_offset_reset="earliest")
        consumer.poll(timeout_ms=1000)
        consumer.close()
        partitions = store.topics()["__consumer_offsets"].partitions
    first = [line.split()[0] for line in ok("topics", "-s", store_dir).stdout.splitlines()]
    assert first == ["topic", "t", "zebras", "__consumer_offsets"]
    rows = [line.split("  ")[0] for line in ok("stats", "-s", store_dir).stdout.splitlines()]
    assert rows[:4] == ["partition", "t-0", "t-1", "zebras-0"]
    *told, folded = rows[4:]
    assert folded == f"__consumer_offsets: {partitions - len(told)} empty partitions"
    assert 0 < len(told) < 3
    assert len(json_lines(ok("stats", "--json", "-s", store_dir))) == 3 + partitions


@pytest.mark.kind("programs")
def test_the_store_by_environment(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ok("create", "t", "-s", store_dir)
    monkeypatch.setenv("SEGSTORE_PATH", str(store_dir))
    done = subprocess.run([*COMMAND, "topics", "--json"], capture_output=True, timeout=PATIENCE, check=True)
    assert b'"topic": "t"' in done.stdout


def test_topics_of_a_broker(golden: Path) -> None:
    rows = {row["topic"]: row for row in json_lines(ok("topics", "--json", "-s", golden / "clean"))}
    assert rows["flights-snappy"]["partitions"][0]["end_offset"] == 5942
    assert rows["flights-none"]["partitions"][0]["start_offset"] == 2879
    assert not rows["edge"]["ours"]
    assert "a broker's" in ok("topics", "-s", golden / "clean").stdout


@pytest.mark.kind("programs")
def test_a_command_brings_nothing_that_another_one_needs(store_dir: Path) -> None:
    with segstore.open(store_dir):
        """So that there is a store."""
    code = """
import sys
from segstore.cli import main
try:
    main(["topics", "-s", sys.argv[1]])
except SystemExit as end:
    assert end.code == 0
others = ("segstore.bench", "segstore.demo", "segstore.spark", "pyspark", "pyarrow", "matplotlib")
print([name for name in sys.modules if name.startswith(others)])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(store_dir)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.kind("programs")
def test_interrupt_while_it_starts() -> None:
    """Ctrl-C before there is any command: no traceback."""
    code = "import sys, segstore.cli as c; sys.modules['segstore.cli.app'] = None\n"
    code += (
        "class I:\n def find_spec(s, n, p, t=None):\n  if n == 'segstore.cli.app': raise KeyboardInterrupt\n"
    )
    code += "del sys.modules['segstore.cli.app']; sys.meta_path.insert(0, I()); sys.exit(c.main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, b"")
