"""Members of groups that are only requests: `Member` speaks KIP-848, and `Classic` the classic protocol. Each
does what it is told.
"""

from __future__ import annotations

from typing import Any

from groups import coordinator

import segstore
from segstore import names
from segstore.coordinator.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from segstore.coordinator.group.assignors import by_name
from segstore.coordinator.group.assignors.base import MemberSubscription
from segstore.coordinator.group.classic.member import JoinGroupResult, Joining, Ticket
from segstore.coordinator.group.consumers.group import ConsumerGroupInfo
from segstore.coordinator.group.consumers.membership import Beaten, ConsumerHeartbeat
from segstore.coordinator.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from segstore.errors import IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError

REBALANCE_MS, CLASSIC_SESSION_MS = 60_000, 10_000


def id_of(store: segstore.Store, topic: str = "t") -> bytes:
    return names.topic_id_bytes(store.topics()[topic].topic_id)


class Member:
    """A member that does what it is told: `has` are its partitions of topic "t"."""

    def __init__(self, store: segstore.Store, member_id: str, *topics: str, **said: Any) -> None:
        self.store, self.member_id, self.epoch = store, member_id, 0
        self.said = {"topic_names": topics or ("t",), "rebalance_timeout_ms": REBALANCE_MS, **said}
        self.instance = self.said.get("instance_id")
        self.given: dict[bytes, frozenset[int]] = {}

    @property
    def has(self) -> set[int]:
        return set(self.given.get(id_of(self.store), ())) if "t" in self.store.topics() else set()

    def join(self) -> Member:
        self.epoch, self.given = 0, {}
        self.take(self.ask(epoch=0, owned={}, **self.said))
        return self

    def ask(self, **said: Any) -> Beaten:
        """Send a heartbeat, and do not do what it answers."""
        asked = {"member_id": self.member_id, "epoch": self.epoch, "instance_id": self.instance, **said}
        return coordinator(self.store).consumer_heartbeat("g", ConsumerHeartbeat(**asked))

    def beat(self, **said: Any) -> Beaten:
        """Send a heartbeat that says what the member has, and do what it answers."""
        beaten = self.ask(owned=self.given, **said)
        self.take(beaten)
        return beaten

    def take(self, beaten: Beaten) -> None:
        self.epoch = beaten.epoch
        if beaten.assignment is not None:
            self.given = dict(beaten.assignment)

    def leave(self, epoch: int = -1) -> Beaten:
        return self.ask(epoch=epoch)


def info(store: segstore.Store) -> ConsumerGroupInfo:
    found = coordinator(store).describe_consumers("g")
    assert found is not None
    return found


class Classic:
    """A member of the classic protocol, by the given assignor: `has` are its partitions of topic "t". Each
    `turn` is a heartbeat, or the next step of a rebalance.
    """

    def __init__(
        self,
        store: segstore.Store,
        name: str,
        assignor: str = "range",
        instance: str | None = None,
        group: str = "g",
    ) -> None:
        self.store, self.name, self.instance, self.group = store, name, instance, group
        self.assignor = by_name(assignor)
        self.member_id, self.generation = "", -1
        self.has: set[int] = set()
        self.joining: Ticket[JoinGroupResult] | None = None
        self.syncing: Ticket[bytes] | None = None

    @property
    def metadata(self) -> ConsumerGroupMetadata:
        return ConsumerGroupMetadata(self.group, self.generation, self.member_id, self.instance)

    def join(self) -> Classic:
        """Ask to join; an eager member gives up everything before."""
        if not self.assignor.cooperative:
            self.has = set()
        owned = tuple(TopicPartition("t", number) for number in sorted(self.has))
        told = encode_subscription(MemberSubscription(("t",), owned, b"", self.generation))
        joining = Joining(
            protocols=((self.assignor.name, told),),
            member_id=self.member_id,
            group_instance_id=self.instance,
            client_id=self.name,
            session_timeout_ms=CLASSIC_SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
        )
        self.joining, self.syncing = coordinator(self.store).join(self.group, joining), None
        self.member_id = self.joining.member_id
        return self

    def turn(self) -> None:
        try:
            if self.syncing is not None:
                self._take(self.syncing.get())
            elif self.joining is not None:
                self._sync(self.joining.get())
            elif self.member_id:
                self.beat()
            else:
                self.join()
        except RebalanceInProgressError:
            self.join()
        except (IllegalGenerationError, UnknownMemberIdError) as error:
            self.has, self.generation = set(), -1
            self.member_id = self.member_id if isinstance(error, IllegalGenerationError) else ""
            self.join()

    def beat(self) -> None:
        coordinator(self.store).heartbeat(self.group, self.member_id, self.generation, self.instance)

    def _sync(self, joined: JoinGroupResult | None) -> None:
        if joined is None:
            return
        self.joining, self.generation = None, joined.generation
        told = {m.member_id: decode_subscription(m.subscription, m.group_instance_id) for m in joined.members}
        topics = {"t": self.store.topics()["t"].partition_ids}
        given = {} if joined.skip_assignment or not told else self.assignor.assign(topics, told)
        brought = {member_id: encode_assignment(given.get(member_id, ())) for member_id in given}
        who = self.member_id, joined.generation, joined.protocol, brought, self.instance
        self.syncing = coordinator(self.store).sync(self.group, *who)

    def _take(self, assignment: bytes | None) -> None:
        if assignment is None:
            return
        self.syncing = None
        given = {tp.partition for tp in decode_assignment(assignment)}
        has_given_up, self.has = bool(self.has - given), given
        if has_given_up:
            self.join()

    def leave(self) -> None:
        coordinator(self.store).leave(self.group, self.member_id, self.instance)
        self.member_id, self.generation, self.has = "", -1, set()
        self.joining = self.syncing = None

    def commit(self, offset: int) -> None:
        coordinator(self.store).commit(
            self.metadata, {TopicPartition("t", 0): OffsetAndMetadata(offset)}, knows_epochs=False
        )
