"""R23, R32: with acks=all and min.insync.replicas 2, records that were acknowledged survive the loss of any
one of three directories, whoever leads and however the directory is lost.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from faults import SYNCS, WRITES
from replicated_stores import (
    PATIENT,
    Directories,
    Writer,
    await_in_sync,
    follower_of,
    found,
    retrying,
    states,
)
from waiting import told, until

import segstore

pytestmark = pytest.mark.kind("replicated stores")

LOSSES: dict[str, Callable[[Directories, int], object]] = {
    "renamed away": lambda d, n: d.lose(n),
    "removed": lambda d, n: d.remove(n),
    "each call fails": lambda d, n: d.files.fail(d.paths[n]),
    "writes and syncs fail": lambda d, n: d.files.fail(d.paths[n], calls=WRITES | SYNCS),
}


@pytest.mark.parametrize("who", ["leader", "follower"])
@pytest.mark.parametrize("how", LOSSES)
def test_r32_acknowledged_records_survive(
    three: Directories, caplog: pytest.LogCaptureFixture, how: str, who: str
) -> None:
    store = three.open(min_insync_replicas=2)
    store.create_topic("t", replication_factor=3)
    log = store.partition("t", 0)
    before = store.describe_partition("t", 0)
    victim = before.leader if who == "leader" else follower_of(before)
    with Writer(log) as writer:
        writer.more()
        LOSSES[how](three, victim)
        until(lambda: victim not in store.describe_partition("t", 0).isr)
        writer.more()
    after = store.describe_partition("t", 0)
    assert (victim in after.offline, after.leader in after.isr) == (True, True)
    assert (after.leader_epoch > before.leader_epoch) == (who == "leader")
    assert after.partition_epoch > before.partition_epoch
    writer.assert_kept(log)
    told()
    elections = [each.getMessage() for each in caplog.records if " have another leader now, " in each.message]
    led = int(who == "leader")
    assert elections == [
        f"directory {victim} led {led} partitions: {led} have another leader now, 0 have none"
    ]
    store.close()
    three.files.mend()
    with three.open() as again:
        until(lambda: again.describe_partition("t", 0).leader >= 0)
        writer.assert_kept(again.partition("t", 0))
        with Writer(again.partition("t", 0)) as later:
            later.more(5)


@pytest.mark.parametrize("calls", [None, WRITES | SYNCS], ids=["each call", "writes and syncs"])
def test_r32_a_directory_that_fails_while_the_store_is_opened_is_offline(
    three: Directories, calls: frozenset[str] | None
) -> None:
    with three.open(min_insync_replicas=2) as store:
        store.create_topic("t", replication_factor=3)
        store.partition("t", 0).append(b"before")
    three.files.fail(three.paths[0], calls=calls)
    with three.open() as store:
        until(lambda: store.describe_partition("t", 0).leader in (1, 2))
        assert retrying(lambda: store.partition("t", 0).append(b"without it", acks="all")) == 1
        assert 0 in store.describe_partition("t", 0).offline


def test_r32_all_that_a_directory_led_is_led_by_others(three: Directories) -> None:
    store = three.open(min_insync_replicas=2)
    store.create_topic("t", partitions=30, replication_factor=3)
    assert {state.leader for state in states(store).values()} == {0, 1, 2}, "leaders are spread"
    for number in range(30):
        store.partition("t", number).append(b"%d" % number)
    three.lose(1)
    until(lambda: all(1 not in state.isr and state.leader >= 0 for state in states(store).values()))
    for number in range(30):
        log = store.partition("t", number)
        assert retrying(lambda log=log: log.append(b"later", acks="all")) == 1
        assert found(log) == {0: b"%d" % number, 1: b"later"}
    assert {state.leader for state in states(store).values()} == {0, 2}


def test_two_directories_and_a_witness_go_on_after_one_is_lost(two: Directories) -> None:
    store = two.open()
    store.create_topic("t", replication_factor=2)
    with Writer(store.partition("t", 0)) as writer:
        writer.more()
        two.lose(store.describe_partition("t", 0).leader)
        writer.more()
    writer.assert_kept(store.partition("t", 0))


def test_the_loss_of_the_witness_is_no_loss(two: Directories) -> None:
    store = two.open(min_insync_replicas=2)
    store.create_topic("t", replication_factor=2)
    assert two.witness is not None
    two.files.fail(two.witness)
    with Writer(store.partition("t", 0)) as writer:
        writer.more()
        store.create_topic("u", replication_factor=2)
    writer.assert_kept(store.partition("t", 0))
    await_in_sync(store)


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_full_disk_is_no_lost_disk(three: Directories, who: str) -> None:
    """segstore's own rule for ENOSPC: the log is put back, and goes on once there is room."""
    store = three.open(min_insync_replicas=2)
    store.create_topic("t", replication_factor=3)
    log = store.partition("t", 0)
    state = store.describe_partition("t", 0)
    full = state.leader if who == "leader" else follower_of(state)
    with Writer(log) as writer:
        writer.more()
        three.files.fail(three.paths[full] / "t-0", errno.ENOSPC, WRITES | {"allocate"})
        if who == "leader":
            until(lambda: writer.refused or store.describe_partition("t", 0).leader != full)
        else:
            until(lambda: full not in store.describe_partition("t", 0).isr)
        three.files.mend()
        writer.more()
        await_in_sync(store)
    writer.assert_kept(log)
    assert store.describe_partition("t", 0).offline == ()


def test_a_full_disk_is_told_of_once_and_not_with_every_append(
    three: Directories, caplog: pytest.LogCaptureFixture
) -> None:
    """Two partitions took turns: 700 warnings came in 20 s."""
    store = three.open(min_insync_replicas=2)
    store.create_topic("t", assignments={0: [0, 1, 2], 1: [0, 1, 2]})
    three.files.fail(three.paths[2], errno.ENOSPC, WRITES | {"allocate"})
    until(lambda: any("No space" in each.message for each in caplog.records))
    logs = [store.partition("t", number) for number in (0, 1)]
    for _ in range(50):
        for log in logs:
            log.append(b"x", acks=1)
            time.sleep(0.005)
    three.files.mend()
    said = [each.message for each in caplog.records if "No space" in each.message]
    assert len(said) == len({*said})


BEHIND: dict[str, tuple[dict[str, object], Callable[[Any, Any], object]]] = {
    "flush.ms": ({"flush.ms": 1_000}, lambda store, log: log.append(b"the last one", acks="all")),
    "a roll": ({"segment.bytes": 300}, lambda store, log: log.append(b"r" * 150, acks="all")),
    "store.flush": ({}, lambda store, log: _tried(store.flush)),
    "retention": ({"retention.bytes": 1, "segment.bytes": 300}, lambda store, log: store.sweep()),
}
"""Ways in which an idle replica is synced, by no fetch and no heartbeat: settings of the topic, and what
lets it happen.
"""


def _tried(call: Callable[[], object]) -> None:
    with suppress(segstore.SegstoreError):
        call()


CASES = [(how, code) for how in BEHIND for code in (errno.EIO, errno.ENOSPC) if how != "retention"]
CASES.append(("retention", errno.EIO))  # it syncs names, too: for these it may wait for room


@pytest.mark.parametrize(("how", "code"), CASES)
@pytest.mark.parametrize("who", ["leader", "follower"])
def test_r32_a_sync_that_fails_behind_an_idle_replica_takes_it_out_at_once(
    three: Directories, how: str, who: str, code: int
) -> None:
    """Kafka: LogDirFailureChannel. What the kernel did not sync it may have dropped: so that a disk has no
    room is no excuse where a sync says so (ENOSPC). Nothing is appended behind that.
    """
    settings, work = BEHIND[how]
    store = three.open(min_insync_replicas=2, **PATIENT)
    store.create_topic("t", config=settings, replication_factor=3)
    log = store.partition("t", 0)
    for number in range(2):
        log.append(b"%d" % number * 150, acks="all")
    state = store.describe_partition("t", 0)
    victim = state.leader if who == "leader" else follower_of(state)
    three.files.fail(three.paths[victim] / "t-0", code, SYNCS)
    _tried(partial(work, store, log))
    until(lambda: victim in (now := store.describe_partition("t", 0)).offline and victim not in now.isr)
    until(lambda: store.describe_partition("t", 0).leader in {0, 1, 2} - {victim})
    assert retrying(lambda: log.append(b"without it", acks="all")) >= 2
    three.files.mend()


def test_r32_what_a_follower_could_not_sync_is_not_acknowledged_by_it(three: Directories) -> None:
    """With flush.messages=1 a follower counts once it has synced. Its sync fails for want of room, it fetches
    again, and what it wrote would count as synced: it goes offline instead.
    """
    store = three.open(min_insync_replicas=3, **PATIENT)
    store.create_topic("t", config={"flush.messages": 1}, replication_factor=3)
    log = store.partition("t", 0)
    log.append(b"on three disks", acks="all")
    victim = follower_of(store.describe_partition("t", 0))
    three.files.fail(three.paths[victim] / "t-0", errno.ENOSPC, SYNCS)
    with pytest.raises(segstore.SegstoreError):
        log.append(b"on two disks", acks="all", timeout_ms=3_000)
    until(lambda: victim in store.describe_partition("t", 0).offline)
    assert found(log) == {0: b"on three disks"}, "nothing is shown that three have not synced"


def test_r31_with_two_of_three_directories_lost_nothing_is_acknowledged_any_more(three: Directories) -> None:
    """acks=all waits for a change of the ISR that nobody can make durable."""
    store = three.open(min_insync_replicas=2)
    store.create_topic("t", replication_factor=3)
    log = store.partition("t", 0)
    log.append(b"acknowledged")
    state = store.describe_partition("t", 0)
    for number in {0, 1, 2} - {state.leader}:
        three.files.fail(three.paths[number])
    end = log.end_offset
    for _ in range(3):
        with pytest.raises(segstore.SegstoreError):
            log.append(b"not acknowledged", acks="all", timeout_ms=700)
    assert log.end_offset == end, "nothing of it is shown"
    with pytest.raises(segstore.errors.QuorumLostError):
        store.create_topic("u", replication_factor=1)
    assert found(log) == {0: b"acknowledged"}, "it is read on"
