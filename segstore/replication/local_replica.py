"""`LocalReplica`: one replica of a partition in a directory of this process: its role, the acknowledgements
of its appends, and its native tail, the data structure through which C code appends to the log (Kafka:
Partition).

On disk are the partition's log and checkpoints, which `storage.log.replica` writes. Threads: only the
directory's own thread changes the log for replication (`become`, `step`), so that other directories go on if
this disk hangs. Any thread may call the other methods, which call `core` (the replication protocol, without
files and threads) under `lock`, and carry out the returned effects in memory. No thread holds `lock` during
disk work. A thread that appends carries out no effects: it registers its append, and waits. So Ctrl-C, which
interrupts that thread, can't come between two effects.

If all replicas have the whole log, their native tails are opened: an append is then one call of C code, which
writes to all replicas. Later `core` gets the new log end offset (`_catch_up`). There are two modes:

- With threads, each directory's own thread opens and pauses the tails of that directory (`_offer`,
  `open_by_threads`, `_recall`). Meanwhile it holds no lock except for `Tail.token`, the append token. Each
  directory's native thread writes batches to the followers in that directory, so no thread waits for the disk
  of another directory.
- With the setting `inline`, the appending thread writes to all replicas. One thread opens the tails of all
  replicas together (`open_tail`), and pauses them before it calls `core`. The order of locks is: `lock` of
  the leader, `lock` of the follower, append token.
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
    StoreClosedError,
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
    """Methods of the store that a replica calls. None of them blocks."""

    def find(self, broker: int, key: PartitionKey) -> LocalReplica | None:
        """Return the partition's replica in the directory `broker`, None if the replica is offline or does
        not exist.
        """

    def send(self, sender: LocalReplica, message: AlterPartition) -> None:
        """Send a leader's proposal to the controller."""

    def appended(self, leader: LocalReplica) -> None:
        """Ask the followers to fetch. If no follower is in sync, ask the leader's directory to call
        `settle_alone`, too.
        """

    def shown(self, replica: LocalReplica) -> None:
        """Notify readers that the high watermark of a leader has moved."""

    def follows(self, replica: LocalReplica) -> None:
        """Ask the replica's directory to fetch for the replica, whose leader may have changed."""

    def leads(self, replica: LocalReplica) -> None:
        """Direct appends and reads to this replica from now on, and ask the followers to fetch."""

    def resume(self, replica: LocalReplica, work: Callable[[], bool | None]) -> None:
        """Ask the thread of the replica's directory to call `work`, and to fetch again. If `work` returns
        None, the fetch follows after the fetch backoff.
        """

    def opens(self, leader: LocalReplica) -> None:
        """Ask the thread of the leader's directory to call `open_by_threads`."""


class ReplicaHost(NamedTuple):
    """The context that all replicas of one directory share. `broker` is the directory's id. `brokers` has the
    broker registrations. `thread` is the native thread that writes batches to this directory's followers.
    With the setting `inline`, `thread` is None, because the appending thread writes these batches.
    """

    broker: int
    brokers: Mapping[int, BrokerRegistration]
    links: Links
    fetch_max_bytes: int
    thread: DiskThread | None


class LocalReplica:
    """One replica of a partition. `broker` is the id of its directory."""

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
        """Whether C code may have appended to the logs of all replicas after this replica became
        leader.
        """
        self._may_be_open = False
        """Whether C code may have appended batches to this follower's log that `core` does not know yet."""
        self._openings = TailOpenings()
        self.key, self.partition, self.replica = key, partition, replica
        self.lock = Mutex()
        self.core = Core(self.broker, log_of(replica), self._brokers, config)
        self.log = FollowerLog(replica, self.lock, self._carry_out)
        self.asked = False
        """Whether a fetch is queued for the directory's thread."""
        self.paused = False
        """Whether this replica must not fetch, because `heal` truncates its log. Set by the directory's
        thread.
        """
        self.shown = partial(self._links.shown, self)
        """Notifies readers. Called after C code has appended to all replicas."""
        self._waiting = WaitingAppends(key)
        self._fetch = ReplicaFetch(self, self._links, max_bytes)
        partition.acks = self

    def __repr__(self) -> str:
        return f"<LocalReplica {self.key} of directory {self.broker}>"

    # --- applications that append (storage.log's Acknowledger) -----------------------------------

    def check(self, acks: int) -> None:
        """Check that an append is allowed: this replica must be the leader. With acks=all, enough replicas
        must be in sync, too (R23). Raises NotEnoughReplicasError, NotLeaderOrFollowerError,
        ReplicaOfflineError.
        """
        leader = self.core.leader
        if self.partition.tail.native.is_fenced(leader.leader_epoch):
            raise NotLeaderOrFollowerError(f"{self!r} does not lead the partition any more")
        if acks == ALL:
            leader.check_enough_replicas()

    def wait(self, end_offset: int, acks: int, timeout_ms: float) -> None:
        """Ask the followers to fetch the appended records, which end at `end_offset`. With acks=all, wait
        until these records are committed (R23).

        Raises NotEnoughReplicasAfterAppendError, NotLeaderOrFollowerError, RequestTimedOutError. After one of
        these errors the records are in this log, and may still be committed later.
        """
        if acks != ALL:
            self._links.appended(self)
            return
        pending = self._waiting.add(end_offset, timeout_ms)
        self._links.appended(self)
        # If `_become` called `refuse` before the `add` above, nobody else refuses this append.
        if not isinstance(self.core.role, Leader):
            self._waiting.refuse()
        self._waiting.await_answer(pending, timeout_ms)

    def failed(self, error: Exception) -> None:
        """Report to the store that an append failed with an error of the disk (R32)."""
        self._links.failed(self.broker, error)

    def bytes_from(self, offset: int) -> int:
        """Return the number of bytes in this log from `offset` on, -1 if the number is unknown."""
        try:
            return bytes_from(self.replica.written, offset)
        except SegstoreError:
            return -1

    # --- the leader, any thread ------------------------------------------------------------------

    def fence(self, epoch: int) -> None:
        """Refuse new appends under a leader epoch below `epoch`. Called as soon as another replica is
        elected. `become` is called later, because it may wait for this directory's disk.
        """
        self.partition.tail.fence(epoch)

    def settle(self) -> None:
        """Pass the log end offset and the waiting appends to `core`."""
        with self.lock:
            self._settle()
        # A follower's fetch opens the native tail, through which C code appends to the log. A leader without
        # followers gets no fetch, so the tail is opened here.
        if self._inline:
            self.open_tail()

    def shows_committed(self) -> bool:
        """Return whether this replica leads, and its readers see all records that were committed before its
        leader epoch began (R38).
        """
        role = self.core.role
        if not isinstance(role, Leader):
            return False
        try:
            # `core` has a new high watermark a moment before the readers do, so the readers' view is asked.
            return self.partition.visible.view.end_offset >= role.epoch_start_offset
        except StoreClosedError:  # the topic was deleted
            return False

    def settle_alone(self) -> None:
        """Pass this leader's appends to `core`. If an opening is due, open the leader's native tail, through
        which C code appends to the log. Called by the directory's thread if no in-sync follower fetches from
        the leader.
        """
        self.settle()
        if self.takes_tails():
            self.open_by_threads()

    def hear(self) -> None:
        """Pass the log end offset to `core` if C code may have appended to the log."""
        if self._handed_on:
            with self.lock:
                self._settle()

    def answer_waiting(self) -> None:
        """Answer appends that still wait although all replicas have their records. While C code appends to
        all replicas, no follower fetches, so no fetch answers these appends.
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
        # The waiting requests are read before `end`, so that no request ends above `end`. Records that native
        # code has written but not published yet are above `end`.
        end = self.replica.written.end_offset
        if end > log.end_offset:
            self._carry_out(leader.on_append(end))
        for request in waiting:
            self._carry_out(leader.wait(*request))

    def _catch_up(self) -> None:
        """Pass the log end offset to `core`, because C code may have appended. The caller holds the lock."""
        if isinstance(self.core.role, Leader):
            self._settle()
        elif self.core.role is not None:
            self._pause()
            log, end = self.core.log, self.replica.log_end_offset
            if end > log.end_offset:
                log.appended(end)
                log.high_watermark = max(log.high_watermark, self.replica.high_watermark)

    def note_start(self) -> None:
        """Pass the log start offset to `core` if retention or a delete request has moved it."""
        log, start = self.core.log, self.replica.start_offset
        if start > log.start_offset:
            log.start_offset, log.high_watermark = start, max(log.high_watermark, start)
            log.epochs.truncate_from_start(start)

    def fetch(self, request: FetchRequest, synced: int) -> FetchAnswer:
        """Return the answer to a follower's fetch. The follower's log is durable below `synced` (R8, R20).
        Raises the errors of `PartitionReplica.on_fetch`.
        """
        with self.lock:
            self._settle()
            # The recovery point is read under the lock: `in_sync` promises that a replica joins the ISR later
            # only if it has synced all records below this point.
            own = self.partition.recovery_point
            answer, effects = self.core.on_fetch(request, now_ms(), synced, own)
            self._carry_out(effects)
        return answer

    def offsets(self, current_leader_epoch: int) -> tuple[int, int]:
        """Return (log start offset, log end offset) (R12). Raises the errors of
        `PartitionReplica.offsets`.
        """
        with self.lock:
            self._settle()
            return self.core.offsets(current_leader_epoch)

    @property
    def in_sync(self) -> frozenset[int]:
        """Return the ids of the replicas in the ISR, and of the replica that an ISR proposal in flight adds.
        If this replica is not the leader, the set is empty. A replica may join the ISR later only after it
        has synced all records that this log has synced (R20).
        """
        with self.lock:
            role = self.core.role
            return role.isr.maximal if isinstance(role, Leader) else frozenset()

    def on_alter_reply(self, sent: AlterPartition, reply: AlterPartitionReply) -> None:
        """Handle the controller's answer to an ISR proposal (R21)."""
        with self.lock:
            if isinstance(self.core.role, Leader):
                self._settle()
                self._carry_out(self.core.role.on_alter_reply(sent, reply, now_ms()))

    def on_time(self) -> None:
        """Propose to remove lagging followers from the ISR (R19), and fail appends whose deadline has come.
        While C code appends to all replicas, do nothing: no follower lags, and no append waits.
        """
        tail = self.partition.tail
        if tail.may_be_open:
            # Nothing is done: to take the lock could mean to wait for an append, which waits for a disk.
            if tail.native.is_open:
                return
            # Ctrl-C may have interrupted an append by C code before a follower got its batch. `opens` then
            # makes the followers fetch.
            if not self._inline:
                self._links.opens(self)
        with self.lock:
            self._settle()
            if isinstance(leader := self.core.role, Leader):
                self._carry_out(leader.on_time(now_ms()))
                self._carry_out(leader.expire(now_ms()))

    def configure(self, config: ReplicaConfig) -> None:
        """Apply changed settings. Called by the directory's thread."""
        if self.core.config == config:
            return
        if not self._inline:
            self._recall()
        with self.lock:
            self._settle()
            self._carry_out(self.core.configure(config, now_ms()))

    def go_offline(self) -> None:
        """Stop the replica, because its directory has failed or the replica is removed (R32)."""
        with self.lock:
            self._carry_out(self.core.go_offline())
            self._waiting.refuse()
        # The native tail is closed after the role was changed: an append that C code then refuses is tried by
        # Python code, and finds no leader here. A thread that is opening the tail sees the new role, and
        # closes the tail.
        if self._inline:
            self.partition.tail.pause()
        else:
            self.partition.tail.quit()

    def _carry_out(self, effects: Effects) -> list[Effect]:
        """Carry out the effects that change only memory, and return the effects that change files. The caller
        holds the lock.
        """
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
        """If this replica is the leader and all replicas have the whole log, open the native tails of all
        replicas: one call of C code then appends to all replicas. Called only with the setting `inline`.
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
        """Open this follower's native tail, so that C code writes the leader's appends to this log, too.
        Return whether the tail is open. It stays closed if this replica follows another leader, is changing
        its log, or has a log that begins below the leader's log or has another end offset.
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
            answered = FetchAnswer(None, led.high_watermark, led.start_offset, led.end_offset)
            self._carry_out(role.on_answer(role.fetch(-1), answered, None))
            tail = self.partition.tail
            with tail.token:
                return tail.open_follower(self.partition.validator, leader.leader_epoch, log.end_offset)

    def _offer(self, leader: LocalReplica) -> None:
        """Open this follower's native tail, so that C code writes the leader's appends to this log, too. Do
        nothing if no opening is due, this replica lacks records, records are not committed, or the last fetch
        was too large for an append by C code. Called by the directory's thread.
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
        if self.core.role is None:  # Another thread has called `go_offline` during the opening.
            tail.quit()
        elif opened:
            self._links.opens(leader)

    def takes_tails(self) -> bool:
        """Return whether the directories' threads may now open this leader's native tail, so that C code
        appends to all replicas.
        """
        return not self._inline and self._openings.are_due()

    def open_by_threads(self) -> None:
        """Open this leader's native tail, through which C code appends to all replicas, if all followers have
        the whole log and open tails. If a follower's tail is closed, ask that follower to fetch: it opens its
        tail after the fetch. Called by the directory's thread.
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
        # Set before the tail opens, so that `hear` passes even the first append by C code to `core`.
        self._handed_on = True
        with tail.token:
            tail.open_leader(self.partition.validator, epoch, end, natives)
            if tail.may_be_open:
                self._openings.began(native)
        if self.core.role is None:  # Another thread has called `go_offline` during the opening.
            tail.quit()

    @property
    def _is_offered(self) -> bool:
        native = self.partition.tail.native
        return native.is_open and bool(native.c.follows)

    def _recall(self) -> None:
        """Stop appends by C code, and pass the log end offset to `core`. Called by the directory's thread."""
        self._pause()
        with self.lock:
            self._catch_up()
        self._may_be_open = False

    def _pause(self) -> None:
        """Close the native tail: C code appends nothing until the tail is opened again."""
        tail = self.partition.tail
        if tail.may_be_open:
            with tail.token:
                """Taking the append token closes the native tail."""

    def _gets_from(self, leader: LocalReplica) -> bool:
        """Return whether C code that appends to the leader's log appends to this log, too."""
        if not self._is_offered:
            return False
        leading = leader.partition.tail.native
        return leading.is_open and self.partition.tail.native in leading.followers

    @contextmanager
    def _changes(self) -> Iterator[None]:
        """A context manager: C code does not append during its block, which changes the role or the log."""
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
        """Ask the directory's thread to call `work`, and to fetch again."""
        self._links.resume(self, work)

    def fetches(self) -> AbstractContextManager[None]:
        """Return a context manager for a fetch. C code does not append to this log during the fetch."""
        return self._changes() if self._inline or self._may_be_open else _nobody_opens

    # --- the directory's thread ------------------------------------------------------------------

    def become(self, registration: PartitionRegistration) -> None:
        """Become leader or follower, as `registration` says (R22). Raises StorageError."""
        if self.core.role is not None:
            with self._changes():
                self._become(registration)

    def _become(self, registration: PartitionRegistration) -> None:
        role = self.core.role
        self._fetch.begin_anew()
        if isinstance(role, Leader) and not _stays(role, registration, self.broker):
            # After `follow` all appends are refused. So `settle` passes even the last append to `core` before
            # the role changes.
            self.replica.follow()
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
        """Truncate the log at a damaged offset, and return the result of the truncation. The replica must be
        paused and must not be in the ISR. Raises StorageError, and NotLeaderOrFollowerError if the replica is
        not a follower.
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
        """Return the id of the leader that this replica follows, -1 if it follows none."""
        role = self.core.role
        return role.leader if isinstance(role, Follower) else NO_LEADER

    def step(self) -> bool | None:
        """Fetch once if this replica follows a leader. Return True if the leader may have more records, and
        None if the leader can't answer yet. In all other cases return False. If the reading thread of the
        leader's directory makes the read, it calls `resume` later.

        Raises StorageError if this replica's disk fails, and CorruptRecordError if batches of the leader are
        damaged.
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
    """Return whether `registration` has the leader and leader epoch of `role`, or is older than `role`."""
    if registration.partition_epoch < role.partition_epoch:
        return True
    return registration.leader == broker and registration.leader_epoch == role.leader_epoch
