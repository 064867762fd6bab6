"""Grants: the records that a member's fetch acquires (Kafka: DelayedShareFetch, ShareFetchUtils,
SharePartition.acquire).

On disk: logs are only read. Threads: any. One fetch at a time has a share partition's fetch lock, from the
choice of the fetch offset to the grant (rule Q16 of docs/queue-rules.md). While a fetch reads the log, it has
no other lock (rule Q104). A fetch skips a share partition whose fetch lock another fetch has; the waiting
fetches of the group are woken when that lock becomes free.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from segstore.coordinator.metrics import MonotonicMs
from segstore.coordinator.share.core.partition import SharePartition
from segstore.coordinator.share.core.values import Acquired, AcquireMode, Grant, Outcome
from segstore.coordinator.share.effects import ShareEffects
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.partitions import ShareLeader, ShareLeaders, ShareTurn
from segstore.coordinator.share.read_batches import BatchesRead, read_batches
from segstore.coordinator.share_settings import ShareSettings
from segstore.errors import NotLeaderOrFollowerError, OffsetOutOfRangeError, SegstoreError
from segstore.integers import INT32_MAX
from segstore.logger import Logger
from segstore.records import Records
from segstore.storage.context import StoreContext
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.transfer.stretch import Stretch

log = Logger("segstore")
COMMITTED = "read_committed"


class AcquireTerms(NamedTuple):
    """The limits of a fetch request. `max_records` is the largest number of offsets that it acquires in all
    its partitions together; in mode BATCH_OPTIMIZED the last batch may exceed this number (`mode` is an
    AcquireMode). `batch_size` is `piece` of `Acquisition`. `max_bytes` is the largest number of bytes that
    are read from the logs, in whole batches; but at least one batch is read. If a read of a log acquires
    nothing, the log is read again, at most `max_reads` times in total.
    """

    max_records: int = 500
    batch_size: int = 500
    mode: int = AcquireMode.BATCH_OPTIMIZED
    max_bytes: int = 1 << 20
    max_reads: int = INT32_MAX


class AcquiredPartition:
    """The acquired records of one partition, or the partition's `error`.

    `acquired` has disjoint runs of offsets in order. `stretch` has whole batches, from the batch of the first
    acquired offset to the batch of the last acquired offset; so it may contain records that were not
    acquired. `token` identifies the grant in `ShareCoordinator.cancel`.
    """

    __slots__ = ("acquired", "error", "leader", "log", "partition", "stretch", "token", "topic", "topic_id")

    def __init__(self, topic_id: str, partition: int, error: SegstoreError | None = None) -> None:
        self.topic_id, self.partition, self.error = topic_id, partition, error
        self.topic, self.token = "", 0
        self.acquired: tuple[Acquired, ...] = ()
        self.leader: ShareLeader | None = None
        self.log: PartitionLog | None = None
        self.stretch: Stretch | None = None

    def __repr__(self) -> str:
        found = self.error or ", ".join(f"{first}-{last} x{count}" for first, last, count in self.acquired)
        return f"<Acquisition of {self.topic or self.topic_id}-{self.partition}: {found}>"

    @property
    def first_offset(self) -> int:
        """Return the first acquired offset."""
        return self.acquired[0].first

    @property
    def last_offset(self) -> int:
        """Return the last acquired offset."""
        return self.acquired[-1].last

    def reads(self) -> Iterator[Records]:
        """Yield the records of `stretch` from the first acquired offset on, including records that were not
        acquired. Raises the errors of `PartitionLog.read`, among them CorruptRecordError, and
        OffsetOutOfRangeError if retention has removed records.
        """
        at, stretch = self.first_offset, self.stretch
        assert stretch is not None
        assert self.log is not None
        while at < stretch.next_offset:
            records = self.log.read(at, len(stretch))
            at = max(records.next_offset, at + 1)
            yield records


class _GrantFetch:
    """The fetch of one share partition's log, from `offset` up to offset `enough`. The object has the share
    partition's fetch lock, until the lock is freed or the object is garbage-collected.
    """

    __slots__ = ("__weakref__", "enough", "leader", "offset")

    def __init__(self, leader: ShareLeader, offset: int, enough: int) -> None:
        self.leader, self.offset, self.enough = leader, offset, enough


class ShareFetch:
    """The execution of one fetch request of a member, for several partitions."""

    def __init__(
        self,
        context: StoreContext,
        leaders: ShareLeaders,
        effects: ShareEffects,
        clock: MonotonicMs,
        settings: ShareSettings,
        group: str,
        member: str,
        terms: AcquireTerms,
    ) -> None:
        self._context, self._leaders, self._effects, self._clock = context, leaders, effects, clock
        self._limits, self._committed = settings.limits, settings.isolation == COMMITTED
        self._group, self._member, self._terms = group, member, terms
        self._left = terms.max_records
        self._turn = ShareTurn()
        self._found: list[AcquiredPartition] = []
        self._failed: list[AcquiredPartition] = []

    def acquire(self, wanted: Sequence[tuple[str, int]]) -> list[AcquiredPartition]:
        """Acquire records of the `wanted` partitions, which are pairs (topic id, partition number). Return
        the partitions that have acquired records, or an error.
        """
        fetches: list[_GrantFetch] = []
        try:
            self._choose_all(wanted, fetches)
            share = self._terms.max_bytes // max(len(fetches), 1)
            for fetch in fetches:
                if self._left > 0:
                    self._take(fetch, share)
            while fetches:
                self._release(fetches.pop())
            if self._turn.due:
                self._effects.settle(self._turn)
        finally:
            for fetch in fetches:
                self._release(fetch)
            self._turn.abandon()
        return self._failed + self._found

    # --- choose --------------------------------------------------------------------------------

    def _choose_all(self, wanted: Sequence[tuple[str, int]], fetches: list[_GrantFetch]) -> None:
        """Append to `fetches` one `_GrantFetch` for each partition that has records to grant, but at most
        `_left`: the request may acquire only `_left` more records, so it needs no more partitions.
        """
        for topic_id, partition in wanted:
            if len(fetches) >= self._left:
                break
            try:
                fetch = self._choose(topic_id, partition)
            except SegstoreError as error:
                self._failed.append(AcquiredPartition(topic_id, partition, error))
            else:
                if fetch is not None:
                    fetches.append(fetch)

    def _choose(self, topic_id: str, partition: int) -> _GrantFetch | None:
        key = ShareKey(self._group, topic_id, partition)
        leader = self._leaders.get(*key) or self._leaders.lead(key)
        try:
            return self._begin(leader)
        except NotLeaderOrFollowerError:  # Another thread has fenced the share partition after `get`.
            return self._begin(self._leaders.lead(key))

    def _begin(self, leader: ShareLeader) -> _GrantFetch | None:
        now = leader.used = self._clock()
        start, limit = self._ends(leader.log)
        limits, want = self._limits, self._left

        if leader.core.start < start:
            leader.change(self._turn, lambda core: core.move_log_start(start))
        deadline = leader.core.deadline()
        if deadline is not None and deadline <= now:
            leader.change(self._turn, lambda _: leader.expire(now, limits))

        def begin(core: SharePartition) -> _GrantFetch | None:
            if not core.may_grant(limits) or (offset := core.fetch_offset()) >= limit:
                return None
            if leader.is_fetched:
                leader.is_missed = True
                return None
            # All offsets from `next_new` on are new, and the grant takes at most `want` of them. So the read
            # can end with the offset that is given as `enough`.
            fetch = _GrantFetch(leader, offset, max(offset, core.next_new) + want - 1)
            leader.fetcher = weakref.ref(fetch)
            return fetch

        return leader.ask(begin)

    def _ends(self, source: PartitionLog) -> tuple[int, int]:
        """Return (log start offset, offset after the last record that the group may read)."""
        view = source.view
        if not self._committed:
            return view.start_offset, view.end_offset
        stable = view.stable_offset
        return view.start_offset, stable if stable >= 0 else source.last_stable_offset

    # --- take ----------------------------------------------------------------------------------

    def _take(self, fetch: _GrantFetch, max_bytes: int) -> None:
        """Read a partition's log, and acquire records. If none is acquired, for example because all records
        that were read belong to aborted transactions, read the next records.
        """
        leader, at, reads_left = fetch.leader, -1, self._terms.max_reads
        following: _GrantFetch | None = fetch
        try:
            while following is not None and following.offset > at and reads_left > 0:
                at, reads_left = following.offset, reads_left - 1
                read = self._read(following, max_bytes)
                if read is None or self._grant(following, read):
                    return
                following = self._begin(leader)
        except SegstoreError as error:
            self._failed.append(AcquiredPartition(leader.key.topic_id, leader.key.partition, error))
        finally:
            if following is not None:
                self._release(following)

    def _read(self, fetch: _GrantFetch, max_bytes: int) -> BatchesRead | None:
        leader, source = fetch.leader, fetch.leader.log
        try:
            read = read_batches(
                self._context,
                source,
                fetch.offset,
                fetch.enough,
                max_bytes,
                committed=self._committed,
                min_one=not self._found,
                large=leader.in_large_batches,
            )
        except OffsetOutOfRangeError:  # The next fetch begins at the log's start (rule Q23).
            start = source.start_offset
            if start > fetch.offset:
                leader.change(self._turn, lambda core: core.move_log_start(start))
            return None
        if read is not None:
            leader.in_large_batches = read.are_large
        return read

    def _grant(self, fetch: _GrantFetch, read: BatchesRead) -> bool:
        """Acquire records that were read; return whether any were acquired."""
        leader, terms, limits = fetch.leader, self._terms, self._limits

        def grant(core: SharePartition) -> tuple[Grant, bool]:
            want, piece, now = self._left, terms.batch_size, self._clock()
            span = fetch.offset, read.end, read.aborted
            found = core.grant(self._member, terms.mode, want, piece, read.batches, *span, now, limits)
            return found, leader.free()

        (token, acquired, wakes), is_missed = leader.ask(grant)
        if wakes or is_missed:
            self._turn.due.append((leader, Outcome(wakes=True)))
        if acquired:
            self._effects.plan(leader)
            self._found.append(self._acquisition(leader, token, acquired, read))
        return bool(acquired)

    def _acquisition(
        self, leader: ShareLeader, token: int, acquired: tuple[Acquired, ...], read: BatchesRead
    ) -> AcquiredPartition:
        found = AcquiredPartition(leader.key.topic_id, leader.key.partition)
        found.topic, found.log, found.leader = leader.topic, leader.log, leader
        found.token, found.acquired = token, acquired
        found.stretch = read.of(acquired[0].first, acquired[-1].last)
        self._left -= sum(last - first + 1 for first, last, _ in acquired)
        return found

    def _release(self, fetch: _GrantFetch) -> None:
        """Free the fetch lock of a fetch, unless its grant has freed it already."""
        leader = fetch.leader
        if leader.fetcher is not None and leader.fetcher() is fetch:
            with leader.lock:
                is_missed = leader.free()
            if is_missed:
                self._turn.due.append((leader, Outcome(wakes=True)))
