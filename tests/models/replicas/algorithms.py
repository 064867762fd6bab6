"""The algorithms that Kafka had or tried before, each as a change of the core, after hachikuji's models
(kafka-specification). All of them break a property; docs/replication.md tells how.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from replicas.bounds import Bounds
from replicas.world import REFUSED, Move, World
from segstore.leader_epochs import UNDEFINED
from segstore.replication.core import isr, truncation
from segstore.replication.core.effects import Effects, Truncate
from segstore.replication.core.follower import Follower
from segstore.replication.core.leader import Leader
from segstore.replication.core.messages import FetchRequest
from segstore.replication.core.partition import PartitionReplica
from segstore.replication.core.registration import PartitionRegistration


class NoEpochInFetches(PartitionReplica):
    """Who asks says nothing of its leader epoch, so the leader's is not compared."""

    def leader_for(self, current_leader_epoch: int) -> Leader:
        return super().leader_for(-1)


Kip320FirstTry = NoEpochInFetches
"""KIP-320, first try: a follower truncates when it is told to, by whatever leader."""


class PlainFollower(Follower):
    """A follower that fetches by offset alone, once it has truncated (`asks`: it has not yet)."""

    __slots__ = ("asks",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asks = False

    def copy(self, log: Any) -> PlainFollower:
        made = super().copy(log)
        made.asks = self.asks
        return made

    def fetch(self, broker_epoch: int) -> FetchRequest:
        return super().fetch(broker_epoch)._replace(last_fetched_epoch=-1)


class TruncateToHighWatermark(NoEpochInFetches):
    """Before KIP-101: a follower cuts its log at its high watermark, which is one round late."""

    def following(self, leader: int, leader_epoch: int, partition_epoch: int) -> Follower:
        return PlainFollower(self.replica_id, self.log, leader, leader_epoch, partition_epoch)

    def _follow(self, role: Any, registration: PartitionRegistration) -> Effects:
        effects = super()._follow(role, registration)
        log = self.log
        return (*effects, Truncate(log.high_watermark)) if log.end_offset > log.high_watermark else effects


class Kip101(NoEpochInFetches):
    """KIP-101: a follower asks once where its latest epoch ends in the leader's log, and cuts there."""

    def following(self, leader: int, leader_epoch: int, partition_epoch: int) -> Follower:
        made = PlainFollower(self.replica_id, self.log, leader, leader_epoch, partition_epoch)
        made.asks = bool(self.log.end_offset)
        return made

    def truncate_as(self, leader: PartitionReplica) -> tuple[Truncate, bool]:
        """Where to cut, and whether that is all."""
        end = leader.leader_for(-1).log.end_offset_for(self.log.epochs.current)
        if end == UNDEFINED:
            return Truncate(self.log.high_watermark), True
        return Truncate(min(end.end_offset, self.log.end_offset)), True


class Kip279(Kip101):
    """KIP-279: a follower asks until it finds an epoch that both logs have."""

    def truncate_as(self, leader: PartitionReplica) -> tuple[Truncate, bool]:
        asked = self.log.epochs.current
        end = leader.leader_for(-1).log.end_offset_for(asked)
        if end == UNDEFINED:
            return Truncate(self.log.high_watermark), True
        cut = truncation.truncation_offset(self.log, end)
        return Truncate(cut), end.epoch == asked or cut == 0


class AskingWorld(World):
    """Followers that become such truncate before they fetch."""

    def ask(self, move: Move, replica: int) -> Any:
        part = move.part(replica)
        follower = part.role
        if not getattr(follower, "asks", False):
            return super().ask(move, replica)
        assert isinstance(part, Kip101)
        assert isinstance(follower, PlainFollower)
        if follower.leader < 0:
            return None
        try:
            cut, done = part.truncate_as(move.part(follower.leader))
        except REFUSED:
            return None
        move.carry_out(replica, (cut,))
        follower.asks = not done
        return follower.fetch(-1)._replace(fetch_offset=-1), None, (0, 0)  # nothing is fetched in this step


class AsyncIsrLeader(Leader):
    """The first plan of KIP-497: a member counts once the leader knows that it was added."""

    def _slowest(self, now_ms: int) -> int:
        pending, self.isr = self.isr, isr.Committed(self.isr.isr)
        reached = super()._slowest(now_ms)
        self.isr = pending
        return reached


class AsyncIsr(PartitionReplica):
    """See `AsyncIsrLeader`."""

    def leading(self) -> Leader:
        return AsyncIsrLeader(self.replica_id, self.log, self.brokers, self.config, self.acks)


class Case(NamedTuple):
    """An algorithm, where the search begins, and the property that it finds broken."""

    world: type[World]
    partition: type[PartitionReplica]
    bounds: Bounds
    property: str
    steps: tuple[str, ...] = ()


ONE_HAS_IT = (
    "0 hears of leader 0",
    "0 appends record 0",
    "1 hears of leader 0",
    "1 fetches",
    "the controller elects 2",
)
"""Leader 0 and follower 1 have a record, follower 2 has heard of nothing, and is elected."""

TWO, THREE = Bounds(2, 2, 3), Bounds(3, 1, 3)
AGAIN = ("the controller elects 0", "0 hears of leader 0 of epoch 2")
TRACES: dict[str, tuple[str, tuple[str, ...]]] = {
    "a record at the high watermark is kept that the leader has not": (
        "truncate to the high watermark",
        (
            *("0 hears", "0 appends record 0", "1 hears", "1 fetches", "the controller elects 1"),
            *("0 hears of leader 1", *AGAIN, "0 appends record 1", "1 fetches"),
        ),
    ),
    "fast failovers: an epoch that the leader has not ends where its next one starts": (
        "KIP-101",
        (
            *("0 hears", "0 appends record 0", "the controller elects 1", "1 hears of leader 1"),
            *("1 appends record 1", *AGAIN, "1 hears of leader 0 of epoch 2", "1 fetches", "1 fetches"),
        ),
    ),
    "a stale leader decides a truncation": (
        "KIP-279",
        (
            *(*ONE_HAS_IT, "2 hears of leader 2", "the controller fences 2, prefers 0", AGAIN[1]),
            *("1 fetches", "1 hears of leader 2 of epoch 1", "1 fetches"),
        ),
    ),
    "a leader counts who fetches in an older epoch": (
        "KIP-320, first try",
        (
            *(*ONE_HAS_IT, "2 hears of leader 2", "the controller fences 2, prefers 0", AGAIN[1]),
            *("1 fetches", "1 hears of leader 2 of epoch 1", "1 fetches"),
        ),
    ),
    "a member is added before the leader hears of it": (
        "KIP-497, first plan (AsyncIsr)",
        (
            *("0 hears", "0 looks for who lags", "the controller judges 0's ISR", "1 hears", "1 fetches"),
            *("0 appends record 0", "the controller judges 0's ISR, the answer is lost"),
            "0 hears of its ISR again",
        ),
    ),
}
"""What goes wrong with each algorithm, and the steps to it."""

ALGORITHMS: dict[str, Case] = {
    "truncate to the high watermark": Case(World, TruncateToHighWatermark, TWO, "P6"),
    "KIP-101": Case(AskingWorld, Kip101, TWO, "P6"),
    "KIP-279": Case(AskingWorld, Kip279, THREE, "P3", ONE_HAS_IT),
    "KIP-320, first try": Case(World, Kip320FirstTry, THREE, "P3", ONE_HAS_IT),
    "KIP-497, first plan (AsyncIsr)": Case(World, AsyncIsr, TWO, "P3"),
}
