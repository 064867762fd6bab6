"""`GroupCoordinator`: the requests of members, clients and administrators to the groups of a store.

On disk: a group's generation, members and assignment are records of `__consumer_offsets`, written through
`coordinator.offsets` when a generation becomes stable and when a group becomes empty.
Threads: any. Each group has a lock, which is also held while an offset is committed, so that no commit
slips past a rebalance. No method waits: a member that has to wait gets a `Ticket`, and is woken in
`store.wait` when something changed.
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
    """Kafka's classic group coordinator (GroupMetadataManager). A store has one, as a shared part."""

    def __init__(self, store: Store, clock: MonotonicMs = monotonic_ms) -> None:
        offsets = shared(store, GroupOffsets)
        super().__init__(GroupTable(store, offsets, self.now), offsets, clock)
        self._config = store.writer().config
        self._offsets.empty_since, self._offsets.swept = self._groups.empty_since, self._groups.sweep

    def now(self) -> float:
        """Return ms of the clock that sessions are measured by."""
        return self._clock()

    # --- membership --------------------------------------------------------------------------

    def join(self, group_id: str, joining: Joining) -> Ticket[JoinGroupResult]:
        """Join the group, or join it again. Raises InvalidGroupIdError, InvalidSessionTimeoutError,
        UnknownMemberIdError, FencedInstanceIdError, InconsistentGroupProtocolError,
        GroupMaxSizeReachedError, MemberIdRequiredError.
        """
        self._check_joining(group_id, joining)

        def join(held: GroupEntry) -> Ticket[JoinGroupResult]:
            return self._groups.join(held, joining, self._clock())

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
        """Ask for the member's assignment; the leader brings all assignments. A protocol and its type that
        are None are not checked. Raises UnknownMemberIdError, IllegalGenerationError,
        RebalanceInProgressError, FencedInstanceIdError, InconsistentGroupProtocolError; StorageError where
        the assignments could not be written, and may be brought again.
        """

        def sync(held: GroupEntry) -> Ticket[bytes]:
            now, who = self._clock(), (member_id, group_instance_id, generation)
            if held.consumer is not None:
                return held.consumer.sync(*who, protocol, now, protocol_type)
            return held.group.sync(*who, protocol, assignments or {}, now, protocol_type)

        return self._groups.ask_held(group_id, sync, make=False)

    def heartbeat(
        self, group_id: str, member_id: str, generation: int, group_instance_id: str | None = None
    ) -> None:
        """Extend the member's session. Raises RebalanceInProgressError where the member has to join again;
        UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError.
        """

        def beat(held: GroupEntry) -> None:
            who = member_id, group_instance_id, generation
            if held.consumer is not None:
                held.consumer.classic_heartbeat(*who, self._clock())
            else:
                held.group.heartbeat(*who, self._clock())

        self._groups.ask_held(group_id, beat, make=False)

    def leave(self, group_id: str, member_id: str, group_instance_id: str | None = None) -> None:
        """Leave the group, as a static member too. Raises UnknownMemberIdError, FencedInstanceIdError."""
        (error,) = self.leave_all(group_id, [(member_id, group_instance_id)])
        if error is not None:
            raise copy_of(error)

    def leave_all(self, group_id: str, leaving: Collection[Leaver]) -> list[SegstoreError | None]:
        """Remove several members by one rebalance, static members by their group_instance_id alone where the
        member id is empty; return for each why it could not be removed, None where it was.
        """

        def leave(held: GroupEntry) -> list[SegstoreError | None]:
            if held.consumer is not None:
                return held.consumer.leave_all(leaving)
            return held.group.leave_all(leaving, self._clock())

        return self._groups.ask_held(group_id, leave, make=False)

    # --- consumer groups -----------------------------------------------------------------------

    def consumer_heartbeat(self, group_id: str, asked: ConsumerHeartbeat) -> Beaten:
        """Take what a member of a consumer group says, and answer what it shall have (KIP-848). Raises
        InvalidGroupIdError, GroupNotFoundError where there is no such consumer group and the member does not
        join, and what `ConsumerMembership.heartbeat` raises.
        """
        check_group(group_id)
        now = self._clock()

        def beat(consumer: ConsumerMembership) -> Beaten:
            return consumer.heartbeat(asked, now)

        def ask(held: GroupEntry) -> Beaten:
            if held.consumer is None and asked.epoch != JOIN_EPOCH:
                raise GroupNotFoundError(f"there is no consumer group {group_id!r}")
            return self._groups.as_consumers(held, beat)

        return self._groups.ask_held(group_id, ask, make=asked.epoch == JOIN_EPOCH)

    def describe_consumers(self, group_id: str) -> ConsumerGroupInfo | None:
        """Return a consumer group with its members; None where there is no such group."""
        held = self._groups.find(group_id)
        if held is None:
            return None
        with held.lock:
            return None if held.consumer is None else held.consumer.info()

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> None:
        """Raise unless that member may fetch offsets now; anybody may who names no member. Raises
        UnknownMemberIdError, StaleMemberEpochError.
        """
        held = self._groups.find(group_id) if member_id is not None or epoch >= 0 else None
        if held is not None and held.consumer is not None:
            with held.lock:
                held.consumer.group.check_fetch(member_id, epoch)

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
        """Commit offsets for a member; `topic_ids` as of GroupOffsets.commit. Raises what `check_commit` and
        GroupOffsets.commit raise, and UnsupportedVersionError for a member of a consumer group that asks by a
        request that does not know of member epochs.
        """
        group_id = _named(metadata)

        def commit(held: GroupEntry) -> None:
            _check(held, metadata, offsets, self._clock(), knows_epochs=knows_epochs)
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
        """Raise unless that member may commit offsets of these partitions now; without a member (-1, "") only
        a group without members takes commits. Raises UnknownMemberIdError, IllegalGenerationError,
        FencedInstanceIdError, RebalanceInProgressError, StaleMemberEpochError.
        """
        metadata = ConsumerGroupMetadata(group_id, generation, member_id, group_instance_id)

        def ask(held: GroupEntry) -> None:
            _check(held, metadata, partitions, self._clock())

        self._groups.ask_held(group_id, ask, make=False)

    def while_valid(
        self, metadata: ConsumerGroupMetadata, partitions: Collection[TopicPartition], run: Callable[[], T]
    ) -> T:
        """Call `run` while a transaction may commit offsets of these partitions for that member, or for a
        group by its id alone; return the result of `run`. The group is locked while `run` runs, so that the
        answer stays true. Raises UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError,
        StaleMemberEpochError.
        """

        def ask(held: GroupEntry) -> T:
            _check(held, metadata, partitions, self._clock(), transactional=True)
            return run()

        return self._groups.ask_held(_named(metadata), ask, make=_is_by_group(metadata))

    # --- what others ask -----------------------------------------------------------------------

    def state(self, group_id: str) -> ClassicGroupState | ConsumerState | ShareGroupState:
        """Return the group's state, DEAD where there is no such group."""
        held = self._groups.find(group_id)
        if held is None:
            return ClassicGroupState.DEAD
        with held.lock:
            modern = held.consumer or held.share
            return held.group.state if modern is None else modern.group.state

    def members(self, group_id: str) -> list[MemberInfo]:
        """Return the members of a classic group and their assignments; an empty list where there is no such
        group.
        """
        info = self.describe(group_id)
        return [] if info is None else list(info.members)

    def describe(self, group_id: str) -> GroupInfo | None:
        """Return a classic group with its members; None where there is no such group."""
        held = self._groups.find(group_id)
        if held is None:
            return None
        with held.lock:
            return None if held.consumer or held.share else held.group.info()

    def exists(self, group_id: str) -> bool:
        """Return whether there is a group, of either protocol."""
        return self._groups.find(group_id) is not None

    def generation(self, group_id: str) -> int:
        """Return the group's current generation, which is the epoch of a consumer or share group; -1 if there
        is no such group.
        """
        held = self._groups.find(group_id)
        if held is None:
            return -1
        with held.lock:
            modern = held.consumer or held.share
            return held.group.generation if modern is None else modern.group.epoch

    def changes(self, group_id: str) -> int:
        """Return a number that differs whenever a member should ask what changed. Takes no lock."""
        held = self._groups.get(group_id)
        return -1 if held is None else held.changes

    def ids(self) -> set[str]:
        """Return the ids of all groups that have members, or had some, or have committed offsets; also of
        those whose records are not known.
        """
        return self._offsets.groups().union(self._groups.ids())

    def while_empty(self, group_id: str, run: Callable[[], T]) -> T:
        """Return what `run` returns; the group has no members, and gets none while it runs. Raises
        NonEmptyGroupError.
        """

        def ask(held: GroupEntry) -> T:
            if held.has_members:
                raise NonEmptyGroupError(f"group {group_id!r} has members: stop them first")
            return run()

        return self._groups.ask_held(group_id, ask)

    def while_subscribed(self, group_id: str, run: Callable[[Collection[str]], T]) -> T:
        """Return what `run` returns for the topics to which members subscribe; they stay the same while it
        runs. Raises NonEmptyGroupError if the topics of the members are not known, GroupNotFoundError for a
        share group.
        """

        def ask(held: GroupEntry) -> T:
            if held.share is not None:
                raise GroupNotFoundError(f"group {group_id!r} is a share group: it commits no offsets")
            consumer = held.consumer
            return run(held.group.subscribed() if consumer is None else consumer.group.subscribed())

        return self._groups.ask_held(group_id, ask, make=False)

    def forget(self, group_id: str) -> None:
        """Drop a group that was deleted: without members it begins anew."""

        def ask(held: GroupEntry) -> None:
            if not held.has_members:
                held.group.state = ClassicGroupState.DEAD
                self._groups.drop(held)

        self._groups.ask_held(group_id, ask)

    # --- time ------------------------------------------------------------------------------------

    def run_due(self) -> None:
        """Do what is due in all groups, as the table's alarm does. This is for callers that run the clock
        themselves.
        """
        self._groups.run_due()

    def close(self) -> None:
        """End all memberships, because the store is being closed. Static members may come back."""
        self._groups.close()


def forget_share_partitions(store: Store, topic: str) -> None:
    """Take a deleted topic's partitions from share groups, and delete their states (KIP-932)."""
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
    """Return whether somebody who is no member commits, by the group's id alone: that makes the group."""
    return metadata.generation_id < 0 and not metadata.member_id


def _check(
    held: GroupEntry,
    metadata: ConsumerGroupMetadata,
    partitions: Collection[TopicPartition],
    now: float,
    transactional: bool = False,
    knows_epochs: bool = True,
) -> None:
    _, generation, member_id, instance, _ = metadata
    if held.share is not None:
        raise GroupNotFoundError(f"group {metadata.group_id!r} is a share group: it commits no offsets")
    if held.consumer is None:
        held.group.check_commit(generation, member_id, instance, now, transactional)
    else:
        is_named = bool(member_id or instance is not None) or not transactional
        held.consumer.check_commit(member_id, generation, partitions, is_named, knows_epochs)
