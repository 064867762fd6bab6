"""`segstore replicas`, `elect`, `reassign`: what they print, beside a live writer too, and refuse."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli import json_lines, ok, run
from damage import flip
from replicated_stores import Directories, await_in_sync, retrying
from stores import tree
from waiting import until

import segstore


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Directories]:
    """Topics "t" on 0, 1 with one record, "u" on 2; closed."""
    made = Directories(tmp_path, 3)
    with made.open(auto_leader_rebalance_enable=False) as store:
        store.create_topic("t", assignments={0: [0, 1], 1: [1, 0]})
        store.create_topic("u", assignments={0: [2]})
        for number in range(2):
            store.partition("t", number).append(b"x")
        await_in_sync(store)
    yield made
    made.judge()


def stores(three: Directories) -> list[Any]:
    return [part for path in three.paths for part in ("--store", path)]


def test_all_partitions_with_their_replicas(three: Directories) -> None:
    rows = json_lines(ok("replicas", *stores(three), "--json"))
    assert [(row["topic"], row["partition"], row["leader"], row["isr"]) for row in rows] == [
        ("t", 0, 0, [0, 1]), ("t", 1, 1, [1, 0]), ("u", 0, 2, [2])]  # fmt: skip
    assert rows[0]["replicas"] == [
        {"id": number, "directory": str(three.paths[number]), "end_offset": 1, "log_end_offset": 1, "lag": 0}
        for number in (0, 1)
    ]
    assert [row["trouble"] for row in rows] == [""] * 3
    shown = ok("replicas", *stores(three)).stdout
    assert all(word in shown for word in ("topic", "leader", "in sync", "0,1"))
    assert "directory" in ok("replicas", "t", *stores(three)).stdout


def test_it_changes_nothing_and_works_beside_a_live_writer(three: Directories) -> None:
    before = [tree(path) for path in three.paths]
    ok("replicas", *stores(three))
    assert [tree(path) for path in three.paths] == before
    with three.open() as store:
        three.lose(1)
        until(lambda: store.describe_partition("t", 0).isr == (0,))
        rows = json_lines(ok("replicas", "t", "--under-replicated", *stores(three), "--json"))
        assert [(row["partition"], row["leader"], row["isr"], row["trouble"]) for row in rows] == [
            (0, 0, [0], "under-replicated"),
            (1, 0, [0], "under-replicated"),
        ]
        assert "under-replicated" in ok("replicas", *stores(three)).stdout


def test_a_replica_that_hangs_lags(three: Directories) -> None:
    with three.open() as store:
        three.files.hang(three.paths[1])
        store.partition("t", 0).append_batch([b"y"] * 1500, acks=1)
        (first, _) = json_lines(ok("replicas", "t", *stores(three), "--json"))
        assert [(each["id"], each["log_end_offset"], each["lag"]) for each in first["replicas"]] == [
            (0, 1501, 0),
            (1, 1, 1500),
        ]
        shown = ok("replicas", "t", *stores(three)).stdout
        assert shown.count("1,500") == 2, "of the partition and of the replica"
        three.files.mend()


def test_one_directory_is_enough(three: Directories) -> None:
    (row,) = json_lines(ok("replicas", "u", "--store", three.paths[0], "--json"))
    assert row["replicas"] == [
        {"id": 2, "directory": None, "end_offset": None, "log_end_offset": None, "lag": None}
    ]
    assert "all replicas are in sync" in ok("replicas", "-u", "--store", three.paths[0]).stderr


def test_the_stores_are_taken_from_the_environment(three: Directories) -> None:
    from click.testing import CliRunner

    from segstore.cli.app import commands

    env = {"SEGSTORE_PATH": os.pathsep.join(map(str, three.paths))}
    result = CliRunner(env=env).invoke(commands, ["replicas", "--json"])
    assert (result.exit_code, len(json_lines(result))) == (0, 3)


def test_preferred_leaders_are_elected(three: Directories) -> None:
    with three.open() as store:
        three.files.fail(three.paths[0])
        until(lambda: store.describe_partition("t", 0).leader == 1)
    three.bring_back()
    with three.open() as store:
        await_in_sync(store)
    assert "t:0: leader 0" in ok("elect", "preferred", "t:0", *stores(three)).stdout
    assert {*ok("elect", "preferred", *stores(three)).stdout.splitlines()} == {
        "t:0: leader 0", "t:1: leader 1", "u:0: leader 2"}  # fmt: skip


def test_a_partition_moves(three: Directories) -> None:
    assert "t:0: replicas 2,1, leader 2" in ok("reassign", "t:0", "2,1", *stores(three)).stdout
    with three.open() as store:
        assert store.describe_partition("t", 0).replicas == (2, 1)
        assert retrying(lambda: store.partition("t", 0).append(b"y")) == 1
    assert not list(three.paths[0].glob("t-0"))


def test_a_plain_store_becomes_replicated_and_plain_again(tmp_path: Path) -> None:
    three = Directories(tmp_path, 2)
    with segstore.open(three.paths[0]) as plain:
        plain.create_topic("t", partitions=2)
        plain.partition("t", 0).append(b"x")
    told = ok("replicate", "1,0", *stores(three)).stdout
    assert told.startswith(
        f"2 partitions of 1 topic: {three.paths[0]} is a directory of a replicated store now"
    )
    assert "segstore.open_replicated; `segstore unreplicate` undoes it" in told
    with three.open() as store:
        assert store.describe_partition("t", 0).replicas == (1, 0)
        assert store.partition("t", 0).append(b"y") == 1
    assert ok("unreplicate", "1", *stores(three)).stdout.strip() == str(three.paths[1])
    with segstore.open(three.paths[1]) as plain:
        assert plain.partition("t", 0).end_offset == 2


@pytest.mark.parametrize("target", ["0,2", "1,1", "99999999999999999999", "0,a"])
def test_a_plain_store_stays_plain_where_the_replicas_can_t_be(tmp_path: Path, target: str) -> None:
    """It became a replicated one before the ids were looked at."""
    three = Directories(tmp_path, 2)
    with segstore.open(three.paths[0]) as plain:
        plain.create_topic("t")
    before = tree(tmp_path)
    result = run("replicate", target, *stores(three))
    assert result.exit_code == (2 if "a" in target else 1)
    assert target in result.output
    assert tree(tmp_path) == before


def test_a_directory_alone_does_not_become_replicated(tmp_path: Path) -> None:
    """It was converted silently, and an open of before refused it then."""
    with segstore.open(tmp_path / "one") as plain:
        plain.create_topic("t")
    before = tree(tmp_path)
    result = run("replicate", "--store", tmp_path / "one")
    assert result.exit_code == 2
    assert f"give the new directories too, as --store {tmp_path / 'one'} --store" in result.stderr
    assert tree(tmp_path) == before


def test_no_replicated_store_is_made_of_wrong_paths(tmp_path: Path) -> None:
    three = Directories(tmp_path, 2)
    three.paths[1].mkdir()
    result = run("replicate", "0,1", *stores(three))
    assert result.exit_code == 1
    assert "no such store" in result.output
    assert (three.paths[0].exists(), [*three.paths[1].iterdir()]) == (False, [])


REFUSED: dict[str, tuple[list[str], int, str]] = {
    "replicas of an unknown topic": (["replicas", "nix"], 1, "there is no topic 'nix'"),
    "an unclean election without --yes": (["elect", "unclean"], 2, "--yes"),
    "another election": (["elect", "best"], 2, "best"),
    "elect an unknown topic": (["elect", "preferred", "nix"], 1, "nix"),
    "elect an unknown partition": (["elect", "preferred", "t:9"], 1, "9"),
    "elect no partition": (["elect", "preferred", "t:x"], 2, "TOPIC:PARTITION"),
    "move to nowhere": (["reassign", "t:0"], 2, "REPLICAS"),
    "move and cancel": (["reassign", "t:0", "1", "--cancel"], 2, "Give either"),
    "move to no numbers": (["reassign", "t:0", "a,b"], 2, "ids of directories"),
    "move to an unknown one": (["reassign", "t:0", "7"], 1, "7"),
    "a directory that lacks partitions": (["unreplicate", "0"], 1, "u-0 has replicas in [2]"),
    "a directory that is not there": (["unreplicate", "3"], 1, "directory=3"),
    "cancel nothing": (["reassign", "t:0", "--cancel"], 1, "not being reassigned"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(three: Directories, name: str) -> None:
    arguments, status, told = REFUSED[name]
    result = run(*arguments, *stores(three))
    assert result.exit_code == status, result.output
    assert told in result.output


@pytest.mark.parametrize("command", ["replicas", "elect preferred", "reassign t:0 0", "heal"])
def test_what_is_no_replicated_store(tmp_path: Path, command: str) -> None:
    """No command makes a store of a wrong path."""
    with segstore.open(tmp_path / "plain") as store:
        store.create_topic("t")
    for name in ("plain", "missing"):
        result = run(*command.split(), "--store", tmp_path / name)
        assert result.exit_code == 1
        is_missing = (name, command) == ("missing", "replicas")
        told = "no such directory" if is_missing else "no directory of a replicated store"
        assert told in result.output
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("command", ["elect preferred", "reassign t:0 0", "heal", "unreplicate 0"])
def test_not_all_directories_are_named(three: Directories, command: str) -> None:
    """One by itself would be a majority of those that are named."""
    result = run(*command.split(), "--store", three.paths[0])
    assert (result.exit_code, "the store has 3 directories" in result.output) == (1, True)


def test_a_damaged_replica_is_healed(three: Directories) -> None:
    flip(three.paths[1] / "t-0" / "00000000000000000000.log", 65)
    assert "checked" in run("check", three.paths[1]).stderr
    result = run("check", three.paths[1], "--repair")
    assert (result.exit_code, "segstore heal" in result.stderr) == (1, True)
    (row,) = json_lines(ok("heal", "t", *stores(three), "--json"))
    assert (row["topic"], row["partition"], row["replica"], row["offset"], row["end_offset"]) == (
        "t",
        0,
        1,
        0,
        1,
    )
    assert "all replicas are sound" in ok("heal", *stores(three)).stderr
    flip(three.paths[0] / "t-1" / "00000000000000000000.log", 65)
    assert "t:1: replica 0" in ok("heal", *stores(three)).stdout


def test_what_nobody_has_whole_is_told(three: Directories) -> None:
    for number in (0, 1):
        flip(three.paths[number] / "t-0" / "00000000000000000000.log", 65)
    flip(three.paths[0] / "t-1" / "00000000000000000000.log", 65)
    result = run("heal", *stores(three))
    assert result.exit_code == 1
    assert "t-0, damaged from offset 0 on in replica 0, 0 on in replica 1" in result.stderr
    assert "t:1: replica 0" in result.stdout
    for number in (0, 1):
        flip(three.paths[number] / "t-0" / "00000000000000000000.log", 65)


def test_heal_makes_no_store(tmp_path: Path) -> None:
    result = run("heal", "--store", tmp_path / "missing")
    assert (result.exit_code, (tmp_path / "missing").exists()) == (1, False)


def test_an_import_goes_into_all_partitions(three: Directories, tmp_path: Path) -> None:
    file = tmp_path / "rows.ndjson"
    ok("export", "t", file, "--store", three.paths[0])
    for _ in range(2):
        ok("import", "t", file, *stores(three))
    failed = run("import", "t", file, "--store", three.paths[0])
    assert failed.exit_code == 1
    assert "is a directory of a replicated store" in failed.stderr
    with three.open() as store:
        logs = [store.partition("t", number) for number in range(2)]
        found = [[r.value for r in log.read(0, isolation_level="read_committed")] for log in logs]
        assert found == [[b"x"] * 3] * 2
        await_in_sync(store)


# --- beside a server -----------------------------------------------------------------------------


def test_a_server_of_a_replicated_store_is_found_from_each_directory(three: Directories) -> None:
    with three.open() as store:
        with segstore.serve(store, port=0) as server:
            for number, path in enumerate(three.paths):
                until(lambda path=path: server.bootstrap_servers.encode() in (path / ".lock").read_bytes())
                done = ok("create", f"made-{number}", "-s", path)
                assert f"asking its server at {server.bootstrap_servers}" in done.stderr
            assert {f"made-{number}" for number in range(3)} < set(store.topics())
        for path in three.paths:
            until(lambda path=path: (path / ".lock").read_bytes() == b"%d" % os.getpid())


def test_a_directory_that_takes_the_place_of_another_tells_the_server(
    three: Directories, tmp_path: Path
) -> None:
    with three.open() as store, segstore.serve(store, port=0) as server:
        three.remove(1)
        until(lambda: 1 in store.describe_partition("t", 0).offline)
        store.replace_directory(1, tmp_path / "new")
        address = server.bootstrap_servers.encode()
        until(lambda: address in (tmp_path / "new" / ".lock").read_bytes())
        three.paths[1] = tmp_path / "new"
        three.gone.discard(1)
        await_in_sync(store)
