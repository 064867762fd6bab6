"""`ReplicatedStore` and `ReplicatedPartitionLog`: the public classes of a replicated store and its
partitions.

These classes add acknowledgements, states of replicas, elections, reassignments and `heal` to `Store` and
`PartitionLog`. Nothing is on disk. Threads: any.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from segstore.config import arguments
from segstore.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    StorageError,
    UnknownTopicOrPartitionError,
    copy_of,
)
from segstore.mutex import check_apart
from segstore.replication.clock import now_ms
from segstore.replication.core.controller import Controller
from segstore.replication.core.election import Election
from segstore.replication.core.leader import Leader
from segstore.replication.core.registration import NO_LEADER
from segstore.replication.healing import Healed, heal
from segstore.replication.metadata.image import PartitionKey
from segstore.replication.metrics import (
    directory_metrics,
    partition_metrics,
    replication_metrics,
    samples,
    standings,
)
from segstore.replication.placement import as_replicas
from segstore.replication.quorum_controller import Decision
from segstore.replication.replacing import replace_directory
from segstore.replication.replicated_writer import ReplicatedWriter
from segstore.replication.states import PartitionState, ReplicaState
from segstore.storage.context import os_errors
from segstore.storage.log.acks import ALL, Acks
from segstore.storage.log.append import (
    BEHIND,
    acknowledge_failure,
    append_columns,
    append_inline,
    append_list,
    append_one,
    append_short,
    behind,
    table_columns,
)
from segstore.storage.log.partition import Partition
from segstore.storage.meta.sweep_states import SweepState, read_states
from segstore.storage.meta.topic_info import check_not_internal
from segstore.storage.meta.topic_match import differences, made_or_found
from segstore.storage.meta.topics import TopicInfo, find_topic
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.readiness import named, unready
from segstore.storage.store.stats import Family, cleaned_offsets, store_families
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from segstore.storage.log.read_only_partition import ReadOnlyPartition

ACKS: Mapping[object, int] = {"all": -1, -1: -1, 0: 0, 1: 1, "0": 0, "1": 1, "-1": -1}
AT_ONCE = ALL._replace(timeout_ms=0)
COMMITTED = 10.0
"""The longest time in seconds that `await_committed` waits."""
ELECTIONS = {"preferred": Election.PREFERRED, "unclean": Election.UNCLEAN}


class ReplicatedPartitionLog(PartitionLog):
    """A partition of a replicated store. Each method uses the log of the current leader. Readers can read the
    records below the high watermark: all in-sync replicas have these records.
    """

    has_replicas = True
    _near: PartitionLog | None = None
    """The log of the follower that `nearest` returned last."""

    def nearest(self, rack: str, offset: int) -> PartitionLog:
        """Return the log of the follower in the directory with the id `rack` if this follower is in sync and
        has `offset`. If there is no such follower, return this log (R39; Kafka: RackAwareReplicaSelector,
        KIP-392).
        """
        assert isinstance(self.store, ReplicatedStore)
        key = PartitionKey(self.topic, self.partition)
        replica = self.store.replicated.manager.follower(key, rack, offset)
        if replica is None or replica.partition.visible.current is None:
            return self
        near = self._near
        if near is None or near.source is not replica.partition:
            near = self._near = PartitionLog(
                self.topic, self.partition, self.store, self.context, replica.partition
            )
        return near

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp: int | None = None,
        *,
        acks: str | int = "all",
        timeout_ms: float = 30_000,
        expected_offset: int | None = None,
    ) -> int:
        """Append one record, as `PartitionLog.append` does. Return the record's offset.

        If `acks` is "all", the call waits until all in-sync replicas have the record. If `acks` is 1 or 0,
        the call waits until the leader has the record. If the partition has no leader, the call waits for a
        leader.

        Raises the errors of `PartitionLog.append`. Raises NotEnoughReplicasError if too few replicas are in
        sync: then nothing was written. If the record was written, but may be lost later (R23), raises
        NotEnoughReplicasAfterAppendError, NotLeaderOrFollowerError, or (after `timeout_ms`)
        RequestTimedOutError. If the leader's disk fails during an append, this append raises StorageError,
        and later appends go to a new leader (R32).
        """
        expected = self._expected(expected_offset)
        usual = acks == "all" and timeout_ms == 30_000 and not self._internal
        asked = ALL if usual else self._acks(acks, timeout_ms)
        own = self._own
        if own is not None and own.tail.may_be_open and not self.context.closed:
            # The body of `append_inline` is repeated here, because its Python calls would double the time of
            # the append.
            acknowledger = own.acks
            assert acknowledger is not None
            try:
                first = append_short(own.tail, value, key, headers, timestamp, expected_offset)
            except StorageError as error:
                acknowledge_failure(error, own, acknowledger)
                raise
            if first >= 0:
                acknowledger.shown()
                return first
            if first <= BEHIND:
                return behind(acknowledger, asked, 1, first)
        return append_one(self._leading(asked), value, key, headers, timestamp, acks=asked, expected=expected)

    def append_batch(
        self,
        values: Any,
        keys: Any = None,
        timestamps: Any = None,
        headers: Any = None,
        compression: str | None = None,
        batch_bytes: int = 65536,
        *,
        acks: str | int = "all",
        timeout_ms: float = 30_000,
        expected_offset: int | None = None,
    ) -> range:
        """Append many records, as `PartitionLog.append_batch` does. `acks` and the errors are as in
        `append`.
        """
        asked = self._acks(acks, timeout_ms)
        own = self._own
        if own is not None and compression is None and isinstance(values, list | tuple):
            n = len(values)
            given = n, values, keys, timestamps, headers, batch_bytes, expected_offset
            if own.tail.may_be_open and not self.context.closed:
                first = append_inline(own, asked, n, lambda: append_list(own.tail, *given))
                if first >= 0:
                    return range(first, first + n)
        return append_columns(
            self._leading(asked),
            values,
            keys,
            timestamps,
            headers,
            compression,
            batch_bytes,
            acks=asked,
            expected=self._expected(expected_offset),
        )

    def append_table(
        self,
        table: Any,
        *,
        compression: str | None = None,
        batch_bytes: int = 65536,
        acks: str | int = "all",
        timeout_ms: float = 30_000,
        expected_offset: int | None = None,
    ) -> range:
        """Append the rows of a table, as `PartitionLog.append_table` does. `acks` and the errors are as in
        `append`.
        """
        return self.append_batch(
            *table_columns(table),
            compression,
            batch_bytes,
            acks=acks,
            timeout_ms=timeout_ms,
            expected_offset=expected_offset,
        )

    def flush(self) -> None:
        """Make all appended records durable (fdatasync) on the disks of all in-sync replicas, in parallel. So
        each replica that may become leader after a power cut of all disks has these records. If the disk of a
        replica fails, the replica is removed from the ISR, and is not waited for. Raises
        UnknownTopicOrPartitionError, NotLeaderOrFollowerError, and (after 30 s) RequestTimedOutError.
        """
        check_apart("flush()")
        self._leading(ALL)
        assert isinstance(self.store, ReplicatedStore)
        self.store.replicated.sync([(self.topic, self.partition)])

    def await_committed(self) -> None:
        """Wait until readers can read all records that were committed before the current leader was elected
        (R38). After a crash the call waits until enough replicas are in sync again. Raises
        OffsetNotAvailableError after COMMITTED seconds, or at once if too few replicas are online.
        """
        self._committed_within(COMMITTED)

    def check_committed(self) -> None:
        """Raise OffsetNotAvailableError unless readers can read all records that were committed before the
        current leader was elected (R38).
        """
        self._committed_within(0)

    def _committed_within(self, seconds: float) -> None:
        assert isinstance(self.store, ReplicatedStore)
        manager, key = self.store.replicated.manager, PartitionKey(self.topic, self.partition)
        if not manager.await_committed(key, seconds):
            raise OffsetNotAvailableError(
                f"{key}: not all that was committed is shown yet: {manager.partitions.get(key)}"
            )
        with manager.redirecting:
            """A new leader counts as the leader just before this log reads from it, under this lock."""

    def partition_for_write(self) -> Partition:
        """Wait for a leader, and return its log, so that other modules can append to it. Raises
        NotLeaderOrFollowerError, and the errors of `PartitionLog.partition_for_write`.
        """
        return self._leading(ALL)

    def partition_led(self) -> Partition:
        """Return the leader's log for appends, without waiting. Raises OffsetNotAvailableError if the
        partition has no leader.
        """
        try:
            return self._leading(AT_ONCE)
        except NotLeaderOrFollowerError as error:
            raise OffsetNotAvailableError(str(error)) from None

    def append_may_wait(self, acks: int) -> bool:
        """Return whether an append with `acks` (0, 1 or -1) may have to wait: for a leader, for followers, or
        for a sync that `flush.messages` causes.
        """
        assert isinstance(self.store, ReplicatedStore)
        key = PartitionKey(self.topic, self.partition)
        return self.store.replicated.manager.leader(key) is None or super().append_may_wait(acks)

    def _acks(self, acks: object, timeout_ms: object) -> Acks:
        if self._internal:
            self._refuse()
        if isinstance(acks, bool) or not isinstance(acks, str | int) or acks not in ACKS:
            raise InvalidArgumentError(f'acks={acks!r}: must be 0, 1, -1 or "all"')
        most = arguments.milliseconds("timeout_ms", timeout_ms)
        if timeout_ms < 0:  # type: ignore[operator]  # a number by now
            raise InvalidArgumentError(f"timeout_ms={timeout_ms}: must be at least 0")
        return Acks(ACKS[acks], most)

    def _leading(self, acks: Acks) -> Partition:
        """Wait for a leader, and return its log. Raises NotLeaderOrFollowerError after `acks.timeout_ms`, and
        UnknownTopicOrPartitionError if the partition was deleted. If the controller has stopped, raises the
        controller's error.
        """
        self.context.check_writable()
        assert isinstance(self.store, ReplicatedStore)
        manager, key = self.store.replicated.manager, PartitionKey(self.topic, self.partition)
        leader = manager.leader(key)
        if leader is None:
            if self.is_gone or key not in manager.partitions:
                raise UnknownTopicOrPartitionError(f"{key} was deleted")
            if (lost := self.store.replicated.controller.error) is not None:
                raise copy_of(lost)
            manager.await_leaders([key], acks.timeout_ms)
            self.context.check_writable()
            leader = manager.leader(key)
        if leader is None:
            raise NotLeaderOrFollowerError(f"{key}: no replica leads: {manager.partitions.get(key)}")
        return leader.partition


class ReplicatedStore(Store):
    """A store with several directories. Each partition has replicas in some of the directories."""

    _inner = frozenset({"lead_to", "replicated"})

    @property
    def replicated(self) -> ReplicatedWriter:
        assert isinstance(self.engine, ReplicatedWriter)
        return self.engine

    @property
    def directories(self) -> tuple[str, ...]:
        """Return the paths of all data directories, by ascending id. Directories that are offline are
        included.
        """
        return self.replicated.directories

    @property
    def witness(self) -> str | None:
        """Return the path of the witness, None if the store has none."""
        return next(iter(self.replicated.paths[self.replicated.data_directories :]), None)

    def _make_log(self, topic: str, partition: int, source: Partition | ReadOnlyPartition) -> PartitionLog:
        return ReplicatedPartitionLog(topic, partition, self, self.context, source)

    def partition(self, topic: str, partition: int = 0) -> PartitionLog:
        """Return a partition. Its methods use the log of the current leader. Raises the errors of
        `Store.partition`.
        """
        log, manager = super().partition(topic, partition), self.replicated.manager
        key = PartitionKey(topic, log.partition)
        leader = manager.leaders.get(key)
        # Another leader was elected after the last call.
        if leader is not None and leader.partition is not log.source:
            with manager.redirecting:
                leader = manager.leaders.get(key, leader)
                log.follow_leader(leader.partition)
        return log

    def lead_to(self, key: PartitionKey, partition: Partition) -> None:
        """If there is a `PartitionLog` object of the partition, make it use the log of a new leader."""
        log = self._logs.get((key.topic, key.partition))
        if log is not None:
            log.follow_leader(partition)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, Any] | None = None,
        *,
        replication_factor: int | None = None,
        assignments: Mapping[int, Sequence[int]] | None = None,
        exist_ok: bool = False,
    ) -> TopicInfo:
        """Create a topic, as `Store.create_topic` does. Each partition has `replication_factor` replicas
        (None: the setting default.replication.factor). In place of `replication_factor`, `assignments` may
        have the directory ids of each partition, the preferred leader first. If `exist_ok`, an existing topic
        must have the given `replication_factor`, but its replicas may be in other directories than
        `assignments` says.

        Raises the errors of `Store.create_topic`, InvalidReplicationFactorError,
        InvalidReplicaAssignmentError, QuorumLostError.
        """
        check_apart("create_topic()")
        check_not_internal(name, "groups and transactions make it when they need it")
        side, settings = self.replicated, {} if config is None else config
        self.context.check_writable()
        if assignments is not None:
            if replication_factor is not None:
                raise InvalidArgumentError(
                    "replication_factor and assignments: only one of both can be given"
                )
            if not isinstance(assignments, Mapping):
                raise InvalidArgumentError(
                    f"assignments={assignments!r}: must map partitions to directory ids"
                )
            partitions = len(assignments)
        count = arguments.whole("partitions", partitions, 1, 100_000)
        factor = (
            side.topic_admin.settings.default_factor if replication_factor is None else replication_factor
        )

        def make() -> TopicInfo:
            with os_errors():
                return side.topic_admin.create_with(name, count, settings, factor, assignments)

        if not arguments.switch("exist_ok", exist_ok):
            return make()
        return self._found_or(make, name, count, settings, replication_factor)

    def ensure_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        replication_factor: int | None = None,
    ) -> TopicInfo:
        """Return the topic. If the topic does not exist, create it. See `Store.ensure_topic`. If
        `replication_factor` is None, an existing topic may have any replication factor.
        """
        if partitions is not None:
            return self.create_topic(
                name, partitions, config, replication_factor=replication_factor, exist_ok=True
            )
        make = partial(self.create_topic, name, 1, config, replication_factor=replication_factor)
        return self._found_or(make, name, None, {} if config is None else config, replication_factor)

    def _found_or(
        self,
        make: Callable[[], TopicInfo],
        name: str,
        partitions: int | None,
        config: Mapping[str, Any],
        factor: int | None,
    ) -> TopicInfo:
        def differ(info: TopicInfo) -> dict[str, tuple[object, object]]:
            found = differences(info, partitions, config)
            replicas = len(self.describe_partition(name, info.partition_ids[0]).replicas)
            if factor is not None and replicas != factor:
                found["replication_factor"] = replicas, factor
            return found

        return made_or_found(make, lambda: self.await_topic(name), differ)

    def await_topic(self, name: str) -> TopicInfo | None:
        return self.replicated.topic_admin.await_topic(name)

    def sweep_states(self) -> dict[tuple[str, int], SweepState]:
        """Return the `SweepState` of each partition's leader, by (topic, partition)."""
        self.context.check_open()
        return self.replicated.of_leaders(read_states)

    def _cleaned(self) -> dict[tuple[str, int], int]:
        return self.replicated.of_leaders(cleaned_offsets)

    def describe_partition(self, topic: str, partition: int = 0) -> PartitionState:
        """Return the leader, epochs, replicas, ISR and ELR of a partition, and the lag of each replica.

        Raises UnknownTopicOrPartitionError.
        """
        self.context.check_open()
        side = self.replicated
        key = PartitionKey(topic, arguments.whole("partition", partition, None))
        find_topic(side.topics, *key)
        state, manager = side.manager.partitions[key], side.manager
        online = {directory.broker for directory in manager.online}
        return PartitionState(
            state.leader,
            state.leader_epoch,
            state.partition_epoch,
            state.replicas,
            state.isr,
            state.elr,
            tuple(replica for replica in state.replicas if replica not in online),
            state.adding,
            state.removing,
            tuple(self._replica_state(key, replica) for replica in state.replicas),
        )

    def leaders(self, topic: str, partitions: Sequence[int]) -> list[tuple[int, int]]:
        """Return (leader, leader epoch) of each partition in `partitions`, (-1, -1) if a partition is
        unknown. Raises StoreClosedError, and UnknownTopicOrPartitionError if the topic is unknown.
        """
        self.context.check_open()
        find_topic(self.replicated.topics, topic)
        get = self.replicated.manager.partitions.get
        found = [get(PartitionKey(topic, number)) for number in partitions]
        return [(-1, -1) if each is None else (each.leader, each.leader_epoch) for each in found]

    def _replica_state(self, key: PartitionKey, broker: int) -> ReplicaState:
        manager = self.replicated.manager
        directory, leader = manager.directories.get(broker), manager.leader(key)
        path = "" if directory is None else directory.path
        if leader is None:
            return ReplicaState(broker, -1, -1, -1, path)
        end = leader.replica.log_end_offset
        if leader.broker == broker:
            return ReplicaState(broker, end, 0, 0, path)
        role = leader.core.role
        remote = role.remotes.get(broker) if isinstance(role, Leader) else None
        if remote is None or remote.end_offset < 0 or not isinstance(role, Leader):
            return ReplicaState(broker, -1, -1, -1, path)
        known, caught_up = remote.end_offset, remote.last_caught_up_ms
        if broker in role.isr.maximal:  # Members of the ISR have all records below the high watermark (R15).
            known = max(known, leader.replica.high_watermark)
        lag_ms = 0 if known >= end else -1 if caught_up is None else now_ms() - caught_up
        return ReplicaState(broker, known, max(end - known, 0), lag_ms, path)

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Return {"topic-partition": {Kafka's name: value}}: the metrics of `Store.metrics`, the number of
        replicas, the number of in-sync replicas, and the lag of each replica.
        """
        found = super().metrics()
        for key, of_replicas in self._partition_metrics().items():
            found.setdefault(str(key), {}).update(of_replicas)
        return found

    def replication_metrics(self) -> dict[str, dict[str, Any]]:
        """Return the metrics of the whole store as {Kafka's type: {Kafka's name: value}}. The types are
        "ReplicaManager", "ReplicaFetcherManager", "KafkaController" and "ControllerStats". If a metric is a
        rate in Kafka, its value here is a count since the store was opened.
        """
        self.context.check_open()
        side = self.replicated
        states = {key: each.state.replicas for key, each in standings(side).items()}
        lags = [self._replica_state(key, replica).lag for key, ids in states.items() for replica in ids]
        return replication_metrics(side, max([0, *lags]))

    def all_families(self) -> list[Family]:
        """Return all metrics, including those of replication. No records are read. Raises StoreClosedError,
        StorageError.
        """
        whole = self.replication_metrics()
        with os_errors():
            more = samples(whole, directory_metrics(self.replicated), self._partition_metrics())
            return [*store_families(self._measured()), *more, *self._more_families()]

    def unready(self) -> list[str]:
        """Return the reasons why the open store can't do all of its work, for example a lost quorum, or
        partitions without a leader.
        """
        side, error = self.replicated, self.replicated.controller.error
        headless = [str(key) for key, each in [*side.manager.partitions.items()] if each.leader == NO_LEADER]
        lost = [] if error is None else [f"the metadata can't change: {error}"]
        return [*unready(self.context, ()), *lost, *named("nobody leads", sorted(headless))]

    def _partition_metrics(self) -> dict[PartitionKey, dict[str, Any]]:
        found, manager = {}, self.replicated.manager
        for key, standing in standings(self.replicated).items():
            replicas = tuple(self._replica_state(key, replica) for replica in standing.state.replicas)
            found[key] = partition_metrics(standing, replicas, manager.leader(key))
        return found

    def elect_leaders(
        self,
        election: str,
        partitions: Sequence[tuple[str, int]] | None = None,
        *,
        confirm: bool = False,
        timeout_ms: float = 30_000,
    ) -> dict[tuple[str, int], Exception | None]:
        """Elect leaders of `partitions`, by default of all (R24, R29; Kafka: Admin.electLeaders). If
        `election` is "preferred", the first replica of each partition is elected, if it is in sync. If
        `election` is "unclean", any live replica is elected in each partition without a leader: records may
        be lost, so `confirm=True` is needed. For each partition the result has None, or the error if no
        leader was elected.

        Raises InvalidArgumentError, UnknownTopicOrPartitionError, QuorumLostError.
        """
        chosen = ELECTIONS[arguments.one_of("election", election, ELECTIONS)]
        if chosen is Election.UNCLEAN and confirm is not True:
            raise InvalidArgumentError(
                'election="unclean" may lose records that were acknowledged: it needs confirm=True'
            )
        self.context.check_writable()
        side, most = self.replicated, arguments.milliseconds("timeout_ms", timeout_ms)
        keys = list(side.manager.partitions) if partitions is None else _keys("partitions", partitions)
        for key in keys:
            find_topic(side.topics, key.topic, key.partition)
        results: dict[tuple[str, int], Exception | None] = {}
        for key in keys:
            results[key.topic, key.partition] = self._elect(key, chosen, most)
        return results

    def _elect(self, key: PartitionKey, election: Election, timeout_ms: float) -> Exception | None:
        from segstore.errors import ElectionNotNeededError, SegstoreError

        side = self.replicated

        def decide(core: Controller, now: int) -> Decision:
            return Decision(effects=core.elect(key, election))

        try:
            side.controller.call(decide)
        except ElectionNotNeededError as error:
            return error
        except SegstoreError as error:
            if side.controller.error is not None:
                raise
            return error
        side.manager.news.until(lambda: side.manager.leader(key) is not None, timeout_ms / 1000, 0.05)
        return None

    def reassign(self, target: Mapping[tuple[str, int], Sequence[int] | None]) -> None:
        """Begin to move partitions to other directories. `target` has the new directory ids of each
        partition, the preferred leader first. If `target` has None for a partition, the partition's
        reassignment in progress is cancelled (R30; Kafka: Admin.alterPartitionReassignments). A reassignment
        is complete when `reassignments` no longer has the partition.

        Raises InvalidReplicaAssignmentError, NoReassignmentInProgressError, UnknownTopicOrPartitionError,
        QuorumLostError. If a partition is refused, the reassignments of the partitions before it in `target`
        have begun, and the reassignments of the partitions after it have not.
        """
        self.context.check_writable()
        side = self.replicated
        if not isinstance(target, Mapping):
            raise InvalidTypeError(f"target must map partitions to replicas, not {type(target).__name__}")
        keys = _keys("target", target)
        for key in keys:
            find_topic(side.topics, key.topic, key.partition)
        wanted = [
            None if replicas is None else as_replicas(f"replicas of {key}", replicas)
            for key, replicas in zip(keys, target.values(), strict=True)
        ]
        for key, replicas in zip(keys, wanted, strict=True):
            side.controller.call(_reassignment(key, replicas))

    def replace_directory(self, directory: int, path: str | os.PathLike[str]) -> None:
        """Replace a directory that has failed or is missing by the directory at `path`: a new directory,
        which is made if it does not exist, or the old directory, if it works again. The replicas in this
        directory fetch their missing records after the call has returned. Later opens must name the new path.
        `directory` is the id of the old directory (for the witness: the number of data directories).

        Raises StoreLockedError, StorageError and QuorumLostError. Raises InvalidArgumentError if the old
        directory works, or if the directory at `path` has topics and no `meta.properties`. Raises
        StaleDirectoryError if the directory at `path` belongs to another replicated store or has another id.
        """
        check_apart("replace_directory()")
        self.context.check_writable()
        number = arguments.whole("directory", directory, None)
        with os_errors():
            replace_directory(self.replicated, self, number, arguments.path("path", path))

    def heal(
        self,
        partition: tuple[str, int] | None = None,
        *,
        timeout_ms: float = 3_600_000,
        progress: Callable[[int], None] | None = None,
    ) -> list[Healed]:
        """Find and repair damaged replicas of a partition (None: of all partitions). Return the repaired
        replicas. All bytes of all online replicas are read and checked. A damaged replica is removed from the
        ISR, its records at the damage and after it are moved to the quarantine, and these records are copied
        from an in-sync replica. If the damaged replica is the leader, an in-sync replica is elected before
        the repair. The call returns when the repaired replicas are in sync again. Partitions stay in use
        during the repair, but appends with acks=all are refused if too few replicas are in sync.

        `timeout_ms` is the longest time for each replica. After each segment that was read, `progress` is
        called with its size in bytes. Raises KafkaTimeoutError, UnknownTopicOrPartitionError, QuorumLostError
        and StorageError. Raises NoSoundReplicaError if no other in-sync replica has the damaged records of a
        partition. Such a partition was not changed.
        """
        check_apart("heal()")
        self.context.check_writable()
        side = self.replicated
        keys = sorted(side.manager.partitions) if partition is None else _keys("partition", [partition])
        for key in keys:
            find_topic(side.topics, key.topic, key.partition)
        limit = arguments.milliseconds("timeout_ms", timeout_ms)
        if not (progress is None or callable(progress)):
            raise InvalidTypeError(f"progress must be callable or None, not {type(progress).__name__}")
        with os_errors():
            return heal(side, keys, limit, progress or (lambda size: None))

    def reassignments(self) -> dict[tuple[str, int], PartitionState]:
        """Return the state of each partition that has a reassignment in progress, by (topic, partition)."""
        self.context.check_open()
        states = list(self.replicated.manager.partitions.items())
        moving = [key for key, state in states if state.reassigning]
        return {(key.topic, key.partition): self.describe_partition(*key) for key in moving}


def _keys(name: str, partitions: object) -> list[PartitionKey]:
    """Return a `PartitionKey` for each (topic, partition). Raises InvalidTypeError."""
    if isinstance(partitions, str | bytes) or not isinstance(partitions, Iterable):
        raise InvalidTypeError(
            f"{name} must be pairs of topic and partition, not {type(partitions).__name__}"
        )
    keys = []
    for pair in partitions:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidTypeError(f"{name}: {pair!r} is no pair of topic and partition")
        keys.append(PartitionKey(pair[0], arguments.whole("partition", pair[1], None)))
    return keys


def _reassignment(key: PartitionKey, wanted: tuple[int, ...] | None) -> Any:
    def decide(core: Controller, now: int) -> Decision:
        if wanted is None:
            return Decision(effects=core.cancel_reassignment(key))
        return Decision(effects=core.reassign(key, wanted))

    return decide
