"""`ReplicatedStore.heal`: a damaged replica is copied from a sound one, and what was acknowledged stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damage import ROT, batches, flip
from replicated_stores import (
    PATIENT,
    Directories,
    Writer,
    assert_equal,
    await_in_sync,
    follower_of,
    found,
    log_bytes,
    retrying,
)
from stores import records
from waiting import until

import segstore
from segstore.errors import NoSoundReplicaError

pytestmark = pytest.mark.kind("replicated stores")

Damage = Callable[[Path], object]
SMALL = {"segment.bytes": 700, "index.interval.bytes": 100}
COUNT = 60


def make(three: Directories, **config: Any) -> Any:
    """A topic "t" with three replicas, several segments, and 60 records in two leader epochs."""
    store = three.open(min_insync_replicas=2, auto_leader_rebalance_enable=False, **PATIENT, **config)
    store.create_topic("t", config=SMALL, assignments={0: [0, 1, 2]})
    log = store.partition("t", 0)
    for number in range(0, COUNT, 2):
        log.append_batch([b"%03d" % number, b"%03d" % (number + 1)])
    await_in_sync(store)
    return store


def expected() -> dict[int, bytes]:
    return {number: b"%03d" % number for number in range(COUNT)}


def nth(pattern: str, which: int, damage: Callable[[Path], object]) -> Damage:
    return lambda directory: damage(sorted(directory.glob(pattern))[which])


def garbage(path: Path) -> None:
    path.write_bytes(b"\x55" * max(path.stat().st_size, 24))


DAMAGES: dict[str, Damage] = {
    **{f"{rot.__name__}, segment 2": nth("*.log", 1, rot) for rot in ROT if rot.__name__ != "taken_out"},
    "payload in the first segment": nth("*.log", 0, lambda path: flip(path, batches(path)[0][0] + 65)),
    "payload in the active segment": nth("*.log", -1, lambda path: flip(path, batches(path)[0][0] + 65)),
    "the first segment is missing": nth("*.log", 0, Path.unlink),
    "a segment is missing": nth("*.log", 2, Path.unlink),
    "the active segment is missing": nth("*.log", -1, Path.unlink),
    "an index is garbage": nth("*.index", 1, garbage),
    "a time index is garbage": nth("*.timeindex", 1, garbage),
    "a producer snapshot is garbage": nth("*.snapshot", 1, garbage),
    "leader epochs are garbage": lambda directory: garbage(directory / "leader-epoch-checkpoint"),
}


CASES = [(name, "leader") for name in DAMAGES] + [
    (name, "follower") for name in DAMAGES if "in_payload" in name or "missing" in name or "snapshot" in name
]


@pytest.mark.parametrize(("name", "who"), CASES)
def test_a_damaged_replica_is_copied_from_a_sound_one(three: Directories, name: str, who: str) -> None:
    store = make(three)
    before = store.describe_partition("t", 0)
    number = before.leader if who == "leader" else follower_of(before)
    directory = three.paths[number] / "t-0"
    DAMAGES[name](directory)
    (healed,) = store.heal(("t", 0))
    assert healed[:4] == ("t", 0, number, str(three.paths[number]))
    assert (healed.end_offset, healed.offset < COUNT) == (COUNT, True)
    assert healed.bytes > 0
    for copy in healed.kept:
        assert Path(copy).parent == three.paths[number] / ".segstore" / "quarantine"
    after = store.describe_partition("t", 0)
    assert {*after.isr} == {0, 1, 2}
    assert (after.leader == before.leader) == (who == "follower")
    assert found(store.partition("t", 0)) == expected()
    assert retrying(lambda: store.partition("t", 0).append(b"later")) == COUNT
    await_in_sync(store)
    assert_equal([path / "t-0" for path in three.paths])
    assert store.heal(("t", 0)) == []


def test_two_replicas_damaged_at_different_places_heal_each_other(three: Directories) -> None:
    """The later damage first: what lies in front of it is still whole in the other one."""
    store = make(three)
    three.files.fail(three.paths[2])
    with Writer(store.partition("t", 0)) as writer:
        writer.more(3)
    logs = [sorted((three.paths[number] / "t-0").glob("*.log")) for number in (0, 1)]
    flip(logs[0][1], 65)
    flip(logs[1][3], 65)
    healed = store.heal()
    assert [(each.replica, each.offset <= 60) for each in healed] == [(1, True), (0, True)]
    writer.assert_kept_from(store.partition("t", 0), COUNT)
    assert {*store.describe_partition("t", 0).isr} == {0, 1}


def test_without_a_sound_replica_nothing_is_changed(three: Directories) -> None:
    store = make(three)
    before = store.describe_partition("t", 0)
    logs = [sorted((path / "t-0").glob("*.log"))[2] for path in three.paths]
    at, _, base = batches(logs[0])[0]
    for path in logs:
        flip(path, at + 65)
    damaged = [log_bytes(path / "t-0") for path in three.paths]
    store.create_topic("u", replication_factor=2)
    with pytest.raises(
        NoSoundReplicaError, match=rf"t-0, damaged from offset {base} on in replica 0"
    ) as told:
        store.heal()
    assert told.value.offsets == {("t", 0): {0: base, 1: base, 2: base}}
    assert [log_bytes(path / "t-0") for path in three.paths] == damaged
    after = store.describe_partition("t", 0)
    assert (after.isr, after.partition_epoch) == (before.isr, before.partition_epoch)
    for path in logs:
        flip(path, at + 65)
    assert store.heal() == []


def test_a_single_replica_has_nobody_to_heal_it_and_the_others_are_healed(three: Directories) -> None:
    store = make(three)
    store.create_topic("alone", config=SMALL, assignments={0: [1]})
    store.partition("alone", 0).append_batch([b"x"] * 100, batch_bytes=1)
    (log,) = [(three.paths[1] / "alone-0" / "00000000000000000000.log")]
    flip(log, 65)
    flip(sorted((three.paths[2] / "t-0").glob("*.log"))[1], 65)
    with pytest.raises(NoSoundReplicaError, match="alone-0") as told:
        store.heal()
    assert [(each.topic, each.replica) for each in told.value.healed] == [("t", 2)]
    assert list(told.value.offsets) == [("alone", 0)]
    flip(log, 65)


def test_appends_go_on_while_a_replica_is_healed(three: Directories) -> None:
    """acks=all needs two of three: nothing that was acknowledged is lost, nothing is there twice."""
    store = make(three)
    log = store.partition("t", 0)
    with Writer(log) as writer:
        for number in (1, 0, 2):
            writer.more(5)
            flip(sorted((three.paths[number] / "t-0").glob("*.log"))[1], 65)
            (healed,) = store.heal()
            assert healed.replica == number
        writer.more(5)
    writer.assert_kept_from(log, COUNT)
    assert store.heal() == []


def test_a_transaction_and_its_producer_survive_the_healing(three: Directories) -> None:
    store = make(three)
    flip(sorted((three.paths[0] / "t-0").glob("*.log"))[1], 65)
    with segstore.Producer(store, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"in a transaction", partition=0)
        producer.flush()
        assert [each.replica for each in store.heal(("t", 0))] == [0]
        producer.send("t", b"of two", partition=0)
        producer.commit_transaction()
    values = [*found(store.partition("t", 0)).values()]
    assert values[COUNT:] == [b"in a transaction", b"of two"]


def test_a_compacted_topic_is_copied_whole(three: Directories) -> None:
    store = three.open(min_insync_replicas=2, auto_leader_rebalance_enable=False, **PATIENT)
    config = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01}
    store.create_topic("c", config=config, assignments={0: [0, 1, 2]})
    log = store.partition("c", 0)
    for number in range(100):
        log.append(b"%d" % number, key=b"%d" % (number % 7))
    await_in_sync(store)
    store.sweep()
    latest = {record.key: record.value for record in records(log)}
    flip(sorted((three.paths[1] / "c-0").glob("*.log"))[-1], 65)
    (healed,) = store.heal(("c", 0))
    assert (healed.replica, healed.offset) == (1, 0)
    store.elect_leaders("preferred")
    store.reassign({("c", 0): [1, 0, 2]})
    store.elect_leaders("preferred", [("c", 0)])
    assert store.describe_partition("c", 0).leader == 1
    assert {record.key: record.value for record in records(store.partition("c", 0))} == latest
    assert store.heal() == []


def test_what_can_not_be_healed_is_refused(three: Directories) -> None:
    store = make(three)
    with pytest.raises(segstore.UnknownTopicOrPartitionError):
        store.heal(("nix", 0))
    with pytest.raises(segstore.errors.InvalidTypeError):
        store.heal(("t",))
    store.close()
    with pytest.raises(segstore.StoreClosedError):
        store.heal()


@pytest.mark.parametrize("at", [65, 8, 16], ids=["payload", "length", "magic"])
def test_a_follower_of_a_damaged_leader_tries_on_and_comes_back(
    three: Directories, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Kafka it is out of the ISR meanwhile. It asks again after replica.fetch.backoff.ms each time: not
    at once, which would be a loop, nor never.
    """
    store = make(three, replica_fetch_backoff_ms=100)
    three.files.fail(three.paths[1])
    until(lambda: 1 not in store.describe_partition("t", 0).isr)
    three.files.mend()
    log = store.partition("t", 0)
    more = [b"%03d" % number for number in range(COUNT, COUNT + 20)]
    log.append_batch(more, batch_bytes=1)
    path = sorted((three.paths[0] / "t-0").glob("*.log"))[-2]
    flip(path, at)
    leader = store.replicated.manager.leaders["t", 0]
    asked, read = [0], leader.replica.read

    def counted(*args: int) -> bytes:
        asked[0] += 1
        return read(*args)

    leader.replica.read = counted
    store.replace_directory(1, three.paths[1])
    until(lambda: asked[0] > 3)
    assert 1 not in store.describe_partition("t", 0).isr
    flip(path, at)
    until(lambda: 1 in store.describe_partition("t", 0).isr)
    assert asked[0] < 500
    assert [*found(store.partition("t", 0)).values()][COUNT:] == more
