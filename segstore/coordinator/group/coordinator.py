"""`GroupCoordinator`: handles the requests of members, clients and administrators to the groups of a store.

On disk: a group's generation, members and assignment are records of `__consumer_offsets`, written through
`coordinator.offsets` when a generation becomes stable and when a group becomes empty.
Threads: any. Each group has a lock. The thread that commits offsets holds this lock, too, so that no
rebalance begins between the check of the member and the write. No method waits: a member that has to wait
gets a `Ticket`, and a thread in `store.wait` is woken when a group changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from segstore.coordinator.group.classic.member import (
    ClassicGroupState,
    GroupInfo,
    JoinGroupResult,
    Joining,
    MemberInfo,
    MonotonicMs,
    Ticket,
    monotonic_ms,
)
from segstore.coordinator.group.consumers.group import ConsumerGroupInfo, ConsumerState
from segstore.coordinator.group.consumers.member import JOIN_EPOCH
from segstore.coordinator.group.consumers.membership import Beaten, ConsumerHeartbeat, ConsumerMembership
from segstore.coordinator.group.group_table import GroupTable
from segstore.coordinator.group.held import GroupEntry
from segstore.coordinator.group.share.group import ShareGroupState
from segstore.coordinator.group.share_requests import ShareRequests
from segstore.coordinator.offsets.group_offsets import NO_IDS, GroupOffsets
from segstore.coordinator.offsets.topic import check_group
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import ConsumerGroupMetadata, Leaver, OffsetAndMetadata, TopicPartition
from segstore.errors import (
    GroupNotFoundError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    NonEmptyGroupError,
    SegstoreError,
    copy_of,
)
from segstore.logger import Logger
from segstore.storage.store.store import Store

T = TypeVar("T")
log = Logger("segstore")


class GroupCoordinator(ShareRequests):
    """The coordinator of a store's classic, consumer and share groups (Kafka: GroupMetadataManager). A store
    has one coordinator; `shared(store, GroupCoordinator)` returns it.
    """

    def __init__(self, store: Store, clock: MonotonicMs = monotonic_ms) -> None:
        offsets = shared(store, GroupOffsets)
        super().__init__(GroupTable(store, offsets, self.now), offsets, clock)
        self._config = store.writer().config
        self._offsets.empty_since, self._offsets.swept = self._groups.empty_since, self._groups.sweep

    def now(self) -> float:
        """Return the time, in ms, of the clock by which sessions expire."""
        return self._clock()

    # --- membership --------------------------------------------------------------------------

    def join(self, group_id: str, joining: Joining) -> Ticket[JoinGroupResult]:
        """Handle a JoinGroup request; return a `Ticket`, which is completed with the answer to the member.
        Raises InvalidGroupIdError, InvalidSessionTimeoutError, UnknownMemberIdError, FencedInstanceIdError,
        InconsistentGroupProtocolError, GroupMaxSizeReachedError, and MemberIdRequiredError if the member must
        join again with the id in this error.
        """
        self._check_joining(group_id, joining)

        def join(entry: GroupEntry) -> Ticket[JoinGroupResult]:
            return self._groups.join(entry, joining, self._clock())

        return self._groups.ask_held(group_id, join)

    def sync(
        self,
        group_id: str,
        member_id: str,
        generation: int,
        protocol: str | None,
        assignments: Mapping[str, bytes] | None = None,
        group_instance_id: str | None = None,
        protocol_type: str | None = None,
    ) -> Ticket[bytes]:
        """Return a `Ticket`, which is completed with the member's assignment. If the member is the leader,
        `assignments` has the assignments of all members. `protocol` and `protocol_type` must be the group's,
        or None. Raises UnknownMemberIdError, IllegalGenerationError, RebalanceInProgressError,
        FencedInstanceIdError, InconsistentGroupProtocolError, and StorageError if the assignments could not
        be written: the leader may then sync again.
        """

        def sync(entry: GroupEntry) -> Ticket[bytes]:
            now, who = self._clock(), (member_id, group_instance_id, generation)
            if entry.consumer is not None:
                return entry.consumer.sync(*who, protocol, now, protocol_type)
            return entry.group.sync(*who, protocol, assignments or {}, now, protocol_type)

        return self._groups.ask_held(group_id, sync, make=False)

    def heartbeat(
        self, group_id: str, member_id: str, generation: int, group_instance_id: str | None = None
    ) -> None:
        """Extend the member's session. Raises UnknownMemberIdError, IllegalGenerationError,
        FencedInstanceIdError, and RebalanceInProgressError if the member has to join again.
        """

        def beat(entry: GroupEntry) -> None:
            who = member_id, group_instance_id, generation
            if entry.consumer is not None:
                entry.consumer.classic_heartbeat(*who, self._clock())
            else:
                entry.group.heartbeat(*who, self._clock())

        self._groups.ask_held(group_id, beat, make=False)

    def leave(self, group_id: str, member_id: str, group_instance_id: str | None = None) -> None:
        """Remove a member from the group, even if the member is static. Raises UnknownMemberIdError,
        FencedInstanceIdError.
        """
        (error,) = self.leave_all(group_id, [(member_id, group_instance_id)])
        if error is not None:
            raise copy_of(error)

    def leave_all(self, group_id: str, leaving: Collection[Leaver]) -> list[SegstoreError | None]:
        """Remove several members, and start one rebalance for all of them. Return one error or None for each
        member. `leaving` has (member id, group_instance_id) pairs; an empty member id stands for the static
        member with this group_instance_id.
        """

        def leave(entry: GroupEntry) -> list[SegstoreError | None]:
            if entry.consumer is not None:
                return entry.consumer.leave_all(leaving)
            return entry.group.leave_all(leaving, self._clock())

        return self._groups.ask_held(group_id, leave, make=False)

    # --- consumer groups -----------------------------------------------------------------------

    def consumer_heartbeat(self, group_id: str, request: ConsumerHeartbeat) -> Beaten:
        """Handle a heartbeat of a consumer group's member, and return the member's epoch and assignment
        (KIP-848). Raises InvalidGroupIdError, the errors of `ConsumerMembership.heartbeat`, and
        GroupNotFoundError if there is no such consumer group and the member does not join.
        """
        check_group(group_id)
        now = self._clock()

        def beat(consumer: ConsumerMembership) -> Beaten:
            return consumer.heartbeat(request, now)

        def ask(entry: GroupEntry) -> Beaten:
            if entry.consumer is None and request.epoch != JOIN_EPOCH:
                raise GroupNotFoundError(f"there is no consumer group {group_id!r}")
            return self._groups.as_consumers(entry, beat)

        return self._groups.ask_held(group_id, ask, make=request.epoch == JOIN_EPOCH)

    def describe_consumers(self, group_id: str) -> ConsumerGroupInfo | None:
        """Return a consumer group with its members, or None if there is no such group."""
        entry = self._groups.find(group_id)
        if entry is None:
            return None
        with entry.lock:
            return None if entry.consumer is None else entry.consumer.info()

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> None:
        """Raise an error unless this member may fetch offsets now; a request that names no member is always
        accepted. Raises UnknownMemberIdError; StaleMemberEpochError, or IllegalGenerationError for a classic
        member.
        """
        entry = self._groups.find(group_id) if member_id is not None or epoch >= 0 else None
        if entry is not None and entry.consumer is not None:
            with entry.lock:
                entry.consumer.group.check_fetch(member_id, epoch)

    def _check_joining(self, group_id: str, joining: Joining) -> None:
        if not isinstance(group_id, str) or not group_id:
            raise InvalidGroupIdError(f"group_id={group_id!r}: must be a str that is not empty")
        least = self._config.group_min_session_timeout_ms
        most = self._config.group_max_session_timeout_ms
        if not least <= joining.session_timeout_ms <= most:
            raise InvalidSessionTimeoutError(
                f"session_timeout_ms={joining.session_timeout_ms}: must be from {least} to {most}, the "
                "store's group.min.session.timeout.ms and group.max.session.timeout.ms"
            )

    # --- commits -------------------------------------------------------------------------------

    def commit(
        self,
        metadata: ConsumerGroupMetadata,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        knows_epochs: bool = True,
        topic_ids: Mapping[str, str] = NO_IDS,
    ) -> None:
        """Commit offsets for a member. `topic_ids` maps topic names to ids, as in `GroupOffsets.commit`.
        Raises the errors of `check_commit` and `GroupOffsets.commit`, and UnsupportedVersionError if a member
        of a consumer group commits by a request version without member epochs (`knows_epochs` False).
        """
        group_id = _named(metadata)

        def commit(entry: GroupEntry) -> None:
            _check(entry, metadata, offsets, self._clock(), knows_epochs=knows_epochs)
            self._offsets.commit(group_id, offsets, topic_ids)

        self._groups.ask_held(group_id, commit, make=_is_by_group(metadata))

    def check_commit(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        group_instance_id: str | None = None,
        partitions: Collection[TopicPartition] = (),
    ) -> None:
        """Raise an error unless this member may commit offsets of these partitions now. A commit without a
        member (generation -1, member id "") is accepted only if the group has no members. Raises
        UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError, RebalanceInProgressError,
        StaleMemberEpochError.
        """
        metadata = ConsumerGroupMetadata(group_id, generation, member_id, group_instance_id)

        def ask(entry: GroupEntry) -> None:
            _check(entry, metadata, partitions, self._clock())

        self._groups.ask_held(group_id, ask, make=False)

    def while_valid(
        self, metadata: ConsumerGroupMetadata, partitions: Collection[TopicPartition], run: Callable[[], T]
    ) -> T:
        """If a transaction may commit offsets of these partitions now, call `run` under the group's lock, and
        return the result of `run`. `metadata` may name a member, or only the group. Raises
        UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError, StaleMemberEpochError.
        """

        def ask(entry: GroupEntry) -> T:
            _check(entry, metadata, partitions, self._clock(), transactional=True)
            return run()

        return self._groups.ask_held(_named(metadata), ask, make=_is_by_group(metadata))

    # --- queries -------------------------------------------------------------------------------

    def state(self, group_id: str) -> ClassicGroupState | ConsumerState | ShareGroupState:
        """Return the group's state, or DEAD if there is no such group."""
        entry = self._groups.find(group_id)
        if entry is None:
            return ClassicGroupState.DEAD
        with entry.lock:
            modern = entry.consumer or entry.share
            return entry.group.state if modern is None else modern.group.state

    def members(self, group_id: str) -> list[MemberInfo]:
        """Return the members of a classic group with their assignments; an empty list if there is no such
        group.
        """
        info = self.describe(group_id)
        return [] if info is None else list(info.members)

    def describe(self, group_id: str) -> GroupInfo | None:
        """Return a classic group with its members, or None if there is no such group."""
        entry = self._groups.find(group_id)
        if entry is None:
            return None
        with entry.lock:
            return None if entry.consumer or entry.share else entry.group.info()

    def exists(self, group_id: str) -> bool:
        """Return whether there is a classic, consumer or share group of this id."""
        return self._groups.find(group_id) is not None

    def generation(self, group_id: str) -> int:
        """Return the generation of a classic group, or the group epoch of a consumer or share group; -1 if
        there is no such group.
        """
        entry = self._groups.find(group_id)
        if entry is None:
            return -1
        with entry.lock:
            modern = entry.consumer or entry.share
            return entry.group.generation if modern is None else modern.group.epoch

    def changes(self, group_id: str) -> int:
        """Return the group's change counter, or -1 if the group is not in memory. A member asks for its
        assignment again if the counter has changed since the member's last call. Takes no lock.
        """
        entry = self._groups.get(group_id)
        return -1 if entry is None else entry.changes

    def ids(self) -> set[str]:
        """Return the ids of all groups that are in memory or have committed offsets, even if their records
        can't be decoded.
        """
        return self._offsets.groups().union(self._groups.ids())

    def while_empty(self, group_id: str, run: Callable[[], T]) -> T:
        """If the group has no members, call `run` under the group's lock, so that no member can join, and
        return the result of `run`. Raises NonEmptyGroupError.
        """

        def ask(entry: GroupEntry) -> T:
            if entry.has_members:
                raise NonEmptyGroupError(f"group {group_id!r} has members: stop them first")
            return run()

        return self._groups.ask_held(group_id, ask)

    def while_subscribed(self, group_id: str, run: Callable[[Collection[str]], T]) -> T:
        """Call `run` with the topics that members subscribe to, under the group's lock, so that the
        subscriptions stay the same. Return the result of `run`. Raises GroupNotFoundError for a share group.
        Raises NonEmptyGroupError if the members are not consumers: it is not known to which topics other
        clients subscribe.
        """

        def ask(entry: GroupEntry) -> T:
            if entry.share is not None:
                raise GroupNotFoundError(f"group {group_id!r} is a share group: it commits no offsets")
            consumer = entry.consumer
            return run(entry.group.subscribed() if consumer is None else consumer.group.subscribed())

        return self._groups.ask_held(group_id, ask, make=False)

    def forget(self, group_id: str) -> None:
        """If a deleted group has no members, drop it from memory: the next request to this group id creates a
        new group.
        """

        def ask(entry: GroupEntry) -> None:
            if not entry.has_members:
                entry.group.state = ClassicGroupState.DEAD
                self._groups.drop(entry)

        self._groups.ask_held(group_id, ask)

    # --- time ------------------------------------------------------------------------------------

    def run_due(self) -> None:
        """In all groups, remove members whose sessions have expired, and end each rebalance's wait for
        members whose deadline has passed. A timer of `GroupTable` does so when the first deadline passes; a
        test that sets the clock calls `run_due` itself.
        """
        self._groups.run_due()

    def close(self) -> None:
        """Refuse further requests. Members that wait for an answer get StoreClosedError."""
        self._groups.close()


def forget_share_partitions(store: Store, topic: str) -> None:
    """Remove a deleted topic's partitions from share groups, and delete the durable states of these
    partitions (KIP-932). An error is only logged.
    """
    try:
        if shared(store, GroupOffsets).share_groups():
            shared(store, GroupCoordinator).forget_share_topics()
    except SegstoreError as error:
        log.warning("%s: deleted, but share groups still have its partitions: %s", topic, error)


def _named(metadata: ConsumerGroupMetadata) -> str:
    if not isinstance(metadata.group_id, str) or not metadata.group_id:
        raise InvalidGroupIdError(f"group_id={metadata.group_id!r}: must be a str that is not empty")
    return metadata.group_id


def _is_by_group(metadata: ConsumerGroupMetadata) -> bool:
    """Return whether a commit names no member. A commit without a member may create the group."""
    return metadata.generation_id < 0 and not metadata.member_id


def _check(
    entry: GroupEntry,
    metadata: ConsumerGroupMetadata,
    partitions: Collection[TopicPartition],
    now: float,
    transactional: bool = False,
    knows_epochs: bool = True,
) -> None:
    _, generation, member_id, instance, _ = metadata
    if entry.share is not None:
        raise GroupNotFoundError(f"group {metadata.group_id!r} is a share group: it commits no offsets")
    if entry.consumer is None:
        entry.group.check_commit(generation, member_id, instance, now, transactional)
    else:
        is_named = bool(member_id or instance is not None) or not transactional
        entry.consumer.check_commit(member_id, generation, partitions, is_named, knows_epochs)
