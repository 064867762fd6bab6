"""What can happen next: every step takes one part of the production core, and carries its effects out.

Times play no part: a follower is in sync if it has all records, and any other may be found to lag at any
moment. What a leader asks of the controller is judged at any later moment, and the answer may be lost. The
metadata reaches each replica at any later moment, with or without the states in between.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any

from replicas.bounds import Bounds
from replicas.frozen import ReplicaKey, State, freeze
from segstore.errors import (
    FencedLeaderEpochError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    PreferredLeaderNotAvailableError,
    StaleBrokerEpochError,
    UnknownLeaderEpochError,
)
from segstore.leader_epochs import LeaderEpochCache
from segstore.replication.core.cluster import BrokerHeartbeat, BrokerSession
from segstore.replication.core.config import ControllerConfig, ReplicaConfig
from segstore.replication.core.controller import Controller
from segstore.replication.core.effects import (
    Append,
    Complete,
    Effects,
    Send,
    Truncate,
    TruncateFullyAndStartAt,
)
from segstore.replication.core.election import Election
from segstore.replication.core.follower import Follower
from segstore.replication.core.isr import Committed
from segstore.replication.core.log import ReplicaLog
from segstore.replication.core.messages import AlterPartitionReply, FetchedSpan, FetchRequest
from segstore.replication.core.partition import PartitionReplica
from segstore.replication.core.registration import NO_LEADER, BrokerRegistration, PartitionRegistration

NOW = 0
NEVER = 1 << 60
NEVER_IN_TIME = -1  # as replica.lag.time.max.ms: only who has all records is in sync
TOPIC = "t-0"
REFUSED = (FencedLeaderEpochError, UnknownLeaderEpochError, NotLeaderOrFollowerError)

Next = Iterator[tuple[str, State]]


class _Every:
    """Contains any step."""

    def __contains__(self, name: object) -> bool:
        return True


EVERY = _Every()


class World:
    """Replicas of one partition, and a controller. `partition` and `controller` make the parts: the
    production core's, or those of an old or broken algorithm.
    """

    def __init__(
        self,
        bounds: Bounds,
        partition: Callable[..., PartitionReplica] = PartitionReplica,
        controller: type[Controller] = Controller,
    ) -> None:
        self.bounds, self.partition, self.controller = bounds, partition, controller
        self.config = ReplicaConfig(bounds.min_isr, NEVER_IN_TIME)
        self.brokers: dict[int, BrokerRegistration] = {}
        self.shown: tuple[tuple[int, bool], ...] = ()
        self.made: dict[tuple[int, ReplicaKey], PartitionReplica] = {}

    # --- the beginning ---------------------------------------------------------------------------

    def fresh(self, replica: int, records: tuple[tuple[int, int], ...] = ()) -> PartitionReplica:
        """A replica that has just started, with what lies on its disk."""
        epochs = LeaderEpochCache((epoch, at) for at, (_, epoch) in enumerate(records))
        return self.partition(replica, ReplicaLog(epochs, 0, len(records)), self.brokers, self.config)

    def first(self) -> State:
        """All replicas are in the ISR, the first is elected, and nobody has heard of it."""
        everyone = tuple(range(self.bounds.replicas))
        keys = []
        for replica in everyone:
            made = self.fresh(replica)
            keys.append(freeze(made, ()))
            self.made[replica, keys[-1]] = made
        start = PartitionRegistration(everyone, everyone, 0)
        return State(tuple(keys), (start,), ((0, False),) * len(everyone))

    # --- steps -----------------------------------------------------------------------------------

    def next(self, state: State, only: Container[str] = EVERY) -> Next:
        """All that can happen, each by its name, and what comes of it; or `only` these steps."""
        for name, step in self.steps(state):
            if name not in only:
                continue
            move = Move(self, state)
            if step(move):
                after = move.state()
                if after != state and self._within(after):
                    yield name, after

    def _within(self, state: State) -> bool:
        """After an unclean election anything may be lost: that is not followed."""
        now = state.history[-1]
        return now.leader_epoch < self.bounds.epochs and not now.recovering

    def steps(self, state: State) -> Iterator[tuple[str, Callable[[Move], bool]]]:
        for replica, key in enumerate(state.replicas):
            if key.role.kind == "leader":
                yield from self._leader_steps(state, replica)
            else:
                yield f"{replica} fetches", lambda move, r=replica: self.fetch(move, r)
                if self.bounds.losses:
                    yield f"{replica} loses the answer to a fetch", lambda move, r=replica: self.lose(move, r)
                if len(state.late) < self.bounds.late:
                    yield (
                        f"{replica} fetches, its answer is late",
                        lambda move, r=replica: self.delay(move, r),
                    )
            for heard in state.history:
                if heard.partition_epoch > key.role.partition_epoch:
                    told = f"leader {heard.leader} of epoch {heard.leader_epoch}, ISR {heard.isr}"
                    yield (
                        f"{replica} hears of {told}",
                        lambda move, r=replica, h=heard: self.hear(move, r, h),
                    )
        for answer in state.late:
            yield f"{answer[0].replica} gets its late answer", lambda move, a=answer: self.arrive(move, a)
        yield from self._controller_steps(state)

    def _leader_steps(self, state: State, replica: int) -> Iterator[tuple[str, Callable[[Move], bool]]]:
        role = state.replicas[replica].role
        if state.written < self.bounds.records:
            yield f"{replica} appends record {state.written}", lambda move: self.append(move, replica)
        if role.pending:
            yield f"the controller judges {replica}'s ISR", lambda move: self.judge(move, replica, told=True)
            yield (
                f"the controller judges {replica}'s ISR, the answer is lost",
                lambda move: self.judge(move, replica, told=False),
            )
            for heard in state.history:
                if heard.partition_epoch == role.partition_epoch:
                    yield (
                        f"{replica} hears of its ISR again",
                        lambda move, h=heard: self.hear(move, replica, h),
                    )
        else:
            yield f"{replica} looks for who lags", lambda move: self.look(move, replica)

    def _controller_steps(self, state: State) -> Iterator[tuple[str, Callable[[Move], bool]]]:
        now = state.history[-1]
        for replica, (_, fenced) in enumerate(state.brokers):
            others = [other for other in now.replicas if other != replica]
            if fenced:
                yield f"the controller unfences {replica}", lambda move, r=replica: self.unfence(move, r)
            else:
                for first in others if now.leader == replica else others[:1]:
                    yield (
                        f"the controller fences {replica}, prefers {first}",
                        lambda move, r=replica, f=first: self.fence(move, r, f),
                    )
                if replica in now.isr and now.leader not in (replica, -1):
                    yield f"the controller elects {replica}", lambda move, r=replica: self.elect(move, r)
            if state.restarts < self.bounds.restarts:
                yield f"{replica} restarts", lambda move, r=replica: self.restart(move, r, None)
                for kept in {0, len(state.replicas[replica].records) - 1} - {-1}:
                    yield (
                        f"{replica} restarts with {kept} records",
                        lambda move, r=replica, k=kept: self.restart(move, r, k),
                    )

    # --- clients and metadata --------------------------------------------------------------------

    def append(self, move: Move, replica: int) -> bool:
        """A record with acks=all."""
        leader = move.part(replica).leader
        try:
            leader.check_enough_replicas()
        except NotEnoughReplicasError:
            return False
        move.records[replica] += ((move.written, leader.leader_epoch),)
        move.written += 1
        end = len(move.records[replica])
        move.carry_out(replica, leader.on_append(end))
        move.carry_out(replica, leader.wait(end, NEVER, end))
        return True

    def hear(self, move: Move, replica: int, heard: PartitionRegistration) -> bool:
        move.carry_out(replica, move.part(replica).become(heard, NOW))
        return True

    # --- fetches ---------------------------------------------------------------------------------

    def fetch(self, move: Move, replica: int) -> bool:
        """A fetch of one record, there and back."""
        asked = self.ask(move, replica)
        return asked is not None and self.take(move, *asked)

    def lose(self, move: Move, replica: int) -> bool:
        """A fetch whose answer is lost: the leader has noted it."""
        return self.ask(move, replica) is not None

    def delay(self, move: Move, replica: int) -> bool:
        asked = self.ask(move, replica)
        if asked is None or asked[1] is None:
            return False
        move.late = (*move.late, asked)
        return True

    def arrive(self, move: Move, answer: Any) -> bool:
        late = list(move.late)
        late.remove(answer)
        move.late = tuple(late)
        request = answer[0]
        if isinstance(move.part(request.replica).role, Follower):
            self.take(move, *answer)
        return True

    def ask(self, move: Move, replica: int) -> tuple[FetchRequest, Any, Any] | None:
        """The leader's answer, and the records in it. None where it refuses."""
        follower = move.part(replica).role
        assert isinstance(follower, Follower)
        if follower.leader < 0:
            return None
        request = follower.fetch(move.brokers[replica][0])
        leader = move.part(follower.leader)
        try:
            answer, effects = leader.on_fetch(request, NOW)
        except REFUSED:
            return None
        except OffsetOutOfRangeError:
            return request, None, leader.offsets(request.current_leader_epoch)
        move.carry_out(follower.leader, effects)
        records = move.records[follower.leader]
        at = request.fetch_offset
        return request, answer, records[at : at + 1] if answer.diverging is None else ()

    def take(self, move: Move, request: FetchRequest, answer: Any, records: Any) -> bool:
        replica = request.replica
        follower = move.part(replica).role
        assert isinstance(follower, Follower)
        if answer is None:
            move.carry_out(replica, follower.on_out_of_range(request, *records))
            return True
        fetched = self._fetched(request, records)
        for effect in follower.on_answer(request, answer, fetched):
            if isinstance(effect, Append):
                assert fetched is not None
                move.records[replica] += records[: effect.before - request.fetch_offset]
                end = len(move.records[replica])
                move.carry_out(replica, follower.on_append(end, answer, fetched))
            else:
                move.carry_out(replica, (effect,))
        return True

    def _fetched(self, request: FetchRequest, records: Any) -> FetchedSpan | None:
        if not records:
            return None
        at = request.fetch_offset
        return FetchedSpan(at + len(records), ((records[0][1], at),))

    # --- in-sync replicas ------------------------------------------------------------------------

    def look(self, move: Move, replica: int) -> bool:
        effects = move.part(replica).leader.on_time(NOW)
        move.carry_out(replica, effects)
        return bool(effects)

    def judge(self, move: Move, replica: int, told: bool) -> bool:
        leader, controller = move.part(replica).leader, move.controller()
        assert not isinstance(leader.isr, Committed)
        sent = leader.isr.sent
        try:
            effects = controller.alter_partition(TOPIC, sent, move.brokers[replica][0])
        except StaleBrokerEpochError:
            return False
        reply = next(each.message for each in effects if isinstance(each, Send))
        assert isinstance(reply, AlterPartitionReply)
        move.decided(controller)
        if told:
            move.carry_out(replica, leader.on_alter_reply(sent, reply, NOW))
        return told or len(effects) > 1

    # --- the controller --------------------------------------------------------------------------

    def fence(self, move: Move, replica: int, first: int) -> bool:
        """Its session is over, and `first` stands first among the others."""
        controller = move.controller(first)
        in_touch = (other for other in range(len(move.brokers)) if other != replica)
        controller.cluster.sessions = {other: BrokerSession(NOW) for other in in_touch}
        controller.on_time(NOW)
        move.decided(controller)
        return True

    def unfence(self, move: Move, replica: int) -> bool:
        controller = move.controller()
        epoch = move.brokers[replica][0]
        controller.heartbeat(BrokerHeartbeat(replica, epoch, epoch), NOW)
        move.decided(controller)
        return True

    def elect(self, move: Move, replica: int) -> bool:
        controller = move.controller(replica)
        try:
            controller.elect(TOPIC, Election.PREFERRED)
        except PreferredLeaderNotAvailableError:
            return False
        move.decided(controller)
        return move.history[-1].leader == replica

    def restart(self, move: Move, replica: int, kept: int | None) -> bool:
        """A process ends and comes back, without what was in memory. `kept` records are left after an unclean
        end, all after a clean one. Of the metadata it hears what holds since its registration, nothing older.
        """
        controller, epoch = move.controller(), move.brokers[replica][0]
        controller.register(replica, f"after {epoch}", epoch if kept is None else -1, NOW)
        move.restarts += 1
        move.records[replica] = move.records[replica][:kept]
        move.decided(controller)
        move.parts[replica] = self.fresh(replica, move.records[replica])
        move.parts[replica].role = self.registered(move, replica)
        return True

    def registered(self, move: Move, replica: int) -> Follower:
        """A follower that has heard of all before the present state."""
        return move.parts[replica].following(NO_LEADER, -1, move.history[-1].partition_epoch - 1)


class Move:
    """One step: the state before it, and the parts that it changes."""

    def __init__(self, world: World, before: State) -> None:
        self.world, self.before = world, before
        self.records = [key.records for key in before.replicas]
        self.parts: dict[int, PartitionReplica] = {}
        self.history, self.brokers, self.promised = before.history, before.brokers, before.promised
        self.written, self.restarts, self.late = before.written, before.restarts, before.late
        self._show_brokers()

    def _show_brokers(self) -> None:
        """All replicas see the registrations at once; the controller judges by them anyway."""
        if self.world.shown is self.brokers:
            return
        self.world.shown = self.brokers
        for replica, (epoch, fenced) in enumerate(self.brokers):
            self.world.brokers[replica] = BrokerRegistration(epoch, "", fenced)

    def part(self, replica: int) -> PartitionReplica:
        if replica not in self.parts:
            self.parts[replica] = self.world.made[replica, self.before.replicas[replica]].copy()
        return self.parts[replica]

    def carry_out(self, replica: int, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Truncate):
                self.records[replica] = self.records[replica][: effect.offset]
                self.part(replica).log.truncated(effect.offset, len(self.records[replica]))
            elif isinstance(effect, TruncateFullyAndStartAt):
                raise AssertionError("no log start offset moves here")
            elif isinstance(effect, Complete) and effect.error is None:
                self._promise(self.records[replica][: effect.ticket])  # type: ignore[misc]

    def _promise(self, records: tuple[tuple[int, int], ...]) -> None:
        if len(records) > len(self.promised):
            self.promised = records

    def controller(self, first: int = 0) -> Controller:
        """The controller, and the replica that stands first in the assignment."""
        made = self.world.controller(ControllerConfig(self.world.bounds.min_isr))
        now = self.history[-1]
        others = tuple(replica for replica in now.replicas if replica != first)
        made.partitions[TOPIC] = now._replace(replicas=(first, *others))
        made.cluster.brokers = dict(self.world.brokers)
        made.next_offset = max(epoch for epoch, _ in self.brokers) + 1
        return made

    def decided(self, controller: Controller) -> None:
        """Take what the controller has written."""
        now = controller.partitions[TOPIC]
        now = now._replace(replicas=tuple(sorted(now.replicas)), isr=tuple(sorted(now.isr)))
        if now.partition_epoch != self.history[-1].partition_epoch:
            self.history = (*self.history, now)
        brokers = controller.cluster.brokers
        self.brokers = tuple((brokers[replica].epoch, brokers[replica].fenced) for replica in sorted(brokers))

    def state(self) -> State:
        """The state after the step."""
        keys = list(self.before.replicas)
        for replica, part in self.parts.items():
            keys[replica] = freeze(part, self.records[replica])
            self.world.made.setdefault((replica, keys[replica]), part)
            if keys[replica].role.kind == "leader":
                self._promise(self.records[replica][: part.log.high_watermark])
        return State(
            tuple(keys),
            self._still_heard(keys),
            self.brokers,
            self.promised,
            self.written,
            self.restarts,
            self.late,
        )

    def _still_heard(self, keys: list[ReplicaKey]) -> tuple[PartitionRegistration, ...]:
        """What is in the metadata that somebody may hear of: of each leader epoch the last state, and what a
        leader knows already. Who has not heard of an epoch yet could hear of its earlier states, too: until
        its leader knows of it, members can only be removed, so with an earlier state it waits for more.
        """
        known = {key.role.partition_epoch for key in keys if key.role.kind == "leader"}
        oldest = min(key.role.partition_epoch for key in keys)
        last = {each.leader_epoch: each.partition_epoch for each in self.history}
        return tuple(
            each
            for each in self.history
            if each.partition_epoch in known
            or (each.partition_epoch == last[each.leader_epoch] and each.partition_epoch > oldest)
            or each is self.history[-1]
        )
