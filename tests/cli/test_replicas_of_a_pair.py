"""`segstore replicas` of a primary and of its standby, beside the processes that have them, and later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli import json_lines, ok, run
from stores import tree
from waiting import PATIENCE, until

import segstore
from segstore.files import Files
from segstore.storage.meta.lag_note import LAG_NOTE
from segstore.storage.meta.role import STANDBY
from segstore.storage.store.writer import StoreWriter
from segstore.testing import Broker

QUICK = {"metadata.max.age.ms": 50, "fetch.max.wait.ms": 50, "retry.backoff.ms": 5, "reconnect.backoff.ms": 5}
LIMIT = PATIENCE * 1000


@pytest.fixture
def directory(store_dir: Path) -> Path:
    return store_dir


def rows(path: Path, *more: str) -> dict[tuple[str, int], dict[str, Any]]:
    return {
        (row["topic"], row["partition"]): row
        for row in json_lines(ok("replicas", *more, "-s", path, "--json"))
    }


def lags(path: Path) -> set[tuple[int, int, int, str]]:
    return {(row["lag"], row["lag_bytes"], row["lag_ms"], row["trouble"]) for row in rows(path).values()}


def test_a_pair_that_is_in_use(tmp_path: Path, directory: Path) -> None:
    old = tmp_path / "p"
    with Broker(old, topics={"flights": 2}) as broker:
        for number in range(2):
            broker.store.partition("flights", number).append_batch([b"x"] * (100 + number))
        with segstore.follow(broker.bootstrap_servers, directory, config=QUICK) as standby:
            assert standby.wait_caught_up(LIMIT)
            for path in (old, directory):
                until(lambda path=path: lags(path) == {(0, 0, 0, "")})
                found = rows(path)
                assert [row["log_end_offset"] for row in found.values()] == [100, 101]
                assert {row["role"] for row in found.values()} == {"primary" if path == old else "standby"}
                shown = ok("replicas", "flights", "-s", path).stdout
                assert max(map(len, shown.splitlines()[-4:])) <= 80, shown
            assert f"is the standby of {broker.bootstrap_servers}, in async mode." in shown
            assert "As noted" in shown
            shown = ok("replicas", "-s", old).stdout
            assert f"is the primary of standby {standby._control.role.directory_id}, in async mode." in shown
            before = tree(old / "flights-0")
            ok("replicas", "--under-replicated", "-s", old)
            assert tree(old / "flights-0") == before


def test_a_standby_that_has_fallen_behind(tmp_path: Path, directory: Path) -> None:
    """The lags are those of the metrics, and a lag that lasts is told."""
    old = tmp_path / "p"
    with Broker(old, topics=["a"], replica_lag_time_max_ms=1) as broker:
        log = broker.store.partition("a")
        log.append(b"1")
        with segstore.follow(broker.bootstrap_servers, directory, config=QUICK) as standby:
            assert standby.wait_caught_up(LIMIT)
        log.append_batch([b"x"] * 7)
        until(lambda: rows(old)["a", 0]["lag"] == 7)
        row = rows(old)["a", 0]
        metrics = broker.store.metrics()["a-0"]
        assert row["lag_bytes"] == metrics["ReplicaLagBytes"][2] == log.size - len(log.stored(0, 1))
        assert 0 < row["lag_ms"] <= metrics["ReplicaLagMs"][2]
        assert row["trouble"] == "under-replicated"
        assert "under-replicated" in ok("replicas", "-u", "-s", old).stdout
        until(lambda: "It waits: the standby has not fetched for" in ok("replicas", "-s", old).stdout)
    shown = ok("replicas", "-s", old).stdout
    assert "No process has it open: this is what was noted last" in shown
    assert "under-replicated" in shown


def test_what_is_not_known_is_said(tmp_path: Path, directory: Path) -> None:
    with segstore.open(directory) as store:
        store.create_topic("t")
        assert isinstance(store.engine, StoreWriter)
        store.engine.primary.register("A" * 22, sync=True)
    (directory / ".segstore/lags").unlink(missing_ok=True)
    result = ok("replicas", "-s", directory)
    assert "in sync mode" in result.stdout
    assert (
        "No process has it open: how far the standby lies behind is not known from outside." in result.stdout
    )
    assert "unknown" in result.stdout
    row = rows(directory)["t", 0]
    assert (row["lag"], row["lag_ms"], row["mode"], row["trouble"]) == (None, None, "sync", "unknown")
    with segstore.open(directory):
        until(lambda: "the standby has not fetched since" in ok("replicas", "-s", directory).stdout)
    result = run("replicas", "nix", "-s", directory)
    assert (result.exit_code, "there is no topic 'nix'" in result.output) == (1, True)


def test_of_a_promoted_and_of_a_fenced_directory(tmp_path: Path, directory: Path) -> None:
    old = tmp_path / "p"
    with Broker(old, topics=["a"]) as broker:
        standby = segstore.follow(broker.bootstrap_servers, directory, config=QUICK)
        assert standby.wait_caught_up(LIMIT)
        standby.promote("reachable", timeout_ms=LIMIT).close()
        assert "leads from leader epoch 1 on" in ok("replicas", "-s", old).stdout
    shown = ok("replicas", "-s", directory).stdout
    assert "has no standby now." in shown
    assert "It was promoted, and leads from leader epoch 1 on; the old primary at" in shown
    assert "knows that." in shown


def test_an_old_primary_that_returns_notes_as_a_standby_only(tmp_path: Path, directory: Path) -> None:
    """What it was registered for as a primary does not count."""
    old = tmp_path / "p"
    with Broker(old, topics=["a"]) as broker:
        standby = segstore.follow(broker.bootstrap_servers, directory, config=QUICK)
        assert standby.wait_caught_up(LIMIT)
        promoted = standby.promote("reachable", timeout_ms=LIMIT)
    (old / ".segstore/lags").unlink(missing_ok=True)
    with (
        promoted as store,
        segstore.serve(store, port=0) as server,
        segstore.follow(server.bootstrap_servers, old, config=QUICK),
    ):
        seen = {}
        while len(seen) < 4:  # more than once a second nothing is noted
            store.partition("a").append(b"x")
            note = LAG_NOTE.read(Files(), str(old))
            if note is not None:
                seen[note.at_ms] = note.side
    assert set(seen.values()) == {STANDBY}


def test_a_note_of_another_standby_is_not_believed(directory: Path) -> None:
    """Damage is told; what another side has noted is not taken for this one's."""
    with segstore.open(directory) as store:
        store.create_topic("t")
        assert isinstance(store.engine, StoreWriter)
        store.engine.primary.register("A" * 22, sync=False)
        until((directory / ".segstore/lags").exists)
        store.engine.primary.unregister()
        store.engine.primary.register("B" * 22, sync=False)
        store.engine.primary._keeper = None  # it notes nothing more
    held = LAG_NOTE.read(Files(), str(directory))
    assert held is not None
    LAG_NOTE.write(Files(), str(directory), type(held)(**{**vars(held), "directory_id": "A" * 22}))
    assert "is not known" in ok("replicas", "-s", directory).stdout
    (directory / ".segstore/lags").write_bytes(b"00000000 {}\n")
    result = run("replicas", "-s", directory)
    assert (result.exit_code, "note of lags" in result.output) == (1, True)
