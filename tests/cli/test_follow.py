"""`segstore follow` and `segstore promote` as a user calls them."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from cli import ok, run, start_program

import segstore
from segstore.files import Files
from segstore.standby.promotion import ask_to_let_go
from segstore.storage.meta.role import ROLE
from segstore.testing import Broker


@pytest.fixture
def excess(tmp_path: Path, store_dir: Path) -> Path:
    """The directory of an old primary that has a record more than the new one in `store_dir`."""
    old = tmp_path / "old"
    with Broker(old, topics=["t"]) as broker:
        broker.store.partition("t").append(b"both")
        ok("follow", broker.bootstrap_servers, store_dir, "--once")
        broker.store.partition("t").append(b"only here", key=b"k")
    ok("promote", store_dir, "--old", "dead", "--yes")
    return old


@pytest.mark.kind("programs")
def test_records_that_were_cut_are_told_while_it_follows(excess: Path, store_dir: Path) -> None:
    with Broker(store_dir) as broker:
        process = start_program("follow", broker.bootstrap_servers, excess, stderr=subprocess.DEVNULL)
        try:
            assert process.stdout is not None
            told = [process.stdout.readline().decode() for _ in range(2)]
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.communicate()
    assert "cut: t-0 offset 1 leader epoch 0 key b'k' value b'only here'" in told[1]


@pytest.mark.kind("programs")
def test_it_ends_where_another_process_asks_for_the_directory(store_dir: Path) -> None:
    """Also where it waits for a primary that has gone, to be there once."""
    with Broker(topics=["t"]) as broker:
        source = broker.bootstrap_servers
        ok("follow", source, store_dir, "--once")
    process = start_program("follow", source, store_dir, "--once")
    try:
        assert process.stdout is not None
        assert b"follows" in process.stdout.readline()
        ask_to_let_go(Files(), str(store_dir))
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, b"another process has asked for it" in out) == (0, True)
    finally:
        process.kill()
        process.communicate()


def test_the_mode_is_that_of_before(store_dir: Path) -> None:
    with Broker(topics=["t"]) as broker:
        ok("follow", broker.bootstrap_servers, store_dir, "--once", "--mode", "sync")
        assert "(sync)" in ok("follow", broker.bootstrap_servers, store_dir, "--once").output
    held = ROLE.read(Files(), str(store_dir))
    assert held is not None
    assert held.mode == "sync"


def test_a_promotion_that_nobody_can_confirm_changes_nothing(store_dir: Path) -> None:
    with Broker(topics=["t"]) as broker:
        ok("follow", broker.bootstrap_servers, store_dir, "--once")
    refused = run("promote", store_dir, "--old", "dead")
    assert (refused.exit_code, "give --yes" in refused.stderr) == (2, True)
    assert ROLE.read(Files(), str(store_dir)) is not None
    ok("promote", store_dir, "--old", "dead", "--yes")
    with segstore.open(store_dir) as store:
        assert store.partition("t").append(b"1") == 0


@pytest.mark.parametrize(
    "command", [("follow", "localhost:1"), ("promote", "--old", "reachable"), ("demote",)]
)
def test_settings_of_the_client_come_from_a_file_of_kafka_s_tools(
    tmp_path: Path, store_dir: Path, command: tuple[str, ...]
) -> None:
    with Broker(topics=["t"]) as broker:
        ok("follow", broker.bootstrap_servers, store_dir, "--once")
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_PLAINTEXT\n")
    where = ("--standby", "--bootstrap", "localhost:1") if command == ("demote",) else (store_dir,)
    refused = run(*command, *where, "--command-config", file)
    assert (refused.exit_code, "sasl.username" in refused.stderr) == (1, True)


def test_a_directory_that_has_other_files(tmp_path: Path, store_dir: Path) -> None:
    (tmp_path / "file").touch()
    with Broker(topics=["t"]) as broker:
        refused = run("follow", broker.bootstrap_servers, tmp_path)
    assert (refused.exit_code, "is not empty" in refused.stderr) == (1, True)
