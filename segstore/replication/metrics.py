"""Metrics of a replicated store by Kafka's names (kafka.server:type=ReplicaManager and ReplicaFetcherManager,
kafka.controller:type=KafkaController and ControllerStats, kafka.cluster:type=Partition).

Nothing is on disk. Each call computes the gauges anew. Counters begin at 0 when the store is opened. Kafka's
meters with PerSec in their names are counters here: a monitoring system computes the rates. Threads: any.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore.replication.core.registration import NO_LEADER, PartitionRegistration
from segstore.replication.metadata.image import PartitionKey
from segstore.storage.store.replica_lags import METRICS, families
from segstore.storage.store.stats import Metric, MetricSample

if TYPE_CHECKING:
    from segstore.replication.local_replica import LocalReplica
    from segstore.replication.replicated_writer import ReplicatedWriter
    from segstore.replication.states import ReplicaState


# --- one partition -----------------------------------------------------------------------------


class ReplicationHealth(NamedTuple):
    """The state of a partition's replicas: the ISR, min.insync.replicas, and the offline replicas."""

    state: PartitionRegistration
    min_isr: int
    offline: tuple[int, ...]

    @property
    def under_replicated(self) -> bool:
        """Whether a replica is not in the ISR. Replicas that a reassignment adds don't count."""
        state = self.state
        return not {*state.replicas} - {*state.adding} <= {*state.isr}

    @property
    def spare(self) -> int:
        """The number of replicas in the ISR minus min.insync.replicas."""
        return len(self.state.isr) - self.min_isr


def standings(side: ReplicatedWriter) -> dict[PartitionKey, ReplicationHealth]:
    """Return the `ReplicationHealth` of each partition."""
    online = {directory.broker for directory in side.manager.online}
    found = {}
    for key, state in sorted(side.manager.partitions.items()):
        info = side.topics.get(key.topic)
        if info is not None:
            least = side.topic_admin.replica_config(info).min_insync_replicas
            offline = tuple(replica for replica in state.replicas if replica not in online)
            found[key] = ReplicationHealth(state, min(least, len(state.replicas)), offline)
    return found


def partition_metrics(
    standing: ReplicationHealth, replicas: tuple[ReplicaState, ...], leader: LocalReplica | None
) -> dict[str, Any]:
    """Return the metrics of one partition. The value of `ReplicaLag`, `ReplicaLagBytes` and `ReplicaLagMs` is
    a dict {replica id: value}, with -1 for an unknown value. `ReplicaLagBytes` is computed from the log of
    `leader`.
    """
    return {
        "ReplicasCount": len(standing.state.replicas),
        "InSyncReplicasCount": len(standing.state.isr),
        "UnderReplicated": int(standing.under_replicated),
        "UnderMinIsr": int(standing.spare < 0),
        "AtMinIsr": int(standing.spare == 0),
        "ReplicaLag": {each.id: each.lag for each in replicas},
        "ReplicaLagBytes": {each.id: _lag_bytes(each, leader) for each in replicas},
        "ReplicaLagMs": {each.id: each.lag_ms for each in replicas},
    }


def _lag_bytes(replica: ReplicaState, leader: LocalReplica | None) -> int:
    if leader is None or replica.log_end_offset < 0:
        return -1
    return leader.bytes_from(replica.log_end_offset) if replica.lag else 0


# --- the store ---------------------------------------------------------------------------------


def replication_metrics(side: ReplicatedWriter, lag: int) -> dict[str, dict[str, Any]]:
    """Return {Kafka's type of the metrics: {name: value}}. `lag` is the largest lag of a replica, in
    records.
    """
    counts, found = side.manager.counters, list(standings(side).values())
    brokers = side.manager.brokers.values()
    return {
        "ReplicaManager": {
            "PartitionCount": sum(len(each.state.replicas) for each in found),
            "LeaderCount": sum(each.state.leader != NO_LEADER for each in found),
            "UnderReplicatedPartitions": sum(each.under_replicated for each in found),
            "UnderMinIsrPartitionCount": sum(each.spare < 0 for each in found),
            "AtMinIsrPartitionCount": sum(each.spare == 0 for each in found),
            "OfflineReplicaCount": sum(len(each.offline) for each in found),
            "ReassigningPartitions": sum(each.state.reassigning for each in found),
            "IsrShrinksPerSec": counts.isr_shrinks,
            "IsrExpandsPerSec": counts.isr_expands,
            "FailedIsrUpdatesPerSec": counts.failed_isr_updates,
        },
        "ReplicaFetcherManager": {"MaxLag": lag},
        "KafkaController": {
            "ActiveControllerCount": int(side.controller.error is None),
            "ActiveBrokerCount": sum(not broker.fenced for broker in brokers),
            "FencedBrokerCount": side.data_directories - sum(not broker.fenced for broker in brokers),
            "GlobalTopicCount": len(side.topics),
            "GlobalPartitionCount": len(found),
            "OfflinePartitionsCount": sum(each.state.leader == NO_LEADER for each in found),
            "PreferredReplicaImbalanceCount": sum(
                each.state.leader != each.state.replicas[0] for each in found
            ),
        },
        "ControllerStats": {
            "LeaderElectionRateAndTimeMs": {
                "Count": counts.elections,
                "Total": counts.election_ms,
                "Max": counts.longest_election_ms,
            },
            "UncleanLeaderElectionsPerSec": counts.unclean_elections,
        },
    }


def directory_metrics(side: ReplicatedWriter) -> dict[str, dict[str, int]]:
    """Return {path of a directory: {name: value}}. The values are the number of replicas, the number of
    leaders, and 1 if the directory is offline, 0 if it is online.
    """
    states = [each.state for each in standings(side).values()]
    online = {directory.broker for directory in side.manager.online}
    return {
        path: {
            "PartitionCount": sum(broker in state.replicas for state in states),
            "LeaderCount": sum(state.leader == broker for state in states),
            "LogDirectoryOffline": int(broker not in online),
        }
        for broker, path in enumerate(side.directories)
    }


# --- Prometheus --------------------------------------------------------------------------------

_COUNTED = {
    "IsrShrinksPerSec": "isr_shrinks",
    "IsrExpandsPerSec": "isr_expands",
    "FailedIsrUpdatesPerSec": "failed_isr_updates",
    "UncleanLeaderElectionsPerSec": "unclean_leader_elections",
}
_GAUGES = {
    "UnderReplicatedPartitions": ("under_replicated_partitions", "partitions with replicas not in sync"),
    "UnderMinIsrPartitionCount": ("under_min_isr_partitions", "partitions that refuse acks=all"),
    "AtMinIsrPartitionCount": ("at_min_isr_partitions", "partitions without a replica to spare"),
    "OfflineReplicaCount": ("offline_replicas", "replicas whose directories have failed"),
    "ReassigningPartitions": ("reassigning_partitions", "partitions that are being moved"),
    "MaxLag": ("max_lag_records", "largest lag of a replica"),
    "ActiveControllerCount": ("active_controllers", "1 while the metadata can change"),
    "ActiveBrokerCount": ("active_directories", "directories whose replicas may lead"),
    "FencedBrokerCount": ("fenced_directories", "directories whose replicas may not lead"),
    "OfflinePartitionsCount": ("offline_partitions", "partitions without a leader"),
    "PreferredReplicaImbalanceCount": ("preferred_replica_imbalance", "partitions another replica leads"),
}
_BY_DIRECTORY = {
    "PartitionCount": ("replicas", "replicas in a directory"),
    "LeaderCount": ("leaders", "partitions that a directory leads"),
    "LogDirectoryOffline": ("directory_offline", "1 where a directory has failed"),
}


def samples(
    whole: dict[str, dict[str, Any]],
    directories: dict[str, dict[str, int]],
    partitions: dict[PartitionKey, dict[str, Any]],
) -> Iterator[tuple[Metric, tuple[str, ...], list[MetricSample]]]:
    """Yield (Prometheus metric, its label names, its samples). Unknown values have no samples."""
    flat = {name: value for group in whole.values() for name, value in group.items()}
    for name, (short, doc) in _GAUGES.items():
        yield _metric(name, short, doc), (), [MetricSample((), flat[name])]
    for name, short in _COUNTED.items():
        doc = f"{short.replace('_', ' ')} since the store was opened"
        yield _metric(name, f"{short}_total", doc, "counter"), (), [MetricSample((), flat[name])]
    elections = flat["LeaderElectionRateAndTimeMs"]
    for part, short in (("Count", "leader_elections_total"), ("Total", "leader_election_ms_total")):
        doc = "elections of leaders, and the ms until these took appends"
        yield (
            _metric("LeaderElectionRateAndTimeMs", short, doc, "counter"),
            (),
            [MetricSample((), elections[part])],
        )
    for name, (short, doc) in _BY_DIRECTORY.items():
        of = [MetricSample((path,), values[name]) for path, values in directories.items()]
        yield _metric(name, short, doc), ("directory",), of
    yield from families(
        (key, replica, {metric.name: values[metric.name][replica] for metric in METRICS})
        for key, values in partitions.items()
        for replica in values["ReplicaLag"]
    )


def _metric(name: str, short: str, doc: str, kind: str = "gauge") -> Metric:
    return Metric(name, f"segstore_replication_{short}", kind, doc, "")
