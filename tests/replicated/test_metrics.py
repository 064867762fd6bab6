"""Metrics of a replicated store by Kafka's names: before, while and after a directory is lost."""

from __future__ import annotations

from typing import Any

import pytest
from replicated_stores import PATIENT, Directories, await_in_sync
from waiting import until

pytestmark = pytest.mark.kind("replicated stores")


def make(three: Directories) -> Any:
    store = three.open(min_insync_replicas=2, auto_leader_rebalance_enable=False, **PATIENT)
    store.create_topic("t", assignments={0: [0, 1, 2], 1: [1, 2, 0]})
    store.create_topic("two", assignments={0: [0, 1]})
    for topic, number in (("t", 0), ("t", 1), ("two", 0)):
        store.partition(topic, number).append(b"x")
    await_in_sync(store)
    return store


def values(store: Any) -> dict[str, Any]:
    return {name: v for group in store.replication_metrics().values() for name, v in group.items()}


def test_all_is_well(three: Directories) -> None:
    store = make(three)
    assert {*store.replication_metrics()} == {
        "ReplicaManager", "ReplicaFetcherManager", "KafkaController", "ControllerStats"}  # fmt: skip
    found = values(store)
    zero = {
        "UnderReplicatedPartitions", "UnderMinIsrPartitionCount", "OfflineReplicaCount", "MaxLag",
        "OfflinePartitionsCount", "PreferredReplicaImbalanceCount", "ReassigningPartitions",
        "FailedIsrUpdatesPerSec", "UncleanLeaderElectionsPerSec", "FencedBrokerCount",
    }  # fmt: skip
    assert {name: found[name] for name in zero} == dict.fromkeys(zero, 0)
    assert found["AtMinIsrPartitionCount"] == 1, "the topic with two replicas"
    assert (found["PartitionCount"], found["LeaderCount"], found["GlobalPartitionCount"]) == (8, 3, 3)
    assert (found["GlobalTopicCount"], found["ActiveControllerCount"], found["ActiveBrokerCount"]) == (
        2,
        1,
        3,
    )
    assert found["LeaderElectionRateAndTimeMs"]["Count"] == 0
    of_t = store.metrics()["t-0"]
    assert (of_t["ReplicasCount"], of_t["InSyncReplicasCount"], of_t["LogEndOffset"]) == (3, 3, 1)
    assert of_t["ReplicaLag"] == of_t["ReplicaLagBytes"] == of_t["ReplicaLagMs"] == {0: 0, 1: 0, 2: 0}


def test_a_leader_is_lost_and_comes_back(three: Directories) -> None:
    store = make(three)
    three.lose(0)
    until(lambda: store.describe_partition("t", 0).leader == 1 and values(store)["FencedBrokerCount"] == 1)
    until(lambda: values(store)["OfflineReplicaCount"] == 3)
    until(lambda: store.describe_partition("two", 0).leader == 1)
    found = values(store)
    assert (found["UnderReplicatedPartitions"], found["PreferredReplicaImbalanceCount"]) == (3, 2)
    assert (found["UnderMinIsrPartitionCount"], found["AtMinIsrPartitionCount"]) == (1, 2)
    assert (found["OfflinePartitionsCount"], found["UncleanLeaderElectionsPerSec"]) == (0, 0)
    assert found["LeaderElectionRateAndTimeMs"]["Count"] == 2
    until(lambda: values(store)["LeaderElectionRateAndTimeMs"]["Total"] > 0)
    assert found["IsrShrinksPerSec"] == 3
    store.partition("t", 0).append_batch([b"y"] * 50)
    of_t = store.metrics()["t-0"]
    assert (of_t["ReplicaLag"][0], of_t["ReplicaLagBytes"][0], of_t["ReplicaLagMs"][0]) == (-1, -1, -1)
    assert (of_t["UnderReplicated"], of_t["UnderMinIsr"], of_t["AtMinIsr"]) == (1, 0, 1)
    three.bring_back()
    store.replace_directory(0, three.paths[0])
    await_in_sync(store)
    found = values(store)
    assert (found["UnderReplicatedPartitions"], found["IsrExpandsPerSec"]) == (0, 3)


@pytest.mark.hangs
def test_a_follower_that_hangs_lags(three: Directories) -> None:
    store = make(three)
    three.files.hang(three.paths[2])
    log = store.partition("t", 0)
    log.append_batch([b"y" * 100] * 50, batch_bytes=1, acks=1)
    until(lambda: values(store)["MaxLag"] == 50)
    lag = store.metrics()["t-0"]
    assert (lag["ReplicaLag"][2], lag["ReplicaLagBytes"][2] > 5000, lag["ReplicaLagMs"][2] >= 0) == (
        50,
        True,
        True,
    )
    three.files.mend()
    until(lambda: values(store)["MaxLag"] == 0)


def test_without_a_majority_there_is_no_controller(three: Directories) -> None:
    store = make(three)
    for number in (1, 2):
        three.files.fail(three.paths[number])
    until(lambda: values(store)["ActiveControllerCount"] == 0)


def _labels(labels: dict[str, str]) -> tuple[str, ...]:
    return tuple(labels[name] for name in ("topic", "partition", "replica", "directory") if name in labels)


def test_the_same_for_prometheus(three: Directories) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    store = make(three)
    three.lose(2)
    until(lambda: values(store)["UnderReplicatedPartitions"] == 2)
    until(lambda: values(store)["OfflineReplicaCount"] == 2)
    families = {each.name: each for each in parser.text_string_to_metric_families(store.metrics_text())}
    found = {
        name: {_labels(sample.labels): sample.value for sample in family.samples}
        for name, family in families.items()
    }
    assert found["segstore_log_end_offset"]["t", "0"] == 1
    assert found["segstore_replication_under_replicated_partitions"] == {(): 2}
    assert found["segstore_replication_isr_shrinks"] == {(): 2}
    assert found["segstore_replication_directory_offline"][(str(three.paths[2]),)] == 1
    assert found["segstore_replication_leaders"][(str(three.paths[0]),)] == 2
    assert found["segstore_replication_lag_records"]["t", "0", "1"] == 0
    assert all(family.documentation for family in families.values())
