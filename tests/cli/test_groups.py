"""`segstore groups`: tables and JSON, resets, deletions, wrong usage, beside a live writer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli import COMMAND, json_lines, ok, run, start_program
from group_records import at, member, offsets_of, opened, record, tp
from share_groups import SharingMember
from waiting import PATIENCE

import segstore
from segstore import AdminClient
from segstore.cli.groups import KINDS
from segstore.coordinator.consumer_protocol import encode_assignment, encode_subscription
from segstore.coordinator.group.assignors import MemberSubscription

TOLD = encode_subscription(MemberSubscription(("t",)))


@pytest.fixture
def writer(store_dir: Path) -> Iterator[segstore.Store]:
    """Topic "t" with 10 records in 0 and none elsewhere; groups "app" with a member, and "audit"."""
    with opened(store_dir) as store:
        store.partition("t", 0).append_batch([b"x"] * 10)
        offsets_of(store).commit("app", {tp(0): at(4, "note"), tp(1): at(0)})
        offsets_of(store).commit("audit", {tp(0): at(10)})
        assigned = encode_assignment([tp(0), tp(1), tp(3)])
        offsets_of(store).write_group(record("app", member("m-1", TOLD, assigned), since=5))
        yield store


@pytest.fixture
def path(store_dir: Path, writer: segstore.Store) -> Path:
    """The same store, closed."""
    writer.close()
    return store_dir


def cells(text: str) -> list[list[str]]:
    """The rows of a table."""
    return [line.split() for line in text.splitlines() if line.strip() and "─" not in line]


# --- looking -----------------------------------------------------------------------------------------


def test_list_beside_a_live_writer(store_dir: Path, writer: segstore.Store) -> None:
    assert cells(ok("groups", "list", "-s", store_dir).stdout) == [
        ["group", "type", "state", "protocol", "members", "partitions", "lag", "unread"],
        ["app", "classic", "Stable", "range", "1", "3", "6", "6"],
        ["audit", "classic", "Empty", "0", "1", "0", "0"],
    ]
    rows = json_lines(ok("groups", "list", "-s", store_dir, "--json"))
    assert [(row["group"], row["state"], row["lag"]) for row in rows] == [
        ("app", "Stable", 6),
        ("audit", "Empty", 0),
    ]


@pytest.mark.parametrize("given", [["groups", "-s"], ["-s"]], ids=["behind", "before"])
def test_list_is_the_command_of_groups_that_is_not_named(path: Path, given: list[str]) -> None:
    named = ok("groups", "list", "-s", path)
    assert ok(*given, path, *(["groups"] if given == ["-s"] else [])).stdout == named.stdout
    assert ok("groups", "--json", "-s", path).stdout == ok("groups", "list", "--json", "-s", path).stdout


def test_describe_a_group(store_dir: Path, writer: segstore.Store) -> None:
    shown = ok("groups", "describe", "app", "-s", store_dir).stdout
    assert "app  Stable, 1 member, range, generation 3, lag 6" in shown
    assert cells(shown)[2:] == [
        ["t", "0", "4", "0", "10", "6", "6", "m-1"],
        ["1", "0", "0", "0", "0", "0", "m-1"],
        ["3", "-", "0", "0", "-", "-", "m-1"],
    ]
    members = ok("groups", "describe", "app", "--members", "-s", store_dir).stdout
    assert cells(members)[2:] == [["m-1", "app", "3", "t:0,1,3"]]


def test_describe_all_as_json(store_dir: Path, writer: segstore.Store) -> None:
    app, audit = json_lines(ok("groups", "describe", "-s", store_dir, "--json"))
    assert app["members"] == [
        {
            "member_id": "m-1",
            "group_instance_id": None,
            "client_id": "app",
            "assignment": [["t", 0], ["t", 1], ["t", 3]],
        }
    ]
    assert app["partitions"][0] == {
        "topic": "t",
        "partition": 0,
        "committed": 4,
        "leader_epoch": -1,
        "metadata": "note",
        "pending": False,
        "start_offset": 0,
        "end_offset": 10,
        "lag": 6,
        "unread": 6,
        "member_id": "m-1",
    }
    assert (audit["group"], audit["generation"], audit["members"]) == ("audit", -1, [])


def test_a_lag_behind_retention_says_how_much_is_left(store_dir: Path, writer: segstore.Store) -> None:
    writer.partition("t").delete_records(8)
    shown = ok("groups", "describe", "app", "-s", store_dir).stdout
    assert "generation 3, lag 6, 2 unread" in shown
    assert ["t", "0", "4", "8", "10", "6", "2", "m-1"] in cells(shown)
    row = json_lines(ok("groups", "describe", "app", "-s", store_dir, "--json"))[0]
    assert (row["lag"], row["unread"]) == (6, 2)
    assert (row["partitions"][0]["lag"], row["partitions"][0]["unread"]) == (6, 2)


def test_an_open_transaction_is_marked(store_dir: Path, writer: segstore.Store) -> None:
    offsets_of(writer).commit_transactional("audit", {tp(0): at(2)}, 3, 0)
    shown = ok("groups", "describe", "audit", "-s", store_dir).stdout
    assert ["t", "0", "10*", "0", "10", "0", "0"] in cells(shown)
    assert "* an open transaction is about to commit" in shown


def test_without_a_writer_nobody_is_a_member(path: Path) -> None:
    rows = json_lines(ok("groups", "list", "-s", path, "--json"))
    assert [row["state"] for row in rows] == ["Empty", "Empty"]


def test_no_groups(store_dir: Path) -> None:
    opened(store_dir).close()
    for command in (["list"], ["describe"], ["list", "--json"]):
        result = ok("groups", *command, "-s", store_dir)
        assert result.stdout == ""
    assert f"no groups in {store_dir}" in ok("groups", "list", "-s", store_dir).stderr


def test_a_topic_that_can_not_be_read_is_told_beside_the_others(
    store_dir: Path, writer: segstore.Store
) -> None:
    """Settings that are damaged hide no partition any more; a link in the place of a directory does."""
    offsets_of(writer).commit("audit", {tp(0, "u"): at(0)})
    writer.close()
    away = (store_dir / "u-0").rename(store_dir.parent / "away")
    (store_dir / "u-0").symlink_to(away)
    result = ok("groups", "describe", "audit", "-s", store_dir)
    assert [row for row in cells(result.stdout) if row[0] == "u"] == [["u", "0", "0", "?", "?"]]
    assert "audit: " in result.stderr
    (store_dir / "u-0").unlink()
    away.rename(store_dir / "u-0")


# --- resets --------------------------------------------------------------------------------------------

RESETS = {
    "--to-earliest": (["--to-earliest", "-t", "t:0"], {0: (4, 0)}),
    "--to-latest": (["--to-latest", "--all-topics"], {0: (4, 10), 1: (0, 0)}),
    "--to-current": (["--to-current", "-t", "t"], {0: (4, 4), 1: (0, 0), 2: (None, 0), 3: (None, 0)}),
    "--to-offset": (["--to-offset", 7, "-t", "t:0"], {0: (4, 7)}),
    "--shift-by": (["--shift-by", -3, "-t", "t:0,1"], {0: (4, 1), 1: (0, 0)}),
    "--to-datetime": (["--to-datetime", "2033-01-01", "-t", "t:0"], {0: (4, 10)}),
    "--by-duration": (["--by-duration", "P9999DT1H2M3.5S", "-t", "t:0", "-t", "t:1"], {0: (4, 0), 1: (0, 0)}),
}


@pytest.mark.parametrize("name", RESETS)
def test_reset(path: Path, name: str) -> None:
    arguments, expected = RESETS[name]
    command = ["groups", "reset", "app", *arguments, "-s", path, "--json"]
    for more in ([], ["--dry-run"]):
        result = ok(*command, *more)
        assert "nothing was changed" in result.stderr
    assert committed(path) == {0: 4, 1: 0}
    rows = json_lines(ok(*command, "--execute"))
    assert {row["partition"]: (row["old_offset"], row["new_offset"]) for row in rows} == expected
    assert committed(path) == {0: 4, 1: 0} | {partition: new for partition, (_, new) in expected.items()}


def committed(path: Path) -> dict[int, int]:
    with opened(path) as store:
        return {tp.partition: held.offset for tp, held in offsets_of(store).fetch("app").items()}


def test_reset_shows_a_table(path: Path) -> None:
    result = ok("groups", "reset", "app", "--to-latest", "-t", "t:0,2", "-s", path)
    assert cells(result.stdout)[1:] == [
        ["topic", "partition", "old", "offset", "new", "offset", "change"],
        ["t", "0", "4", "10", "+6"],
        ["t", "2", "-", "0"],
    ]


USAGE = {
    "no command": [],
    "no such command": ["show"],
    "no group": ["reset", "--to-latest", "--all-topics"],
    "nowhere": ["reset", "app", "--all-topics"],
    "two places": ["reset", "app", "--to-latest", "--to-offset", "3", "--all-topics"],
    "of nothing": ["reset", "app", "--to-latest"],
    "of all and some": ["reset", "app", "--to-latest", "--all-topics", "-t", "t"],
    "both": ["reset", "app", "--to-latest", "--all-topics", "--execute", "--dry-run"],
    "a negative offset": ["reset", "app", "--to-offset", "-1", "--all-topics"],
    "no number": ["reset", "app", "--shift-by", "x", "--all-topics"],
    "no time": ["reset", "app", "--to-datetime", "soon", "--all-topics"],
    "no duration": ["reset", "app", "--by-duration", "1h", "--all-topics"],
    "an empty duration": ["reset", "app", "--by-duration", "PT", "--all-topics"],
    "no partitions": ["reset", "app", "--to-latest", "-t", "t:"],
    "a partition that is no number": ["reset", "app", "--to-latest", "-t", "t:x"],
    "nobody to delete": ["delete"],
    "nobody to ask": ["delete", "app"],
}


@pytest.mark.parametrize("name", USAGE)
def test_wrong_usage_is_status_2_and_changes_nothing(path: Path, name: str) -> None:
    result = run("groups", *USAGE[name], *(["-s", path] if USAGE[name] else []))
    assert (result.exit_code, result.stdout) == (2, "")
    assert committed(path) == {0: 4, 1: 0}


FAILS = {
    "no such group": (["describe", "x"], "no group 'x'; there are 'app', 'audit'"),
    "a reset of all that none has": (["reset", "x", "--to-latest", "--all-topics"], "no group 'x'"),
    "no such topic": (["reset", "app", "--to-latest", "-t", "x"], "no topic 'x'"),
    "no such partition": (["reset", "app", "--to-latest", "-t", "t:9"], "9"),
    "nothing to shift": (["reset", "app", "--shift-by", "1", "-t", "t:2"], "t-2: shift_by counts from"),
    "one that is not there": (["delete", "app", "x", "--yes"], "no group 'x'"),
}


@pytest.mark.parametrize("name", FAILS)
def test_errors_are_one_line_and_status_1(path: Path, name: str) -> None:
    arguments, message = FAILS[name]
    result = run("groups", *arguments, "-s", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("segstore: ")
    assert len(result.stderr.splitlines()) == 1
    assert message in result.stderr
    assert committed(path) == {0: 4, 1: 0}


def test_no_store(tmp_path: Path) -> None:
    for command in (
        ["list"],
        ["describe"],
        ["reset", "g", "--to-latest", "--all-topics"],
        ["delete", "g", "-y"],
    ):
        result = run("groups", *command, "-s", tmp_path / "none")
        assert result.exit_code == 1
        assert "no such store" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.kind("programs")
def test_a_live_writer_is_named(store_dir: Path, writer: segstore.Store) -> None:
    for command in (["reset", "app", "--to-latest", "--all-topics", "--execute"], ["delete", "app", "-y"]):
        with start_program("groups", *command, "-s", store_dir) as child:
            _, error = child.communicate(timeout=PATIENCE)
        assert child.returncode == 1, COMMAND
        assert b"is open for writing in process" in error
    assert offsets_of(writer).fetch("app") == {tp(0): at(4, "note"), tp(1): at(0)}


# --- deletions -----------------------------------------------------------------------------------------


def test_delete_groups(path: Path) -> None:
    result = ok("groups", "delete", "app", "audit", "--yes", "-s", path)
    assert result.stderr.splitlines() == ["deleted app", "deleted audit"]
    assert ok("groups", "list", "-s", path, "--json").stdout == ""


def test_delete_what_was_committed_for_a_topic(path: Path) -> None:
    result = ok("groups", "delete", "app", "-t", "t:1,3", "--yes", "-s", path)
    assert result.stderr == "forgot 1 offset of app\n"
    assert committed(path) == {0: 4}


# --- share groups ------------------------------------------------------------------------------------


@pytest.fixture
def shared_path(store_dir: Path) -> Path:
    """A store with a share group "q" of a topic "t", whose start offset is 4 in partition 1."""
    config = {"offsets.topic.num.partitions": 1, "share.coordinator.state.topic.num.partitions": 1}
    with segstore.open(store_dir, config=config) as store:
        store.create_topic("t", 2)
        store.partition("t", 1).append_batch([b"x"] * 10)
        SharingMember(store, "m-1", group="q").join().leave()
        AdminClient(store).alter_share_group_offsets("q", {tp(1): 4})
    return store_dir


def test_share_groups_are_listed_and_described(shared_path: Path) -> None:
    assert cells(ok("groups", "list", "-s", shared_path).stdout)[1:] == [
        ["q", "share", "Empty", "simple", "0", "2", "6", "6"]
    ]
    shown = ok("groups", "describe", "q", "-s", shared_path).stdout
    assert "q  share group, Empty, 0 members, simple, epoch 4, lag 6" in shown
    assert "share start" in shown
    assert cells(shown)[2:] == [["t", "0", "-", "0", "0", "-", "-"], ["1", "4", "0", "10", "6", "6"]]
    (row,) = json_lines(ok("groups", "describe", "q", "-s", shared_path, "--json"))
    assert (row["type"], row["generation"], [each["lag"] for each in row["partitions"]]) == (
        "share",
        4,
        [None, 6],
    )


def test_a_share_group_is_reset_and_deleted(shared_path: Path) -> None:
    ok("groups", "reset", "q", "--to-earliest", "-t", "t:1", "--execute", "-s", shared_path)
    (row,) = json_lines(ok("groups", "describe", "q", "-s", shared_path, "--json"))
    assert [each["committed"] for each in row["partitions"]] == [None, 0]
    assert (
        "forgot 2 offsets of q" in ok("groups", "delete", "q", "-t", "t", "--yes", "-s", shared_path).stderr
    )
    assert "deleted q" in ok("groups", "delete", "q", "--yes", "-s", shared_path).stderr
    assert "no groups" in ok("groups", "list", "-s", shared_path).stderr


@pytest.mark.parametrize("command", ["list", "describe", "reset", "delete"])
def test_help(command: str) -> None:
    shown = ok("groups", command, "--help").stdout
    assert f" groups {command} [OPTIONS]" in shown
    assert "SEGSTORE_PATH" in shown


# --- settings, types -----------------------------------------------------------------------------------


RESET, LIMIT = "share.auto.offset.reset", "share.delivery.count.limit"


def test_alter_a_group_that_is_not_there_yet(path: Path) -> None:
    done = ok("groups", "alter", "workers", "-c", f"{RESET}=earliest", "-c", f"{LIMIT}=7", "-s", path)
    assert done.stderr == f"altered workers: {RESET}=earliest, {LIMIT}=7\n"
    done = ok("groups", "alter", "workers", "-d", LIMIT, "-s", path)
    assert done.stderr == f"altered workers: {RESET}=earliest\n"
    with segstore.open(path) as store, segstore.ShareConsumer(store, "t", group_id="workers") as queue:
        assert [each.offset for each in queue.poll_flat(timeout_ms=PATIENCE * 1000)] == [*range(10)]
    done = ok("groups", "alter", "workers", "-d", RESET, "-s", path)
    assert done.stderr == "altered workers: it has no settings of its own\n"


def test_alter_a_group_of_a_cluster(path: Path) -> None:
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    with segstore.open(path) as store, segstore.serve(store, port=0) as server:
        at = ["--bootstrap", server.bootstrap_servers]
        done = ok("groups", "alter", "workers", "-c", f"{RESET}=earliest", *at)
        assert done.stderr == f"altered workers: {RESET}=earliest\n"
        done = ok("groups", "alter", "workers", "-d", RESET, *at)
        assert done.stderr == "altered workers: it has no settings of its own\n"


REFUSED = {
    "nothing to change": ([], "Nothing to change: give --config or --delete-config."),
    "set and deleted": (["-c", f"{RESET}=latest", "-d", RESET], f"{RESET} is both set and deleted."),
    "an unknown setting": (["-c", "share.x=1"], "share.x"),
    "a value that is not allowed": (["-c", f"{RESET}=first"], RESET),
}


@pytest.mark.parametrize(("given", "told"), REFUSED.values(), ids=REFUSED)
def test_alter_refuses(given: list[str], told: str, path: Path) -> None:
    done = run("groups", "alter", "workers", *given, "-s", path)
    assert done.exit_code != 0
    assert told in " ".join(done.stderr.split())
    with segstore.open(path) as store:
        assert AdminClient(store).describe_configs([segstore.ConfigResource("GROUP", "workers")]) is not None


def test_list_groups_of_a_type(path: Path) -> None:
    with segstore.open(path) as store, segstore.ShareConsumer(store, "t", group_id="workers") as queue:
        queue.poll(100)
    listed = {kind: json_lines(ok("groups", "list", "--type", kind, "--json", "-s", path)) for kind in KINDS}
    names = {kind: [row["group"] for row in rows] for kind, rows in listed.items()}
    assert names == {"classic": ["app", "audit"], "consumer": [], "share": ["workers"]}
