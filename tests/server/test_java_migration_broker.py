"""Promise: groups change between the classic protocol and KIP-848's as with a real broker of Kafka 4.1, while
they have members: all are answered alike, step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kafka_broker import Broker
from kafka_tools import POM_4_1, classpath, why_not
from waiting import until
from wire_client import Sent, WireClient

import segstore
from segstore.coordinator.consumer_protocol import decode_assignment, encode_assignment, encode_subscription
from segstore.coordinator.group.assignors.base import MemberSubscription
from segstore.coordinator.structs import TopicPartition
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code

pytestmark = [
    pytest.mark.judge("Kafka's broker"),
    pytest.mark.skipif(bool(why_not()), reason=str(why_not())),
    pytest.mark.kind("Java's clients"),
]
PARTITIONS = 12
"""So many that up to four members have as many each."""
TRANSACTIONS = "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
New = structs("CreateTopicsRequest").CreatableTopic
Owned = structs("ConsumerGroupHeartbeatRequest").TopicPartitions
Protocol = structs("JoinGroupRequest").JoinGroupRequestProtocol
Brought = structs("SyncGroupRequest").SyncGroupRequestAssignment
Leaver = structs("LeaveGroupRequest").MemberIdentity
COMMIT, FETCH, TXN = (
    structs(f"{name}Request") for name in ("OffsetCommit", "OffsetFetch", "TxnOffsetCommit")
)
JOIN: dict[str, Any] = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["t"]}


class Server:
    """A server to which the steps go. Members have a connection each, and are known by names: their ids
    differ from server to server, and so may which partitions they get, so that these are counted.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._wires: dict[str, WireClient] = {}
        self._sent: dict[str, Sent] = {}
        self._has: dict[str, list[TopicPartition]] = {}
        self.ids: dict[str, str] = {}
        self.at: dict[str, int] = {}
        self.topic_id = b""

    def __enter__(self) -> Server:
        wire = self._wire("admin")
        (made,) = wire.ask(
            "CreateTopics", 7, topics=[New(name="t", num_partitions=PARTITIONS, replication_factor=1)]
        ).topics
        self.topic_id = made.topic_id
        until(lambda: self._has_coordinator(0, "g") and self._has_coordinator(1, "x"))
        until(self._is_loaded)
        return self

    def _has_coordinator(self, kind: int, key: str) -> bool:
        answer = self._wire("admin").ask("FindCoordinator", 4, key_type=kind, coordinator_keys=[key])
        return not answer.coordinators[0].error_code

    def _producer(self) -> Any:
        """Return a producer id, once the last transaction has ended."""
        found: list[Any] = []

        def given() -> bool:
            asked = {"transactional_id": "x", "transaction_timeout_ms": 60_000}
            found[:] = [self._wire("admin").ask("InitProducerId", 4, **asked)]
            return bool(found[0].error_code == Code.NONE)

        until(given)
        return found[0]

    def _is_loaded(self) -> bool:
        probe = {"group_id": "probe", "member_id": "p", "member_epoch": 1}
        answer = self._wire("admin").ask("ConsumerGroupHeartbeat", 1, **probe)
        return bool(answer.error_code == Code.GROUP_ID_NOT_FOUND)

    def __exit__(self, *_: object) -> None:
        for wire in self._wires.values():
            wire.close()

    def _wire(self, name: str) -> WireClient:
        if name not in self._wires:
            self._wires[name] = WireClient(self._host, self._port)
        return self._wires[name]

    def _named(self, member_id: str) -> str:
        return next((name for name, held in self.ids.items() if held == member_id), member_id and "?")

    # --- members of the classic protocol -----------------------------------------------------------

    def ask_to_join(
        self,
        name: str,
        group: str = "g",
        instance: str | None = None,
        names: tuple[str, ...] = ("range",),
        owns: bool = False,
        kind: str = "consumer",
        member_id: str | None = None,
        metadata: bytes | None = None,
        topics: tuple[str, ...] = ("t",),
        version: int = 9,
    ) -> None:
        owned = tuple(self._has.get(name, ())) if owns else ()
        told = encode_subscription(MemberSubscription(topics, owned)) if metadata is None else metadata
        self._sent[name] = self._wire(name).send(
            "JoinGroup",
            version,
            group_id=group,
            session_timeout_ms=45_000,
            rebalance_timeout_ms=60_000,
            member_id=self.ids.get(name, "") if member_id is None else member_id,
            group_instance_id=instance,
            protocol_type=kind,
            protocols=[Protocol(name=each, metadata=told) for each in names],
        )

    def joined(self, name: str) -> dict[str, Any]:
        answer = self._wire(name).receive(self._sent.pop(name))
        if answer.member_id and answer.error_code in (Code.NONE, Code.MEMBER_ID_REQUIRED):
            self.ids[name] = answer.member_id
        if answer.error_code == Code.NONE:
            self.at[name] = answer.generation_id
        return {
            "code": Code(answer.error_code).name,
            "generation": answer.generation_id,
            "protocol": (answer.protocol_type, answer.protocol_name),
            "leader": self._named(answer.leader),
            "members": sorted(self._named(each.member_id) for each in answer.members),
        }

    def join(self, name: str, **how: Any) -> dict[str, Any]:
        self.ask_to_join(name, **how)
        return self.joined(name)

    def sync(
        self,
        name: str,
        brings: dict[str, list[int]] | None = None,
        group: str = "g",
        generation: int | None = None,
        instance: str | None = None,
        protocol: str = "range",
        kind: str = "consumer",
    ) -> dict[str, Any]:
        brought = {
            self.ids[each]: encode_assignment([TopicPartition("t", number) for number in numbers])
            for each, numbers in (brings or {}).items()
        }
        answer = self._wire(name).ask(
            "SyncGroup",
            5,
            group_id=group,
            generation_id=self.at.get(name, -1) if generation is None else generation,
            member_id=self.ids.get(name, ""),
            group_instance_id=instance,
            protocol_type=kind,
            protocol_name=protocol,
            assignments=[Brought(member_id=each, assignment=given) for each, given in brought.items()],
        )
        if answer.error_code == Code.NONE:
            self._has[name] = decode_assignment(answer.assignment)
        return {
            "code": Code(answer.error_code).name,
            "has": len(decode_assignment(answer.assignment)),
            "version": answer.assignment[:2],
            "user data": answer.assignment[-4:],
        }

    def heartbeat(self, name: str, generation: int | None = None, instance: str | None = None) -> str:
        answer = self._wire(name).ask(
            "Heartbeat",
            4,
            group_id="g",
            generation_id=self.at.get(name, -1) if generation is None else generation,
            member_id=self.ids[name],
            group_instance_id=instance,
        )
        return Code(answer.error_code).name

    def leave(self, name: str, instance: str | None = None) -> list[str]:
        identity = Leaver(member_id=self.ids.get(name, name), group_instance_id=instance)
        answer = self._wire("admin").ask("LeaveGroup", 5, group_id="g", members=[identity])
        return [Code(answer.error_code).name, *(Code(each.error_code).name for each in answer.members)]

    # --- members of KIP-848 ------------------------------------------------------------------------

    def beat(
        self, name: str, epoch: int | None = None, group: str = "g", has: bool = True, **fields: Any
    ) -> dict[str, Any]:
        self.ids.setdefault(name, f"{name}-id")
        sent = self.at.get(name, 0) if epoch is None else epoch
        if sent == 0:
            fields, self._has[name] = {**JOIN, **fields}, []
        if has:
            numbers = [tp.partition for tp in self._has.get(name, ())]
            fields["topic_partitions"] = (
                [Owned(topic_id=self.topic_id, partitions=numbers)] if numbers else []
            )
        fields = {"group_id": group, "member_id": self.ids[name], "member_epoch": sent, **fields}
        answer = self._wire(name).ask("ConsumerGroupHeartbeat", 1, **fields)
        if answer.error_code == Code.NONE and sent >= 0:
            self.at[name] = answer.member_epoch
        given = None
        if answer.assignment is not None:
            topics = answer.assignment.topic_partitions
            self._has[name] = [TopicPartition("t", n) for each in topics for n in each.partitions]
            given = len(self._has[name])
        return {"code": Code(answer.error_code).name, "epoch": answer.member_epoch, "given": given}

    # --- offsets -----------------------------------------------------------------------------------

    def commit(self, name: str, generation: int | None = None, version: int = 9) -> str:
        part = COMMIT.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
        at = self.at.get(name, -1) if generation is None else generation
        answer = self._wire("admin").ask(
            "OffsetCommit",
            version,
            group_id="g",
            member_id=self.ids.get(name, ""),
            generation_id_or_member_epoch=at,
            topics=[COMMIT.OffsetCommitRequestTopic(name="t", partitions=[part])],
        )
        return Code(answer.topics[0].partitions[0].error_code).name

    def fetch(self, name: str, epoch: int | None = None) -> str:
        at = self.at.get(name, -1) if epoch is None else epoch
        asked = FETCH.OffsetFetchRequestGroup(
            group_id="g",
            member_id=self.ids.get(name),
            member_epoch=at,
            topics=[FETCH.OffsetFetchRequestTopics(name="t", partition_indexes=[0])],
        )
        return Code(self._wire("admin").ask("OffsetFetch", 9, groups=[asked]).groups[0].error_code).name

    def commit_in_transaction(self, name: str, generation: int | None = None) -> str:
        wire, of, who = self._wire("admin"), {"transactional_id": "x"}, self._producer()
        producer = {"producer_id": who.producer_id, "producer_epoch": who.producer_epoch}
        assert wire.ask("AddOffsetsToTxn", 3, **of, **producer, group_id="g").error_code == Code.NONE
        part = TXN.TxnOffsetCommitRequestPartition(partition_index=1, committed_offset=8)
        answer = wire.ask(
            "TxnOffsetCommit",
            3,
            **of,
            **producer,
            group_id="g",
            generation_id_or_member_epoch=self.at.get(name, -1) if generation is None else generation,
            member_id=self.ids.get(name, ""),
            topics=[TXN.TxnOffsetCommitRequestTopic(name="t", partitions=[part])],
        )
        assert wire.ask("EndTxn", 3, **of, **producer, committed=True).error_code == Code.NONE
        return Code(answer.topics[0].partitions[0].error_code).name

    # --- administration ----------------------------------------------------------------------------

    def told(self) -> dict[str, Any]:
        """Return what administrators are told of the group."""
        wire = self._wire("admin")
        (modern,) = wire.ask("ConsumerGroupDescribe", 1, group_ids=["g"]).groups
        (classic,) = wire.ask("DescribeGroups", 6, groups=["g"]).groups
        listed = [each for each in wire.ask("ListGroups", 5).groups if each.group_id == "g"]
        names = ("instance_id", "member_epoch", "subscribed_topic_names", "member_type", "rack_id")
        names += ("subscribed_topic_regex",)
        return {
            "listed": [(each.protocol_type, each.group_state, each.group_type) for each in listed],
            "modern": (
                Code(modern.error_code).name,
                modern.group_state,
                modern.group_epoch,
                modern.assignment_epoch,
                modern.assignor_name,
            ),
            "modern members": sorted(
                (self._named(each.member_id), *(getattr(each, name) for name in names), *counts(each))
                for each in modern.members
            ),
            "classic": [Code(classic.error_code).name, classic.group_state, classic.protocol_type],
            "protocol": classic.protocol_data,
            "classic members": sorted(
                (self._named(each.member_id), str(each.group_instance_id), bool(each.member_metadata))
                for each in classic.members
            ),
        }


def counts(member: Any) -> list[int]:
    """Return how many partitions a member has, and shall have."""
    given = (member.assignment, member.target_assignment)
    return [sum(len(topic.partitions) for topic in each.topic_partitions) for each in given]


Step = Callable[[Server], Any]
EVERY = list(range(PARTITIONS))
STEPS: dict[str, Step] = {
    # A classic group, which a member of KIP-848 joins.
    "x asks for an id": lambda to: to.join("x"),
    "x joins": lambda to: to.join("x"),
    "x syncs": lambda to: to.sync("x", {"x": EVERY}),
    "a comes with an epoch to a classic group": lambda to: to.beat("a", 1),
    "a joins with a false assignor": lambda to: to.beat("a", 0, server_assignor="sticky"),
    "the group is classic still": lambda to: to.told(),
    "a joins": lambda to: to.beat("a"),
    "the group is a consumer group": lambda to: to.told(),
    "x is to join anew": lambda to: to.heartbeat("x"),
    "x comes with a later generation": lambda to: to.heartbeat("x", 9),
    "x syncs too early": lambda to: to.sync("x"),
    "a waits": lambda to: to.beat("a"),
    "x commits in its generation": lambda to: to.commit("x"),
    "x commits by an old request": lambda to: to.commit("x", version=5),
    "x commits in a later generation": lambda to: to.commit("x", 9),
    "x commits in a transaction": lambda to: to.commit_in_transaction("x"),
    "x commits in a transaction, later": lambda to: to.commit_in_transaction("x", 9),
    "a commits in a transaction": lambda to: to.commit_in_transaction("a"),
    "a commits in a transaction, later": lambda to: to.commit_in_transaction("a", 9),
    "a commits": lambda to: to.commit("a"),
    "a commits by an old request": lambda to: to.commit("a", version=8),
    "a commits later": lambda to: to.commit("a", 9),
    "nobody commits": lambda to: to.commit("nobody"),
    "x fetches": lambda to: to.fetch("x"),
    "x fetches later": lambda to: to.fetch("x", 9),
    "a fetches later": lambda to: to.fetch("a", 9),
    "x joins the consumer group": lambda to: to.join("x"),
    "x syncs by another protocol": lambda to: to.sync("x", protocol="roundrobin"),
    "x syncs by another type": lambda to: to.sync("x", kind="connect"),
    "x syncs in another generation": lambda to: to.sync("x", generation=1),
    "x syncs in the consumer group": lambda to: to.sync("x"),
    "x lives": lambda to: to.heartbeat("x"),
    "a gets its part": lambda to: to.beat("a"),
    "both have their part": lambda to: to.told(),
    "x joins without a change": lambda to: to.join("x"),
    "x syncs without a change": lambda to: to.sync("x"),
    # What does not fit together.
    "y joins with other protocols": lambda to: to.join("y", names=("sticky",)),
    "y joins with another type": lambda to: to.join("y", kind="connect"),
    "y joins without protocols": lambda to: to.join("y", names=()),
    "y joins with an id of its own": lambda to: to.join("y", member_id="y-id", names=("sticky",)),
    "a is none of the classic protocol: heartbeat": lambda to: to.heartbeat("a"),
    "a is none of the classic protocol: sync": lambda to: to.sync("a"),
    "x comes by KIP-848": lambda to: to.beat("x"),
    "x is of KIP-848": lambda to: to.told(),
    "x comes back": lambda to: to.join("x"),
    "x syncs once more": lambda to: to.sync("x"),
    # Cooperative members.
    "y asks for an id": lambda to: to.join("y", names=("range", "cooperative-sticky")),
    "y joins": lambda to: to.join("y", names=("range", "cooperative-sticky")),
    "y syncs": lambda to: to.sync("y"),
    "y waits": lambda to: to.heartbeat("y"),
    "x is to join anew because of y": lambda to: to.heartbeat("x"),
    "x joins with what it has": lambda to: to.join("x", owns=True),
    "x syncs what it keeps": lambda to: to.sync("x"),
    "x is to give up": lambda to: to.heartbeat("x"),
    "x has given up": lambda to: to.join("x", owns=True),
    "x syncs in the new generation": lambda to: to.sync("x"),
    "a is to give up": lambda to: to.beat("a"),
    "a has given up": lambda to: to.beat("a"),
    "y may have what was given up": lambda to: to.heartbeat("y"),
    "y joins for it": lambda to: to.join("y", names=("range", "cooperative-sticky"), owns=True),
    "y syncs for it": lambda to: to.sync("y"),
    "three share": lambda to: to.told(),
    # Static members.
    "s joins": lambda to: to.join("s", instance="i"),
    "s syncs": lambda to: to.sync("s", instance="i"),
    "b takes the place of s": lambda to: to.beat("b", instance_id="i"),
    "s is fenced: heartbeat": lambda to: to.heartbeat("s", instance="i"),
    "s is fenced: sync": lambda to: to.sync("s", instance="i"),
    "s is fenced: join": lambda to: to.join("s", instance="i"),
    "an instance of nobody": lambda to: to.heartbeat("x", instance="none"),
    "an instance of nobody joins with an id": lambda to: to.join("x", instance="none"),
    "r takes the place of b": lambda to: to.join("r", instance="i"),
    "r syncs": lambda to: to.sync("r", instance="i"),
    "b is fenced": lambda to: to.beat("b", instance_id="i"),
    "static members are told": lambda to: to.told(),
    # Back to the classic protocol.
    "a leaves": lambda to: to.beat("a", -1),
    "the group is classic again": lambda to: to.told(),
    "a leaves again": lambda to: to.beat("a", -1),
    "x is to join the classic group": lambda to: to.heartbeat("x"),
    "x commits in the classic group": lambda to: to.commit("x"),
    "y leaves": lambda to: to.leave("y"),
    "r leaves": lambda to: to.leave("r", instance="i"),
    "x joins the classic group": lambda to: to.join("x"),
    "x leads": lambda to: to.sync("x", {"x": EVERY}),
    "the group is stable": lambda to: to.told(),
    # And forth again; the last one of KIP-848 is taken over by a static member.
    "c joins": lambda to: to.beat("c", instance_id="j"),
    "x joins the second consumer group": lambda to: to.join("x"),
    "x syncs in the second consumer group": lambda to: to.sync("x"),
    "c gets its part": lambda to: to.beat("c", instance_id="j"),
    "c leaves for a while": lambda to: to.beat("c", -2, instance_id="j"),
    "q takes the place of c": lambda to: to.join("q", instance="j"),
    "q's group is classic": lambda to: to.told(),
    "q syncs": lambda to: to.sync("q", instance="j"),
    "x lives with q": lambda to: to.heartbeat("x"),
    "x and q leave": lambda to: [to.leave("x"), to.leave("q", instance="j")],
    # An administrator may remove members of either kind.
    "d joins alone": lambda to: to.beat("d"),
    "v asks for an id": lambda to: to.join("v"),
    "v joins d": lambda to: to.join("v"),
    "v syncs with d": lambda to: to.sync("v"),
    "d is removed": lambda to: to.leave("d"),
    "v is alone": lambda to: to.told(),
    "v is removed": lambda to: to.leave("v"),
    # Groups that can't be converted.
    "z of another type asks for an id": lambda to: to.join("z", group="other", kind="connect"),
    "z of another type joins": lambda to: to.join("z", group="other", kind="connect"),
    "z of another type syncs": lambda to: to.sync("z", {"z": EVERY}, group="other", kind="connect"),
    "a can't join another type": lambda to: to.beat("e", 0, group="other"),
    "w without a subscription asks for an id": lambda to: to.join("w", group="bad", metadata=b"\0"),
    "w without a subscription joins": lambda to: to.join("w", group="bad", metadata=b"\0"),
    "w without a subscription syncs": lambda to: to.sync("w", {"w": EVERY}, group="bad"),
    "a can't join what it can't read": lambda to: to.beat("e", 0, group="bad"),
}
OTHERWISE: dict[str, dict[str, Any]] = {
    # Kafka names no leader, so that nobody sees when the topics of the classic group change.
    "q takes the place of c": {"leader": "q", "members": ["q", "x"]},
}
"""What is answered on purpose in place of Kafka's fields."""
Answers = dict[str, tuple[Any, Any]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What a broker and a server answer to each of the STEPS."""
    base = tmp_path_factory.mktemp("both")
    broker = Broker(classpath(POM_4_1), base / "broker", more=TRANSACTIONS)
    with (
        broker.running(),
        segstore.open(base / "store") as store,
        segstore.serve(store, port=0, group_initial_rebalance_delay_ms=0) as server,
        Server("127.0.0.1", broker.port) as theirs,
        Server(server.host, server.port) as ours,
    ):
        found = {name: (step(theirs), step(ours)) for name, step in STEPS.items()}
    assert segstore.check(base / "store") == []
    return found


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_answered_as_by_a_broker(answers: Answers, name: str) -> None:
    theirs, ours = answers[name]
    assert ours == (theirs | OTHERWISE[name] if name in OTHERWISE else theirs)
