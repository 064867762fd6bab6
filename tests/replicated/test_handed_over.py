"""Followers in the same process get what was just appended from memory: the leader's disk is not read for it,
and its CRCs are checked all the same.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from replicated_stores import PATIENT, Directories, await_in_sync, follower_of, log_bytes
from waiting import until

from segstore.storage.log.recent_appends import Recent, RecentAppends
from segstore.storage.log.replica import Replica

pytestmark = pytest.mark.kind("replicated stores")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a leader's log was read for a follower."""
    made, read = Counter[str](), Replica.read

    def counted(self: Replica, *asked: Any) -> bytes | memoryview:
        made["reads"] += 1
        return read(self, *asked)

    monkeypatch.setattr(Replica, "read", counted)
    return made


def opened(three: Directories, **config: Any) -> tuple[Any, Any]:
    store = three.open(min_insync_replicas=2, **{**PATIENT, **config})
    store.create_topic("t", replication_factor=3)
    log = store.partition("t")
    log.append(b"first")
    await_in_sync(store)
    return store, log


def test_r1_appends_with_acks_all_are_read_from_no_disk(three: Directories, reads: Counter[str]) -> None:
    _, log = opened(three)
    reads.clear()
    for number in range(50):
        log.append(b"%d" % number)
        log.append_batch([b"v" * 100] * 5_000)
    log.append_batch([b"w" * 1_000] * 1_000)
    assert reads == {}
    three.close()
    assert len({log_bytes(path / "t-0") for path in three.paths}) == 1


def test_what_is_in_memory_no_more_is_read_from_disk(
    three: Directories, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, log = opened(three)
    monkeypatch.setattr(RecentAppends, "take", lambda *asked: None)
    log.append_batch([b"v"], compression="gzip")  # followers fetch it, even if the native tails are open
    assert reads["reads"] >= 2 or three.inline
    three.close()
    assert len({log_bytes(path / "t-0") for path in three.paths}) == 1


def test_r1_a_follower_checks_the_crcs_of_what_it_is_handed(
    three: Directories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flipped bit is not written; the follower asks again."""
    store, log = opened(three, replica_fetch_backoff_ms=10)
    flipped, take = [], RecentAppends.take

    def damaged(self: RecentAppends, offset: int, end_offset: int, max_bytes: int) -> Recent | None:
        found = take(self, offset, end_offset, max_bytes)
        if found is None or len(flipped) > 2:
            return found
        data = bytearray(found.data)
        data[-1] ^= 1
        flipped.append(offset)
        return found._replace(data=bytes(data))

    monkeypatch.setattr(RecentAppends, "take", damaged)

    def all_flipped() -> bool:
        log.append_batch([b"v" * 100] * 5_000, compression="lz4")
        return len(flipped) > 2

    until(all_flipped)
    await_in_sync(store)
    three.close()
    assert len({log_bytes(path / "t-0") for path in three.paths}) == 1


def test_r8_a_follower_that_catches_up_has_each_piece_read_once(
    three: Directories, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first piece is of replica.fetch.max.bytes, the next ones are read ahead and larger; the bytes are
    the leader's.
    """
    store, log = opened(three, replica_fetch_max_bytes=20_000)
    broker = follower_of(store.describe_partition("t"))
    three.files.fail(three.paths[broker])
    until(lambda: broker not in store.describe_partition("t").isr)
    for number in range(100):
        log.append_batch([b"%04d" % number * 1_000] * 2, acks=1)
    three.files.mend()
    reads.clear()
    store.replace_directory(broker, three.paths[broker])
    await_in_sync(store)
    size = len(log_bytes(three.paths[broker] / "t-0"))
    assert size // 40_000 <= reads["reads"] <= size // 8_000
    three.close()
    assert len({log_bytes(path / "t-0") for path in three.paths}) == 1
