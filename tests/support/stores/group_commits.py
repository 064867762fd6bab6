"""Logs whose appends are synced in groups, by a file system that is as slow as a test wants."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import HookedFiles
from paused_tails import let_tails_open

import segstore
from segstore.files import Files, Handle
from segstore.storage.log.flusher import Flusher

THREADS = 6
DURABLE = {"flush.messages": 1}


@pytest.fixture(params=["short", "long"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    let_tails_open(monkeypatch, request.param == "short")
    return str(request.param)


def opened(path: Path, files: Files, config: dict[str, Any]) -> segstore.PartitionLog:
    """Return a log whose first record, which makes the files, is synced, and whose tail is lent, if it is
    ever.
    """
    store = segstore.open(path, files=files)
    store.create_topic("t", 1, config)
    log = store.partition("t")
    for n in range(2):
        log.append(b"before %d" % n)
    log.flush()
    return log


def closed(log: segstore.PartitionLog) -> None:
    store = log.store
    assert isinstance(store, segstore.Store)
    store.close()


def flusher_of(log: segstore.PartitionLog) -> Flusher:
    return log.partition_for_write().flusher


class Slow(HookedFiles):
    """Files whose syncs wait for `go`, and note where the log ended before them: `synced` of each thread."""

    def __init__(self) -> None:
        self.go, self.begun = threading.Event(), threading.Event()
        self.go.set()
        self.under_way = self.most = self.syncs = 0
        self.synced = 0
        self.log: segstore.PartitionLog | None = None

    def sync(self, handle: Handle) -> None:
        end = 0 if self.log is None else self.log.end_offset
        self.under_way += 1
        self.syncs += 1
        self.most = max(self.most, self.under_way)
        self.begun.set()
        self.go.wait()
        super().sync(handle)
        self.synced = max(self.synced, end)
        self.under_way -= 1


def in_threads(*runs: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=run) for run in runs]
    for thread in threads:
        thread.start()
    return threads


def profiled(run: Callable[[], object]) -> tuple[list[str], list[str]]:
    """Return the functions of Python, and those of C, that `run` calls."""
    python: list[str] = []
    native: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            python.append(frame.f_code.co_name)
        if event == "c_call" and argument.__name__.startswith("seg_"):
            native.append(argument.__name__)

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return python, native
