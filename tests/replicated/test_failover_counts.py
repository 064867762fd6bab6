"""What a failover costs, in calls: one write and one sync of the metadata log on each voter, and for each
partition one small file, without a sync, and a fetch or two. So it grows with the number of partitions, and
not with its square.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from descriptors import opened
from faults import SYNCS, CountingFiles
from replicated_stores import PATIENT, QUICK
from waiting import until

import segstore
from segstore.replication.data_directory import DataDirectory
from segstore.replication.local_replica import LocalReplica
from segstore.replication.metadata.image import PartitionKey
from segstore.storage.log.replica import Replica

pytestmark = pytest.mark.kind("replicated stores")

QUIET = {
    **QUICK,
    **{name.replace("_", "."): value for name, value in PATIENT.items()},
    "broker.heartbeat.interval.ms": 10,
    "log.flush.offset.checkpoint.interval.ms": 600_000,
    "replica.high.watermark.checkpoint.interval.ms": 600_000,
}
"""Nothing is written but what the test does."""


class Store:
    """Three directories, of which the first one leads all partitions of the topic `t`."""

    def __init__(self, base: Path, partitions: int) -> None:
        self.base, self.files = base, CountingFiles()
        self.paths = [base / f"d{number}" for number in range(3)]
        self.store = segstore.open_replicated(
            self.paths, config={**QUIET, "min.insync.replicas": 2}, files=self.files
        )
        self.store.create_topic("t", assignments={number: [0, 1, 2] for number in range(partitions)})
        self.logs = [self.store.partition("t", number) for number in range(partitions)]
        for log in self.logs:
            log.append(b"before")
        self.manager: Any = self.store.replicated.manager
        until(self._is_quiet, 60)

    def _is_quiet(self) -> bool:
        """Whether followers have heard of the high watermark, and are asked no more."""
        keys = [PartitionKey("t", log.partition) for log in self.logs]
        here = [self.manager.find(broker, key) for broker in (1, 2) for key in keys]
        over = not any(directory._thread._once_more for directory in self.manager.online)
        return over and all(replica.replica.high_watermark == 1 for replica in here)

    def fail_over(self) -> None:
        """Lose the first directory, and wait until the second one leads all partitions."""
        self.files.clear()
        os.rename(self.paths[0], self.base / "lost")
        until(lambda: all(self._led_by(log.partition) == 1 for log in self.logs), 60)

    def _led_by(self, partition: int) -> int:
        leader = self.manager.leader(PartitionKey("t", partition))
        return -1 if leader is None else int(leader.broker)

    def written(self, name: str) -> list[str]:
        """The paths, below the directories, of the calls of this name."""
        found = [
            str(getattr(args[0], "path", args[0])) for called, args in self.files.calls if called == name
        ]
        return [path.removeprefix(f"{self.base}/") for path in found]

    def close(self) -> None:
        self.store.close()
        for path in self.paths[1:]:
            assert segstore.check(path) == []


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[[int], Store]]:
    """Makes a store with so many partitions; the directories that are left must be sound in the end."""
    stores: list[Store] = []

    def make(partitions: int) -> Store:
        stores.append(Store(tmp_path, partitions))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


@pytest.mark.parametrize("partitions", [2, 10])
def test_r31_a_failover_is_one_write_and_one_sync_on_each_voter(
    made: Callable[[int], Store], partitions: int
) -> None:
    failed = made(partitions)
    metadata: Any = failed.store.replicated.metadata_log
    before = metadata.next_offset
    failed.fail_over()
    logs = Counter(path for path in failed.written("pwrite") if path.endswith(".log"))
    syncs = {path for name in SYNCS for path in failed.written(name)}
    # A change for each partition, and the directory's registration.
    assert metadata.next_offset - before == partitions + 1
    assert set(logs.values()) == {1}
    assert {path.split("/")[1] for path in (*logs, *syncs)} == {"__cluster_metadata-0"}
    assert failed.files.count(*SYNCS) <= 6


@pytest.mark.parametrize("partitions", [2, 10])
def test_r3_an_election_replaces_one_small_file(made: Callable[[int], Store], partitions: int) -> None:
    failed = made(partitions)
    failed.fail_over()
    expected = {f"d1/t-{number}/leader-epoch-checkpoint": 1 for number in range(partitions)}

    def replaced() -> dict[str, int]:
        renamed = Counter(path.removesuffix(".tmp") for path in failed.written("rename"))
        return {path: n for path, n in renamed.items() if "/t-" in path}

    until(lambda: replaced() == expected, 60)
    assert failed.files.count("open") <= partitions + 8
    for log in failed.logs:
        log.append(b"later")  # followers note the epoch with the first batch that has it
    assert {path: n for path, n in replaced().items() if path in expected} == expected


def test_no_leader_waits_for_the_file_of_anothers_epochs(
    made: Callable[[int], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To replace a file by a rename costs ext4 more than all else of an election."""
    failed, order = made(10), list[str]()
    become, save = LocalReplica.become, Replica._save_epochs

    def became(self: LocalReplica, registration: Any) -> None:
        become(self, registration)
        order.extend(["leads"] if self.broker == 1 else [])

    def saved(self: Replica) -> None:
        save(self)
        order.append("saved")

    monkeypatch.setattr(LocalReplica, "become", became)
    monkeypatch.setattr(Replica, "_save_epochs", saved)
    failed.fail_over()
    until(lambda: len(order) == 20, 60)
    assert order == ["leads"] * 10 + ["saved"] * 10


def test_followers_are_asked_once_each_leader_is_ready(
    made: Callable[[int], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that has not heard of its election refuses a fetch, which was made all the same, twice."""
    failed, partitions = made(12), 12
    asked, fetch = Counter[str](), LocalReplica.fetch

    def counted(self: LocalReplica, *given: Any) -> Any:
        asked["fetches"] += 1
        try:
            return fetch(self, *given)
        except segstore.SegstoreError:
            asked["refused"] += 1
            raise

    monkeypatch.setattr(LocalReplica, "fetch", counted)
    failed.fail_over()
    followers = [failed.manager.find(2, PartitionKey("t", number)) for number in range(partitions)]
    until(lambda: all(_is_followed(failed, replica) for replica in followers), 60)
    # By whichever of both hears last, leader or follower, and at times by both; and the last round.
    assert (asked["fetches"] <= 3 * partitions, asked["refused"]) == (True, 0), asked


def _is_followed(failed: Store, replica: LocalReplica) -> bool:
    leader = failed.manager.leader(replica.key)
    return leader is not None and leader.core.role.remotes[2].end_offset == 1


def test_r27_a_directory_sends_heartbeats_between_elections(
    made: Callable[[int], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The elections of thousands of partitions take longer than a session."""
    failed = made(10)
    done: list[str] = []
    become, beat = LocalReplica.become, DataDirectory.beat

    def slowly(self: LocalReplica, registration: Any) -> None:
        become(self, registration)
        if self.broker == 1:
            time.sleep(0.03)  # three times as long as between two heartbeats
            done.append("election")

    def noted(self: DataDirectory) -> None:
        beat(self)
        if self is failed.manager.directories[1]:
            done.append("heartbeat")

    monkeypatch.setattr(LocalReplica, "become", slowly)
    monkeypatch.setattr(DataDirectory, "beat", noted)
    failed.fail_over()
    until(lambda: done.count("election") == 10, 60)
    within = done[done.index("election") : len(done) - done[::-1].index("election")]
    assert within.count("heartbeat") >= 5, within


def test_directories_share_the_files_that_a_store_keeps_open(tmp_path: Path) -> None:
    """Each of them kept as many open as a store may: so 10,000 partitions took more than the process has."""
    paths = [tmp_path / f"d{number}" for number in range(3)]
    with segstore.open_replicated(paths, config={**QUIET, "max.open.files": 48}) as store:
        store.create_topic("t", partitions=24, replication_factor=3)
        for number in range(24):
            store.partition("t", number).append(b"x")
        logs = [path for path in opened(tmp_path) if "/t-" in path]
        assert len(logs) <= 48, len(logs)
