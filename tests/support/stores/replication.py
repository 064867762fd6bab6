"""Parts of the replication core for tests: a leader 0 of replicas 0 to 2, a follower, a controller."""

from __future__ import annotations

from typing import Any

from segstore.leader_epochs import LeaderEpochCache
from segstore.replication.core.cluster import BrokerHeartbeat
from segstore.replication.core.config import ControllerConfig, ReplicaConfig
from segstore.replication.core.controller import Controller
from segstore.replication.core.effects import Effects, Persist, Send
from segstore.replication.core.follower import Follower
from segstore.replication.core.leader import Leader
from segstore.replication.core.log import ReplicaLog
from segstore.replication.core.messages import AlterPartition, AlterPartitionReply, FetchRequest
from segstore.replication.core.partition import PartitionReplica
from segstore.replication.core.records import PartitionDecision
from segstore.replication.core.registration import BrokerRegistration, PartitionRegistration

NOW = 100_000
LAG = 30_000
KEY = ("t", 0)
MISSING = ("other", 0)
SESSION = 9_000


def log(*epochs: tuple[int, int], start: int = 0, end: int = 0, shown: int = 0) -> ReplicaLog:
    """A log with leader epochs, log start and log end offset, and high watermark."""
    return ReplicaLog(LeaderEpochCache(epochs), start, end, shown)


def state(**fields: object) -> PartitionRegistration:
    """Replica 0 leads in epoch 5, all three are in sync."""
    default = PartitionRegistration((0, 1, 2), (0, 1, 2), 0, leader_epoch=5, partition_epoch=10)
    return default._replace(**fields)  # type: ignore[arg-type]


def brokers(count: int = 3) -> dict[int, BrokerRegistration]:
    """Live brokers, with broker epochs from 70 on."""
    return {broker: BrokerRegistration(70 + broker, f"i{broker}", fenced=False) for broker in range(count)}


def leading(
    of: ReplicaLog | None = None, min_isr: int = 1, **fields: object
) -> tuple[PartitionReplica, Leader]:
    """A partition that has just become leader."""
    made = PartitionReplica(0, of or log(), brokers(), ReplicaConfig(min_isr, LAG))
    made.become(state(**fields), NOW)
    return made, made.leader


def following(of: ReplicaLog) -> tuple[PartitionReplica, Follower]:
    """Replica 1, which has just become a follower of 0 in epoch 5."""
    made = PartitionReplica(1, of, brokers(), ReplicaConfig())
    made.become(state(), NOW)
    assert isinstance(made.role, Follower)
    return made, made.role


def fetch(replica: int, offset: int, last: int = 5, **fields: int) -> FetchRequest:
    """A fetch in epoch 5. `last` is the last fetched epoch."""
    request = FetchRequest(replica, 70 + replica, 5, offset, last if offset else -1, 0)
    return request._replace(**fields)


def sent(effects: Effects) -> list[object]:
    """The messages among effects."""
    return [effect.message for effect in effects if isinstance(effect, Send)]


def proposal(effects: Effects) -> AlterPartition:
    """The one proposal among effects."""
    (found,) = (message for message in sent(effects) if isinstance(message, AlterPartition))
    return found


# --- the controller ------------------------------------------------------------------------------


def controller(live: int = 3, **settings: object) -> Controller:
    """A controller with three registered brokers, of which the first `live` are unfenced."""
    made = Controller(ControllerConfig(**settings))  # type: ignore[arg-type]
    for broker in range(3):
        made.register(broker, f"i{broker}", -1, NOW)
    for broker in range(live):
        beat(made, broker)
    return made


def beat(of: Controller, broker: int, now: int = NOW, **wants: bool) -> Effects:
    """A heartbeat of a broker that has read all metadata."""
    epoch = of.cluster.brokers[broker].epoch
    return of.heartbeat(BrokerHeartbeat(broker, epoch, of.next_offset - 1, **wants), now)


def led(of: Controller, **fields: object) -> PartitionRegistration:
    """Give a controller the partition KEY, as in `state`."""
    of.partitions[KEY] = state(**fields)
    return of.partitions[KEY]


def written(effects: Effects) -> list[PartitionRegistration]:
    """The states of partitions that effects write."""
    records = [effect.record for effect in effects if isinstance(effect, Persist)]
    return [record.registration for record in records if isinstance(record, PartitionDecision)]


def proposed(of: Controller, *isr: int, **fields: Any) -> AlterPartition:
    """The leader 0 proposes an ISR."""
    members = tuple((replica, of.cluster.brokers[replica].epoch) for replica in isr)
    return AlterPartition(0, 5, 10, members)._replace(**fields)


def judged(of: Controller, proposal: AlterPartition, key: Any = KEY) -> AlterPartitionReply:
    effects = of.alter_partition(key, proposal, of.cluster.brokers[proposal.leader].epoch)
    (reply,) = sent(effects)
    assert isinstance(reply, AlterPartitionReply)
    return reply
