"""`segstore members`, and the other commands on a store that several processes share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli import json_lines, ok, run
from waiting import PATIENCE, until

import segstore
from segstore._native import ffi, lib
from segstore.cli.members import state_of

GUEST = """
import sys, segstore
with segstore.open(sys.argv[1], shared="guest", timeout=60) as store:
    store.partition("t").append(b"guest's")
    print("there", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_guest(path: str) -> Iterator[subprocess.Popen[str]]:
    """A process that is a guest until the block ends."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", GUEST, path], text=True, **pipes) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "there\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def host(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, shared=True) as store:
        store.create_topic("t")
        store.partition("t").append(b"host's")
        yield store


# --- members --------------------------------------------------------------------------------------


def test_a_store_that_is_not_shared(store_dir: Path) -> None:
    segstore.open(store_dir).close()
    closed = ok("members", "--store", store_dir)
    assert (closed.stdout, closed.stderr) == (
        "",
        f"{store_dir} is not shared; no process has it open for writing\n",
    )
    with segstore.open(store_dir):
        told = f"is not shared; process {os.getpid()} has it open for writing\n"
        assert ok("members", "--store", store_dir).stderr.endswith(told)
        assert ok("members", "--store", store_dir, "--json").stdout == ""


def test_a_directory_without_a_store(tmp_path: Path) -> None:
    result = run("members", "--store", tmp_path)
    assert result.exit_code == 1
    assert "no store is in this directory" in result.stderr


@pytest.mark.kind("programs")
def test_members_with_their_roles_and_states(host: segstore.Store) -> None:
    with another_guest(host.path) as guest:
        rows = json_lines(ok("members", "--store", host.path, "--json"))
        known = [(each.slot, each.pid, each.role, each.version, each.since_ms) for each in host.members()]
        names = ("slot", "pid", "role", "version", "since_ms")
        assert [tuple(row[name] for name in names) for row in rows] == known
        assert [(row["pid"], row["role"], row["state"], row["locks"]) for row in rows] == [
            (os.getpid(), "host", "running", []),
            (guest.pid, "guest", "running", []),
        ]
        guest.send_signal(signal.SIGSTOP)
        until(lambda: state_of(guest.pid) == "stopped")
        lines = ok("members", "--store", host.path).stdout.splitlines()
        assert lines[0].split() == ["slot", "pid", "role", "version", "since", "state", "locks"]
        assert [line.split()[5:] for line in lines[1:]] == [["running"], ["stopped"]]
        guest.kill()
        guest.wait(PATIENCE)
        assert [row["role"] for row in json_lines(ok("members", "-s", host.path, "--json"))] == ["host"]


def test_who_holds_a_lock(host: segstore.Store) -> None:
    with segstore.open(host.path, shared="guest", timeout=PATIENCE) as store:
        store.partition("t").append(b"guest's")
        side: Any = store.engine
        key = next(iter(side._guests.values()))._key
        log, member, seen = side.shared.log(side.slot_of(key)), side._members.c, ffi.new("uint64_t *")
        for field in ("lock", "sync_lock"):
            at = ffi.addressof(log, field)
            assert lib.seg_lock_take(member, at, lib.SEG_OF_GUEST, 1, -1, seen) == 0
        rows = json_lines(ok("members", "--store", host.path, "--json"))
        for field in ("lock", "sync_lock"):
            assert lib.seg_lock_leave(member, ffi.addressof(log, field), lib.SEG_OF_GUEST) == 1
    assert [row["locks"] for row in rows] == [[], ["t-0 (append)", "t-0 (sync)"]]


@pytest.mark.kind("programs")
def test_states_of_processes() -> None:
    assert state_of(os.getpid()) == "running"
    assert state_of(2**30) == "unknown"
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert state_of(ended.pid) == "zombie"


# --- other commands -------------------------------------------------------------------------------


def test_produce_appends_beside_the_host(host: segstore.Store) -> None:
    result = ok("produce", "t", "--store", host.path, stdin="a\nb\n")
    assert f"is shared by process {os.getpid()}: appending beside it" in result.stderr
    assert [each.value for each in host.partition("t")] == [b"host's", b"a", b"b"]
    missing = run("produce", "missing", "--store", host.path, stdin="a\n")
    assert missing.exit_code == 1
    assert "missing" in missing.stderr


CHANGING = {
    "create": ["create", "new"],
    "alter": ["alter", "t", "--config", "retention.ms=1d"],
    "delete": ["delete", "t", "--yes"],
    "sweep": ["sweep"],
    "upgrade": ["upgrade"],
    "repair": ["check", "--repair"],
    "serve": ["serve", "--listen", "127.0.0.1:0"],
}


@pytest.mark.parametrize("name", CHANGING)
def test_commands_that_change_a_shared_store_say_what_to_do(name: str, host: segstore.Store) -> None:
    topics = host.topics()
    result = run(*CHANGING[name], "--store", host.path)
    assert result.exit_code == 1
    assert f"is shared by process {os.getpid()}" in result.stderr or "is open in this" in result.stderr
    assert "`segstore members` shows" in result.stderr
    assert host.topics() == topics
