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

from segstore.coordinator.group.group import Group
from segstore.coordinator.group.group_table import GroupTable
from segstore.coordinator.group.member import (
    GroupInfo,
    Joined,
    Joining,
    Leaver,
    MemberInfo,
    MonotonicMs,
    State,
    Ticket,
    monotonic_ms,
)
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import (
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    NonEmptyGroupError,
    SegstoreError,
)
from segstore.storage.store.store import Store

T = TypeVar("T")


class GroupCoordinator:
    """Kafka's classic group coordinator (GroupMetadataManager). A store has one, as a shared part."""

    def __init__(self, store: Store, clock: MonotonicMs = monotonic_ms) -> None:
        self._clock = clock
        self._config = store._writer().config
        self._offsets = shared(store, GroupOffsets)
        self._groups = GroupTable(store, self._offsets, self.now)
        self._offsets.empty_since = self._groups.empty_since

    def now(self) -> float:
        """Return ms of the clock that sessions are measured by."""
        return self._clock()

    # --- membership --------------------------------------------------------------------------

    def join(self, group_id: str, joining: Joining) -> Ticket[Joined]:
        """Join the group, or join it again. Raises InvalidGroupIdError, InvalidSessionTimeoutError,
        UnknownMemberIdError, FencedInstanceIdError, InconsistentGroupProtocolError,
        GroupMaxSizeReachedError, MemberIdRequiredError.
        """
        self._check_joining(group_id, joining)
        return self._groups.ask(group_id, lambda group: group.join(joining, self._clock()))

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

        def sync(group: Group) -> Ticket[bytes]:
            now = self._clock()
            brought = assignments or {}
            return group.sync(member_id, group_instance_id, generation, protocol, brought, now, protocol_type)

        return self._groups.ask(group_id, sync, make=False)

    def heartbeat(
        self, group_id: str, member_id: str, generation: int, group_instance_id: str | None = None
    ) -> None:
        """Extend the member's session. Raises RebalanceInProgressError where the member has to join again;
        UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError.
        """
        self._groups.ask(
            group_id,
            lambda group: group.heartbeat(member_id, group_instance_id, generation, self._clock()),
            make=False,
        )

    def leave(self, group_id: str, member_id: str, group_instance_id: str | None = None) -> None:
        """Leave the group, as a static member too. Raises UnknownMemberIdError, FencedInstanceIdError."""
        self._groups.ask(
            group_id, lambda group: group.leave(member_id, group_instance_id, self._clock()), make=False
        )

    def leave_all(self, group_id: str, leaving: Collection[Leaver]) -> list[SegstoreError | None]:
        """Remove several members by one rebalance, static members by their group_instance_id alone where the
        member id is empty; return for each why it could not be removed, None where it was.
        """
        return self._groups.ask(group_id, lambda group: group.leave_all(leaving, self._clock()), make=False)

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
        self, metadata: ConsumerGroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Commit offsets for a member. Raises what `check_commit` and GroupOffsets.commit raise."""
        group_id = _named(metadata)

        def commit(group: Group) -> None:
            _check(group, metadata, self._clock())
            self._offsets.commit(group_id, offsets)

        self._groups.ask(group_id, commit, make=not metadata.member_id)

    def check_commit(
        self, group_id: str, generation: int, member_id: str, group_instance_id: str | None = None
    ) -> None:
        """Raise unless that member may commit now; without a member (-1, "") only a group without members
        takes commits. Raises UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError,
        RebalanceInProgressError.
        """
        self._groups.ask(
            group_id,
            lambda group: group.check_commit(generation, member_id, group_instance_id, self._clock()),
        )

    def while_valid(self, metadata: ConsumerGroupMetadata, run: Callable[[], T]) -> T:
        """Call `run` while a transaction may commit offsets for that member, or for a group by its id alone;
        return what `run` returns. The group is locked meanwhile, so that the answer stays true. Raises
        UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError.
        """

        def ask(group: Group) -> T:
            _check(group, metadata, self._clock(), transactional=True)
            return run()

        return self._groups.ask(_named(metadata), ask)

    # --- what others ask -----------------------------------------------------------------------

    def state(self, group_id: str) -> State:
        """Return the group's state, DEAD where there is no such group."""
        held = self._groups.find(group_id)
        return State.DEAD if held is None else held.group.state

    def members(self, group_id: str) -> list[MemberInfo]:
        """Return the members and their assignments; an empty list where there is no such group."""
        held = self._groups.find(group_id)
        if held is None:
            return []
        with held.lock:
            return held.group.infos()

    def describe(self, group_id: str) -> GroupInfo | None:
        """Return the group with its members; None where there is no such group."""
        held = self._groups.find(group_id)
        if held is None:
            return None
        with held.lock:
            return held.group.info()

    def generation(self, group_id: str) -> int:
        """Return the group's current generation, -1 where there is no such group."""
        held = self._groups.find(group_id)
        return -1 if held is None else held.group.generation

    def changes(self, group_id: str) -> int:
        """Return a number that differs whenever a member should ask what changed. Takes no lock."""
        held = self._groups.get(group_id)
        return -1 if held is None else held.group.changes

    def groups(self) -> dict[str, State]:
        """Return all groups that have members, or had some, or have committed offsets."""
        return {group_id: self.state(group_id) for group_id in sorted(self.ids())}

    def ids(self) -> set[str]:
        """Return the ids of the groups that `groups` returns, and of those whose records are not known."""
        return self._offsets.groups().union(self._groups.ids())

    def while_empty(self, group_id: str, run: Callable[[], T]) -> T:
        """Return what `run` returns; the group has no members, and gets none while it runs. Raises
        NonEmptyGroupError.
        """

        def ask(group: Group) -> T:
            if group.members:
                raise NonEmptyGroupError(
                    f"group {group_id!r} is {group.state.value} and has {len(group.members)} members: "
                    "stop them first"
                )
            return run()

        return self._groups.ask(group_id, ask)

    def while_subscribed(self, group_id: str, run: Callable[[Collection[str]], T]) -> T:
        """Return what `run` returns for the topics to which members subscribe; they stay the same while it
        runs. Raises NonEmptyGroupError where the topics of the members are not known.
        """
        return self._groups.ask(group_id, lambda group: run(group.subscribed()), make=False)

    def forget(self, group_id: str) -> None:
        """Drop a group that was deleted: without members it begins anew."""

        def ask(group: Group) -> None:
            if not group.members:
                group.state = State.DEAD
                self._groups.drop(group)

        self._groups.ask(group_id, ask)

    # --- time ------------------------------------------------------------------------------------

    def run_due(self) -> None:
        """Do what is due in all groups, as the table's alarm does. This is for callers that run the clock
        themselves.
        """
        self._groups.run_due()

    def close(self) -> None:
        """End all memberships, because the store is being closed. Static members may come back."""
        self._groups.close()


def _named(metadata: ConsumerGroupMetadata) -> str:
    if not isinstance(metadata.group_id, str) or not metadata.group_id:
        raise InvalidGroupIdError(f"group_id={metadata.group_id!r}: must be a str that is not empty")
    return metadata.group_id


def _check(group: Group, metadata: ConsumerGroupMetadata, now: float, transactional: bool = False) -> None:
    group.check_commit(
        metadata.generation_id, metadata.member_id, metadata.group_instance_id, now, transactional
    )
