"""`LocalReplica`: one replica of a partition in a directory of this process: its role, the acknowledgements
of its appends, and its native tail (Kafka: Partition).

On disk is what `storage.log.replica` writes. Threads: the directory's own thread alone changes the log for
replication (`become`, `step`), so that a disk that hangs holds up no other directory. Any thread may make the
other calls: under `lock`, which nobody holds while a disk works, they inform the core, and carry out its
effects in memory. An application's thread only notes its append, and waits: so Ctrl-C in it comes between no
two effects.

While all replicas have the whole log, their native tails are open, and an application's append is one call
of C for all of them. The core hears of such appends at its next call (`_catch_up`).

- By threads each directory's own thread opens and pauses the tails there (`_offer`, `open_by_threads`,
  `_recall`), with no lock but the append token, and a follower is written by its directory's native thread.
  So nobody waits for another directory's disk.
- `inline` the appender writes all replicas. A thread opens the tails of all replicas at once (`open_tail`),
  and pauses them before it calls the core. Locks are taken in the order leader, follower, append token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from segstore._native import lib
from segstore.errors import (
    NotLeaderOrFollowerError,
    SegstoreError,
)
from segstore.mutex import Mutex
from segstore.replication.clock import now_ms
from segstore.replication.core.effects import (
    Complete,
    Effect,
    Effects,
    Send,
)
from segstore.replication.core.follower import Follower
from segstore.replication.core.leader import Leader
from segstore.replication.core.messages import (
    AlterPartition,
    AlterPartitionReply,
    FetchAnswer,
    FetchRequest,
)
from segstore.replication.core.partition import PartitionReplica as Core
from segstore.replication.core.registration import NO_LEADER, BrokerRegistration, PartitionRegistration
from segstore.replication.follower_log import FollowerLog, log_of
from segstore.replication.metadata.image import PartitionKey
from segstore.replication.replica_fetch import Reads, ReplicaFetch
from segstore.replication.tail_openings import TailOpenings
from segstore.replication.waiting_appends import WaitingAppends, answer
from segstore.storage.store.replica_lags import bytes_from

if TYPE_CHECKING:
    from segstore.replication.core.config import ReplicaConfig
    from segstore.storage.log.partition import Partition
    from segstore.storage.log.replica import Replica, Truncated
    from segstore.storage.segment.disk_thread import DiskThread

_nobody_opens = nullcontext()
ALL = -1


class Links(Reads, Protocol):
    """The calls of a replica to its store. None of them waits."""

    def find(self, broker: int, key: PartitionKey) -> LocalReplica | None:
        """Return another replica, if it is online."""

    def send(self, sender: LocalReplica, message: AlterPartition) -> None:
        """Send a leader's proposal to the controller."""

    def appended(self, leader: LocalReplica) -> None:
        """Have the followers fetch; without one, have the leader's directory call `settle_alone`."""

    def shown(self, replica: LocalReplica) -> None:
        """Notify readers that the high watermark of a leader has moved."""

    def follows(self, replica: LocalReplica) -> None:
        """Have this replica fetch, perhaps from another leader than before."""

    def leads(self, replica: LocalReplica) -> None:
        """Send appends and reads to this replica from now on, and have the followers fetch."""

    def resume(self, replica: LocalReplica, work: Callable[[], bool | None]) -> None:
        """Have `work` called in the thread of the replica's own directory, which then fetches on, or later if
        `work` returns None.
        """

    def opens(self, leader: LocalReplica) -> None:
        """Have `open_by_threads` called in the thread of the leader's own directory."""


class ReplicaHost(NamedTuple):
    """The surroundings that all replicas of one directory share: `broker` is the directory's id, `brokers`
    are the registrations. `thread` writes for tails of followers; None: the appender writes (`inline`).
    """

    broker: int
    brokers: Mapping[int, BrokerRegistration]
    links: Links
    fetch_max_bytes: int
    thread: DiskThread | None


class LocalReplica:
    """One replica; `broker` is the id of its directory."""

    def __init__(
        self,
        key: PartitionKey,
        partition: Partition,
        replica: Replica,
        config: ReplicaConfig,
        host: ReplicaHost,
    ) -> None:
        self.broker, self._brokers, self._links, max_bytes, self._thread = host
        self._inline, self._changing = host.thread is None, False
        self._handed_on = False
        """Whether appends may have come to all replicas by one call since this one leads."""
        self._may_be_open = False
        """Whether this follower's tail may have brought appends that the core has not heard of."""
        self._openings = TailOpenings()
        self.key, self.partition, self.replica = key, partition, replica
        self.lock = Mutex()
        self.core = Core(self.broker, log_of(replica), self._brokers, config)
        self.log = FollowerLog(replica, self.lock, self._carry_out)
        self.asked = False
        """Whether the directory's thread has been asked to fetch, and has not begun yet."""
        self.paused = False
        """Whether this replica does not fetch, since its log is about to be cut: set by the directory's
        thread."""
        self.shown = partial(self._links.shown, self)
        """Called to notify readers of an append that was written to all replicas."""
        self._waiting = WaitingAppends(key)
        self._fetch = ReplicaFetch(self, self._links, max_bytes)
        partition.acks = self

    def __repr__(self) -> str:
        return f"<LocalReplica {self.key} of directory {self.broker}>"

    # --- applications that append (storage.log's Acknowledger) -----------------------------------

    def check(self, acks: int) -> None:
        """Raise NotEnoughReplicasError, before an append with acks=all (R23); NotLeaderOrFollowerError,
        ReplicaOfflineError.
        """
        leader = self.core.leader
        if self.partition.tail.native.is_fenced(leader.leader_epoch):
            raise NotLeaderOrFollowerError(f"{self!r} does not lead the partition any more")
        if acks == ALL:
            leader.check_enough_replicas()

    def wait(self, end_offset: int, acks: int, timeout_ms: float) -> None:
        """Let the followers fetch the records up to `end_offset`; with acks=all wait until these are
        committed (R23).

        Raises NotEnoughReplicasAfterAppendError, NotLeaderOrFollowerError, RequestTimedOutError: the records
        are in this log, and may or may not be committed later.
        """
        if acks != ALL:
            self._links.appended(self)
            return
        told = self._waiting.add(end_offset, timeout_ms)
        self._links.appended(self)
        if not isinstance(self.core.role, Leader):  # `_become` changes the role, and then looks at `_waiting`
            self._waiting.refuse()
        self._waiting.await_answer(told, timeout_ms)

    def failed(self, error: Exception) -> None:
        """Note that the disk has refused an append (R32)."""
        self._links.failed(self.broker, error)

    def bytes_from(self, offset: int) -> int:
        """Return `replica_lags.bytes_from` of this log; -1 also if the log was removed."""
        try:
            return bytes_from(self.replica.written, offset)
        except SegstoreError:
            return -1

    # --- the leader, any thread ------------------------------------------------------------------

    def fence(self, epoch: int) -> None:
        """Let no append begin under a leader epoch below `epoch`: another replica was elected, and `become`,
        which reports the election, may wait for this directory's disk.
        """
        self.partition.tail.fence(epoch)

    def settle(self) -> None:
        """Report the log end offset and the waiting appends to the core."""
        with self.lock:
            self._settle()
        if self._inline:  # without followers, whose threads would open the tail
            self.open_tail()

    def settle_alone(self) -> None:
        """Settle a leader without followers in sync, and open its tail. Called by the directory's thread."""
        self.settle()
        if self.takes_tails():
            self.open_by_threads()

    def hear(self) -> None:
        """Report the appends of the native tail to the core, if there may be any."""
        if self._handed_on:
            with self.lock:
                self._settle()

    def answer_waiting(self) -> None:
        """Answer an append that began to wait after the tails were opened: all replicas had its records, so
        no follower fetches any more.
        """
        if self._waiting:
            self.settle()

    def _settle(self) -> None:
        leader = self.core.role
        if not isinstance(leader, Leader):
            self._waiting.refuse()
            return
        log = self.core.log
        if self._inline:
            self._pause()
        self.note_start()
        if (self._inline or self._handed_on) and (shown := self.replica.high_watermark) > log.high_watermark:
            self._carry_out(leader.on_handed_on(shown, now_ms()))
        waiting = self._waiting.take()
        # Read after `_waiting`: so the log has the records of each request. As long as the tail is not
        # paused, this end leaves out records that C has not shown.
        end = self.replica.written.end_offset
        if end > log.end_offset:
            self._carry_out(leader.on_append(end))
        for request in waiting:
            self._carry_out(leader.wait(*request))

    def _catch_up(self) -> None:
        """Report the appends of the native tail to the core; the caller holds the lock."""
        if isinstance(self.core.role, Leader):
            self._settle()
        elif self.core.role is not None:
            self._pause()
            log, end = self.core.log, self.replica.log_end_offset
            if end > log.end_offset:
                log.appended(end)
                log.high_watermark = max(log.high_watermark, self.replica.high_watermark)

    def note_start(self) -> None:
        """Report to the core the log start offset that retention, or a request, has moved."""
        log, start = self.core.log, self.replica.start_offset
        if start > log.start_offset:
            log.start_offset, log.high_watermark = start, max(log.high_watermark, start)
            log.epochs.truncate_from_start(start)

    def fetch(self, request: FetchRequest, synced: int) -> FetchAnswer:
        """Answer a follower, whose log is durable below `synced` (R8, R20). Raises as
        `PartitionReplica.on_fetch`.
        """
        with self.lock:
            self._settle()
            own = self.partition.recovery_point  # under the lock: see `in_sync`
            answer, effects = self.core.on_fetch(request, now_ms(), synced, own)
            self._carry_out(effects)
        return answer

    def offsets(self, current_leader_epoch: int) -> tuple[int, int]:
        """Return log start and log end offset (R12). Raises as `PartitionReplica.offsets`."""
        with self.lock:
            self._settle()
            return self.core.offsets(current_leader_epoch)

    @property
    def in_sync(self) -> frozenset[int]:
        """Return the replicas in the ISR, and in a proposal of it, if this replica leads. A replica that
        joins the ISR after a sync of this log has synced the same records (R20).
        """
        with self.lock:
            role = self.core.role
            return role.isr.maximal if isinstance(role, Leader) else frozenset()

    def on_alter_reply(self, sent: AlterPartition, reply: AlterPartitionReply) -> None:
        """Take the controller's answer (R21)."""
        with self.lock:
            if isinstance(self.core.role, Leader):
                self._settle()
                self._carry_out(self.core.role.on_alter_reply(sent, reply, now_ms()))

    def on_time(self) -> None:
        """Look for followers that lag (R19), and for requests whose time is over. While appends write all
        replicas there are neither.
        """
        tail = self.partition.tail
        if tail.may_be_open:
            if tail.native.is_open:  # a lock could wait for the append under way, and so for its disk
                return
            if not self._inline:  # an interrupt has come to the append that a follower lacks
                self._links.opens(self)
        with self.lock:
            self._settle()
            if isinstance(leader := self.core.role, Leader):
                self._carry_out(leader.on_time(now_ms()))
                self._carry_out(leader.expire(now_ms()))

    def configure(self, config: ReplicaConfig) -> None:
        """Take changed settings. Called by the directory's thread."""
        if self.core.config == config:
            return
        if not self._inline:
            self._recall()
        with self.lock:
            self._settle()
            self._carry_out(self.core.configure(config, now_ms()))

    def go_offline(self) -> None:
        """Stop: the directory has failed, or the replica is taken away (R32)."""
        with self.lock:
            self._carry_out(self.core.go_offline())
            self._waiting.refuse()
        # After the role has changed: an append that is refused asks for the leader, and a thread that opens
        # the tail looks at the role.
        if self._inline:
            self.partition.tail.pause()
        else:
            self.partition.tail.quit()

    def _carry_out(self, effects: Effects) -> list[Effect]:
        """Carry out effects in memory; return the effects that change files. The caller holds the lock."""
        of_files: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Complete):
                answer(effect)
            elif isinstance(effect, Send):
                self._links.send(self, effect.message)
            elif not self.log.shows(effect):
                of_files.append(effect)
            elif isinstance(self.core.role, Leader):
                self.replica.recent.drop_below(self.core.log.high_watermark)
                self._links.shown(self)
        return of_files

    # --- appends to all replicas at once -----------------------------------------------------------

    def open_tail(self) -> None:
        """Let applications' appends write all replicas from now on, if this replica leads, and each replica
        has the whole log. Called by a directory's thread.
        """
        with self.lock:
            leader = self.core.role
            if self._changing or self.partition.tail.may_be_open or not isinstance(leader, Leader):
                return
            self._settle()
            if not leader.is_whole:
                return
            tails = []
            for broker in leader.remotes:
                follower = self._links.find(broker, self.key)
                if follower is None or not follower._open_to(leader):
                    return
                tails.append(follower.partition.tail.native)
            tail, epoch = self.partition.tail, leader.leader_epoch
            with tail.token:
                tail.open_leader(self.partition.validator, epoch, leader.log.end_offset, tails)

    def _open_to(self, leader: Leader) -> bool:
        """Open this follower's tail to its leader's, and return True, if log end offset and high watermark
        of both are the same, and the follower has neither another leader nor a change of its log under way.
        """
        with self.lock:
            role, log, led = self.core.role, self.core.log, leader.log
            if self._changing or not isinstance(role, Follower):
                return False
            self._catch_up()
            if (role.leader, role.leader_epoch) != (leader.replica_id, leader.leader_epoch):
                return False
            if log.end_offset != led.end_offset or log.start_offset < led.start_offset:
                return False
            told = FetchAnswer(None, led.high_watermark, led.start_offset, led.end_offset)
            self._carry_out(role.on_answer(role.fetch(-1), told, None))
            tail = self.partition.tail
            with tail.token:
                return tail.open_follower(self.partition.validator, leader.leader_epoch, log.end_offset)

    def _offer(self, leader: LocalReplica) -> None:
        """Open the tail of this follower if it has the leader's whole log, all of it committed, and the last
        append was one that C can make. Called by the directory's thread.
        """
        if not 0 < self._fetch.last_bytes <= lib.SEG_HANDED_ROOM or not leader.takes_tails():
            return
        with self.lock:
            role, led, log = self.core.role, leader.core.role, self.core.log
            if not isinstance(role, Follower) or not isinstance(led, Leader):
                return
            epoch, end = role.leader_epoch, log.end_offset
            if (role.leader, epoch, log.high_watermark, led.log.end_offset) != (
                led.replica_id,
                led.leader_epoch,
                end,
                end,
            ):
                return
        tail = self.partition.tail
        self._may_be_open = True
        with tail.token:
            opened = tail.open_follower(self.partition.validator, epoch, end, self._thread)
        if self.core.role is None:  # another thread has called `go_offline` since
            tail.quit()
        elif opened:
            self._links.opens(leader)

    def takes_tails(self) -> bool:
        """Return whether it is time that threads open this leader's tail."""
        return not self._inline and self._openings.are_due()

    def open_by_threads(self) -> None:
        """Open the tail of a leader, once all followers have opened their tails and have the whole log.
        Called by the directory's thread.
        """
        tail = self.partition.tail
        native = tail.native
        if native.is_open and all(each.is_open for each in native.followers):
            return
        hidden = tail.may_be_open and native.c.hidden
        self._recall()
        if hidden:
            self._links.appended(self)
        with self.lock:
            leader = self.core.role
            if not isinstance(leader, Leader) or not leader.is_whole:
                return
            epoch, end = leader.leader_epoch, leader.log.end_offset
            followers = [self._links.find(broker, self.key) for broker in leader.remotes]
        if not all(each is not None and each._is_offered for each in followers):
            for each in followers:
                if each is not None and not each._is_offered:
                    self._links.follows(each)
            return
        natives = [each.partition.tail.native for each in followers if each is not None]
        self._handed_on = True  # first: from now on the core does not hear of appends
        with tail.token:
            tail.open_leader(self.partition.validator, epoch, end, natives)
            if tail.may_be_open:
                self._openings.began(native)
        if self.core.role is None:  # as in `_offer`
            tail.quit()

    @property
    def _is_offered(self) -> bool:
        native = self.partition.tail.native
        return native.is_open and bool(native.c.follows)

    def _recall(self) -> None:
        """Pause the tail, and report its appends to the core. Called by the thread that alone opens tails."""
        self._pause()
        with self.lock:
            self._catch_up()
        self._may_be_open = False

    def _pause(self) -> None:
        """Let no append use the native tail any more."""
        tail = self.partition.tail
        if tail.may_be_open:
            with tail.token:
                """Taking the token pauses the tail."""

    def _gets_from(self, leader: LocalReplica) -> bool:
        """Return whether an append to the leader's log writes this log by the same call."""
        if not self._is_offered:
            return False
        leading = leader.partition.tail.native
        return leading.is_open and self.partition.tail.native in leading.followers

    @contextmanager
    def _changes(self) -> Iterator[None]:
        """Run a block that changes role or log, during which nobody opens the tail."""
        if not self._inline:
            self._recall()
            yield
            return
        with self.lock:
            self._catch_up()
            self._changing = True
        try:
            yield
        finally:
            self._changing = False

    def resume(self, work: Callable[[], bool | None]) -> None:
        """Call `Links.resume` for this replica."""
        self._links.resume(self, work)

    def fetches(self) -> AbstractContextManager[None]:
        """Return `_changes` for a fetch: by threads, only if the tail may be open."""
        return self._changes() if self._inline or self._may_be_open else _nobody_opens

    # --- the directory's thread ------------------------------------------------------------------

    def become(self, registration: PartitionRegistration) -> None:
        """Take the partition's state in the metadata (R22). Raises StorageError."""
        if self.core.role is not None:
            with self._changes():
                self._become(registration)

    def _become(self, registration: PartitionRegistration) -> None:
        role = self.core.role
        self._fetch.begin_anew()
        if isinstance(role, Leader) and not _stays(role, registration, self.broker):
            self.replica.follow()  # so the log has all appends that were not refused, before the role changes
            self.settle()
        self._handed_on, self._fetch.last_bytes = False, 0
        self.log.apply(self.core.log, lambda: self.core.become(registration, now_ms()))
        if isinstance(self.core.role, Leader):
            self.settle()
            self._links.leads(self)
        else:
            self._waiting.refuse()
            self._links.follows(self)

    def cut_damaged(self, offset: int) -> Truncated:
        """Cut the log as `Replica.cut_damaged`; the replica is paused, and not in the ISR. Raises
        NotLeaderOrFollowerError if it does not follow, StorageError.
        """
        if not isinstance(self.core.role, Follower):
            raise NotLeaderOrFollowerError(f"{self!r} does not follow, so it can't be cut")
        self._fetch.forget()
        self._recall()
        cut = self.replica.cut_damaged(offset)
        with self.lock:
            if self.replica.epochs:
                self.core.log.truncated(cut.end_offset, cut.end_offset)
            else:
                self.core.log.started_over(cut.end_offset)
        return cut

    @property
    def leader_id(self) -> int:
        """Return the id of the leader that this replica follows, -1 without one."""
        role = self.core.role
        return role.leader if isinstance(role, Follower) else NO_LEADER

    def step(self) -> bool | None:
        """Fetch once from the leader, if this replica follows one. Return whether there may be more records;
        None if the leader can't answer yet; False also while records are read, which come by `resume`.

        Raises StorageError of this replica's own disk, CorruptRecordError for damaged batches of the leader.
        """
        role, own = self.core.role, self._brokers.get(self.broker)
        if not isinstance(role, Follower) or role.leader == NO_LEADER or own is None:
            return False
        if self._fetch.is_reading or self.paused:
            return False
        leader = self._links.find(role.leader, self.key)
        if leader is None:
            return None
        if self._gets_from(leader):
            leader.answer_waiting()
            return False
        with self.fetches():
            more = self._fetch.once(role, leader, own.epoch)
        if more is False and self._inline:
            leader.open_tail()
        elif more is False and not self._fetch.is_reading:
            self._offer(leader)
        return more


def _stays(role: Leader, registration: PartitionRegistration, broker: int) -> bool:
    """Return whether a leader stays leader in its leader epoch, or the registration is an older one."""
    if registration.partition_epoch < role.partition_epoch:
        return True
    return registration.leader == broker and registration.leader_epoch == role.leader_epoch
