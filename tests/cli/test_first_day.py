"""The command line on a first day: the place of --store, units, the Tab key, a store that is served."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from cli import json_lines, ok, run
from click.shell_completion import ShellComplete

import segstore
from segstore.cli.app import commands
from segstore.cli.command_line import moved

MOVED: Mapping[str, tuple[list[str], list[str]]] = {
    "--store": (["--store", "p", "topics"], ["topics", "--store", "p"]),
    "-s": (["-s", "p", "topics", "t"], ["topics", "-s", "p", "t"]),
    "with =": (["--store=p", "topics"], ["topics", "--store=p"]),
    "in one": (["-sp", "topics"], ["topics", "-sp"]),
    "--bootstrap": (["-b", "h:1", "groups", "list"], ["groups", "-b", "h:1", "list"]),
    "both": (["-s", "p", "-b", "h", "topics"], ["topics", "-s", "p", "-b", "h"]),
    "behind": (["topics", "-s", "p"], ["topics", "-s", "p"]),
    "no command": (["--store", "p"], ["--store", "p"]),
    "no value": (["--store"], ["--store"]),
    "help": (["-s", "p", "--help"], ["-s", "p", "--help"]),
    "nothing": ([], []),
}
UNITS: Mapping[str, tuple[str, str, str | None]] = {
    "days": ("retention.ms", "7d", "604800000"),
    "a fraction": ("retention.ms", "1.5h", "5400000"),
    "minutes, with a blank": ("retention.ms", "2 min", "120000"),
    "none": ("retention.ms", "86400000", "86400000"),
    "forever": ("retention.ms", "-1", "-1"),
    "megabytes": ("segment.bytes", "1MB", "1000000"),
    "mebibytes": ("segment.bytes", "64MiB", "67108864"),
    "small letters": ("retention.bytes", "2gb", "2000000000"),
    "a size for a time": ("retention.ms", "7MB", None),
    "a time for a size": ("segment.bytes", "7d", None),
    "an unknown unit": ("retention.ms", "7y", None),
}


@pytest.fixture
def path(store_dir: Path) -> Path:
    with segstore.open(store_dir) as store:
        store.create_topic("flights", 2)
        store.create_topic("fares")
        for number in (0, 1):
            store.partition("flights", number).append_batch([b"%d" % n for n in range(10)])
    return store_dir


@pytest.mark.parametrize(("given", "wanted"), MOVED.values(), ids=MOVED)
def test_where_options_of_the_place_go(given: list[str], wanted: list[str]) -> None:
    assert moved(given) == wanted


def test_the_store_may_come_first(path: Path) -> None:
    behind = ok("topics", "--store", path, "--json").stdout
    for before in (["--store", path], [f"--store={path}"], ["-s", path]):
        assert ok(*before, "topics", "--json").stdout == behind
    assert "no groups" in ok("--store", path, "groups", "list").stderr
    assert "no groups" in ok("groups", "--store", path, "list").stderr
    assert run("--store", path, "dump", path).exit_code == 2  # which takes no store


NO_COMMAND: Mapping[str, tuple[list[str], int, str]] = {
    "a store": (["--store", "s"], 2, "segstore: Missing command, as in `segstore topics --store s`. "),
    "a store in one": (["-ss"], 2, "segstore: Missing command, as in `segstore topics -ss`. "),
    "a cluster": (["-b", "h:1"], 2, "segstore: Missing command, as in `segstore topics -b h:1`. "),
    "checkpoints": (["checkpoints", "-s", "s"], 2, "as in `segstore checkpoints ls -s s`. "),
    "help of a store": (["--store", "s", "--help"], 0, "Usage: segstore [OPTIONS] [COMMAND]"),
    "help of groups of a store": (["groups", "-s", "s", "-h"], 0, "Usage: segstore groups [OPTIONS]"),
    "groups without a store": (["groups"], 2, "segstore groups list: Where are the topics? Give --store"),
    "nothing": ([], 0, "Usage: segstore [OPTIONS] [COMMAND]"),
}


@pytest.mark.parametrize(("given", "status", "told"), NO_COMMAND.values(), ids=NO_COMMAND)
def test_a_command_that_is_not_named(given: list[str], status: int, told: str) -> None:
    done = run(*given)
    assert (done.exit_code, told in done.output) == (status, True), done.output


@pytest.mark.parametrize(("name", "value", "held"), UNITS.values(), ids=UNITS)
def test_units_of_settings(path: Path, name: str, value: str, held: str | None) -> None:
    done = run("alter", "fares", "-c", f"{name}={value}", "-s", path)
    assert done.exit_code == (0 if held else 2), done.output
    config = json.loads(ok("topics", "fares", "--json", "-s", path).stdout)["config"]
    assert config == ({} if held is None else {name: int(held)})
    if held is None:
        assert "unit" in done.stderr


@pytest.mark.parametrize(("last", "offsets"), [(0, []), (3, [7, 8, 9]), (99, list(range(10)))])
def test_the_last_records_of_each_partition(path: Path, last: int, offsets: list[int]) -> None:
    rows = json_lines(ok("consume", "flights", "--last", last, "-s", path))
    assert [(row["partition"], row["offset"]) for row in rows] == [(p, o) for p in (0, 1) for o in offsets]


@pytest.mark.parametrize("other", [["--offset", "0"], ["--time", "0"]])
def test_one_beginning_only(path: Path, other: list[str]) -> None:
    assert run("consume", "flights", "--last", 1, *other, "-s", path).exit_code == 2


def completed(*words: object) -> list[str]:
    completion = ShellComplete(commands, {}, "segstore", "_SEGSTORE_COMPLETE")
    *args, incomplete = map(str, words)
    return [item.value for item in completion.get_completions(args, incomplete)]


def test_names_are_completed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "topics" in completed("to")
    assert completed("consume", "-s", path, "fl") == ["flights"]
    assert completed("-s", path, "topics", "f") == ["fares", "flights"]
    assert completed("consume", "fl") == []
    assert completed("consume", "-s", path / "none", "fl") == []
    monkeypatch.setenv("SEGSTORE_PATH", str(path))
    assert completed("delete", "fa") == ["fares"]
    with segstore.open(path) as store, segstore.Consumer(store, "flights", group_id="delays") as consumer:
        consumer.poll()
        consumer.commit()
    assert completed("groups", "describe", "d") == ["delays"]


def test_a_file_is_replaced_by_force_only(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "f.ndjson"
    file.write_text("precious")
    done = run("export", "flights", file, "-s", path)
    assert done.exit_code == 1
    assert "--force" in done.stderr
    assert file.read_text() == "precious"
    ok("export", "flights", file, "--force", "-s", path)
    assert len(file.read_text().splitlines()) == 20


# --- beside a live writer ------------------------------------------------------------------------

CHANGES: Mapping[str, list[object]] = {
    "create": ["create", "new"],
    "alter": ["alter", "fares", "-c", "retention.ms=1d"],
    "delete": ["delete", "fares", "--yes"],
    "produce": ["produce", "fares"],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_server_that_has_the_store_is_asked(path: Path, change: list[object]) -> None:
    with segstore.open(path) as store, segstore.serve(store, port=0) as server:
        done = run(*change, "-s", path, stdin=b"one\ntwo\n" if change[0] == "produce" else None)
        assert done.exit_code == 0, done.output
        assert f"asking its server at {server.bootstrap_servers}" in done.stderr
        topics = store.topics()
        assert ("new" in topics) == (change[0] == "create")
        assert ("fares" in topics) == (change[0] != "delete")
        if change[0] == "produce":
            assert [r.value for r in store.partition("fares")] == [b"one", b"two"]
        if change[0] == "alter":
            assert topics["fares"].config == {"retention.ms": 86_400_000}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_to_do_where_nobody_serves_the_store(path: Path, change: list[object]) -> None:
    with segstore.open(path) as store:
        with segstore.serve(store, port=0):
            pass  # a server that has ended is asked no more
        before = store.topics()
        done = run(*change, "-s", path, stdin=b"one\n" if change[0] == "produce" else None)
        assert done.exit_code == 1
        assert "is open for writing in process" in done.stderr
        assert "or let that process serve the store (segstore.serve(store)): this command then" in done.stderr
        assert "mode=" not in done.stderr
        assert store.topics() == before


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (("export", "t", "t.parquet"), "an export to Parquet or Arrow IPC"),
        (("export", "t", "t.arrow"), "an export to Parquet or Arrow IPC"),
        (("produce", "t", "rows.parquet"), "Parquet"),
        (("produce", "t", "rows.arrow"), "Arrow IPC"),
    ],
)
def test_a_command_that_needs_pyarrow_names_it(
    command: tuple[str, ...], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for module in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with segstore.open(tmp_path / "store") as store:
        store.create_topic("t")
        store.partition("t").append(b"x")
    for name in ("rows.parquet", "rows.arrow"):
        (tmp_path / name).write_bytes(b"")
    result = run(*command, variables={"SEGSTORE_PATH": str(tmp_path / "store")})
    advice = "which is not installed: pip install pyarrow"
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == f"segstore: {what} needs pyarrow, {advice}"
    assert not (tmp_path / "t.parquet").exists()
    assert segstore.check(tmp_path / "store") == []
