"""The thread of a data directory does what is due, however much it is asked for."""

from __future__ import annotations

from typing import Any

import pytest
from waiting import until

from segstore.config import StoreConfig
from segstore.replication import fetching
from segstore.replication.data_directory import DataDirectory
from segstore.replication.fetching import Fetching
from segstore.replication.settings import ReplicationConfig


class Busy(DataDirectory):
    """A directory without replicas, whose thread always has work."""

    def __init__(self) -> None:
        config = {"broker.heartbeat.interval.ms": 1, "replica.high.watermark.checkpoint.interval.ms": 1}
        self.broker, self.beats, self.checkpoints, self.over = 0, 0, 0, False
        self.thread = Fetching(self, ReplicationConfig.of(StoreConfig.parse(config)))

    def work(self) -> None:
        if not self.over:
            self.thread.post(self.work)

    def beat(self) -> None:
        self.beats += 1

    def checkpoint(self) -> None:
        self.checkpoints += 1


def test_a_busy_directory_sends_heartbeats_and_writes_checkpoints() -> None:
    """Else the controller fences a directory that works as fast as it can."""
    directory = Busy()
    directory.work()
    directory.thread.start()
    try:
        until(lambda: directory.beats > 3 and directory.checkpoints > 3, 60)
    finally:
        directory.over = True
        assert directory.thread.stop(60)


class Following(Busy):
    """A directory with one replica that always has something to fetch, and others."""

    def __init__(self) -> None:
        super().__init__()
        self.stepped: list[Any] = []

    def work(self) -> None:
        if not self.over:
            self.thread.fetch("busy", lambda: False)  # type: ignore[arg-type]
            self.thread.post(self.work)

    def step(self, replica: Any) -> bool | None:
        self.stepped.append(replica)
        return False


def test_a_busy_replica_does_not_keep_an_idle_one_from_hearing_of_the_high_watermark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each fetch put off the last round of all replicas of the directory."""
    monkeypatch.setattr(fetching, "LAST_ROUND", 0.05)
    directory = Following()
    idle: Any = "idle"
    directory.thread.post(lambda: directory.thread.fetch(idle, lambda: False))
    directory.work()
    directory.thread.start()
    try:
        until(lambda: "idle" in directory.stepped, 60)
    finally:
        directory.over = True
        assert directory.thread.stop(60)
