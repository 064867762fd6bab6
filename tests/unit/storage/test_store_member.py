"""Promise: a store says what this process is to it, and which process writes it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import segstore

OTHER = """
import sys, segstore
with segstore.open(sys.argv[1], "r") as store:
    print(store.role, store.host_pid, store.members())
"""


@pytest.mark.kind("programs")
def test_a_writer_and_its_readers(store: segstore.Store) -> None:
    assert (store.role, store.host_pid, store.members()) == ("writer", os.getpid(), [])
    done = subprocess.run(
        [sys.executable, "-c", OTHER, store.path], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["reader", str(os.getpid()), "[]"]


def test_a_reader_of_a_store_that_nobody_writes(store_dir: Path) -> None:
    segstore.open(store_dir).close()
    with segstore.open(store_dir, "r") as store:
        assert (store.role, store.host_pid, store.members()) == ("reader", 0, [])


def test_a_replicated_store_has_one_writer(tmp_path: Path) -> None:
    with segstore.open_replicated([tmp_path / "a", tmp_path / "b", tmp_path / "c"]) as store:
        assert (store.role, store.host_pid, store.members()) == ("writer", os.getpid(), [])


def test_a_closed_store_is_not_asked(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        pass
    assert store.role == "writer"
    with pytest.raises(segstore.StoreClosedError):
        store.members()
    with pytest.raises(segstore.StoreClosedError):
        _ = store.host_pid
