"""Promise: a member of a consumer group that commits with an earlier epoch is answered as by a real broker of
Kafka 4.4 (KIP-1251): the commit counts if the member has had all its partitions since that epoch. A broker of
4.1 refuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kafka_broker import Broker
from kafka_tools import POM, POM_4_1, classpath, why_not
from waiting import until
from wire_client import WireClient

import segstore
from segstore.coordinator.consumer_protocol import decode_assignment, encode_subscription
from segstore.coordinator.group.assignors.base import MemberSubscription
from segstore.coordinator.structs import TopicPartition
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code

pytestmark = [
    pytest.mark.judge("Kafka's broker"),
    pytest.mark.skipif(bool(why_not()), reason=str(why_not())),
    pytest.mark.kind("Java's clients"),
]
PARTITIONS = 6
TRANSACTIONS = "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
AT_ONCE = """\
group.consumer.min.assignment.interval.ms=0
group.consumer.assignment.interval.ms=0
group.consumer.assignor.offload.enable=false
"""
"""Has a broker of 4.4 assign a group anew within the heartbeat that asks for it, as one of 4.1 does."""
New = structs("CreateTopicsRequest").CreatableTopic
Owned = structs("ConsumerGroupHeartbeatRequest").TopicPartitions
Protocol = structs("JoinGroupRequest").JoinGroupRequestProtocol
COMMIT, FETCH, TXN = (
    structs(f"{name}Request") for name in ("OffsetCommit", "OffsetFetch", "TxnOffsetCommit")
)
JOIN: dict[str, Any] = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["t"]}


class Server:
    """A server to which the steps go, and its members' partitions, now and before the last change."""

    def __init__(self, host: str, port: int) -> None:
        self._wire = WireClient(host, port)
        self._ids: dict[str, str] = {}
        self._epochs: dict[str, int] = {}
        self._has: dict[str, list[int]] = {}
        self._had: dict[str, list[int]] = {}
        self._topic_id, self._first = b"", 0

    def __enter__(self) -> Server:
        new = New(name="t", num_partitions=PARTITIONS, replication_factor=1)
        self._topic_id = self._wire.ask("CreateTopics", 7, topics=[new]).topics[0].topic_id
        until(lambda: all(map(self._has_coordinator, (0, 1), ("g", "x"))))
        until(self._is_loaded)
        return self

    def __exit__(self, *_: object) -> None:
        self._wire.close()

    def _has_coordinator(self, kind: int, key: str) -> bool:
        answer = self._wire.ask("FindCoordinator", 4, key_type=kind, coordinator_keys=[key])
        return not answer.coordinators[0].error_code

    def _is_loaded(self) -> bool:
        probe = {"group_id": "probe", "member_id": "p", "member_epoch": 1}
        answer = self._wire.ask("ConsumerGroupHeartbeat", 1, **probe)
        return bool(answer.error_code == Code.GROUP_ID_NOT_FOUND)

    # --- members ---------------------------------------------------------------------------------

    def beat(self, name: str, epoch: int | None = None, instance: str | None = None) -> Any:
        """Send a heartbeat that says what the member has; do what it answers; return that."""
        sent = self._epochs.get(name, 0) if epoch is None else epoch
        if sent == 0:
            self._ids[name], self._has[name] = f"{name}-id", []
        owned = [Owned(topic_id=self._topic_id, partitions=self._has[name])] if self._has[name] else []
        answer = self._wire.ask(
            "ConsumerGroupHeartbeat",
            1,
            group_id="g",
            member_id=self._ids[name],
            member_epoch=sent,
            instance_id=instance,
            topic_partitions=owned,
            **(JOIN if sent == 0 else {}),
        )
        if answer.error_code == Code.NONE and sent >= 0:
            self._epochs[name] = answer.member_epoch
        if answer.assignment is not None:
            self._had[name] = self._has[name]
            self._has[name] = [n for topic in answer.assignment.topic_partitions for n in topic.partitions]
        return Code(answer.error_code).name, self._told(answer.member_epoch), len(self._has[name])

    def _told(self, epoch: int) -> int:
        """Return the epoch from the group's first on, which is 1 for ours and Kafka 4.1's, 2 for 4.4's."""
        self._first = min(self._first or epoch, epoch) if epoch > 0 else self._first
        return epoch - self._first if epoch > 0 else epoch

    def join_classic(self, name: str) -> Any:
        """Join by the classic protocol with what the member has; return its place."""
        owned = tuple(TopicPartition("t", number) for number in self._has.get(name, ()))
        told = encode_subscription(MemberSubscription(("t",), owned))

        def ask(member_id: str) -> Any:
            protocols = [Protocol(name="cooperative-sticky", metadata=told)]
            times = {"session_timeout_ms": 45_000, "rebalance_timeout_ms": 60_000}
            who = {"group_id": "g", "member_id": member_id, "protocol_type": "consumer"}
            return self._wire.ask("JoinGroup", 9, **who, **times, protocols=protocols)

        answer = ask(self._ids.get(name, ""))
        if answer.error_code == Code.MEMBER_ID_REQUIRED:
            answer = ask(answer.member_id)
        self._ids[name], self._epochs[name] = answer.member_id, answer.generation_id
        synced = self._wire.ask(
            "SyncGroup",
            5,
            group_id="g",
            generation_id=answer.generation_id,
            member_id=answer.member_id,
            protocol_type="consumer",
            protocol_name="cooperative-sticky",
            assignments=[],
        )
        self._had[name] = self._has.get(name, [])
        self._has[name] = [tp.partition for tp in decode_assignment(synced.assignment)]
        return Code(answer.error_code).name, self._told(answer.generation_id), len(self._has[name])

    # --- offsets -----------------------------------------------------------------------------------

    def instance(self, name: str) -> str | None:
        return "i" if name in "cd" else None

    def kept(self, name: str) -> int:
        return min(set(self._has[name]) & set(self._had[name]))

    def given_up(self, name: str) -> int:
        return min(set(self._had[name]) - set(self._has[name]))

    def new(self, name: str) -> int:
        return min(set(self._has[name]) - set(self._had[name]))

    def commit(self, name: str, since: int, *partitions: int, version: int = 9) -> list[str]:
        epoch = self._epochs[name] + since
        parts = [
            COMMIT.OffsetCommitRequestPartition(partition_index=n, committed_offset=7) for n in partitions
        ]
        answer = self._wire.ask(
            "OffsetCommit",
            version,
            group_id="g",
            member_id=self._ids[name],
            generation_id_or_member_epoch=epoch,
            topics=[COMMIT.OffsetCommitRequestTopic(name="t", partitions=parts)],
        )
        return [Code(each.error_code).name for each in answer.topics[0].partitions]

    def commit_in_transaction(self, name: str, since: int, *partitions: int, version: int = 3) -> list[str]:
        epoch = self._epochs[name] + since
        found: list[Any] = []

        def given() -> bool:
            asked = {"transactional_id": "x", "transaction_timeout_ms": 60_000}
            found[:] = [self._wire.ask("InitProducerId", 4, **asked)]
            return bool(found[0].error_code == Code.NONE)

        until(given)
        of = {
            "transactional_id": "x",
            "producer_id": found[0].producer_id,
            "producer_epoch": found[0].producer_epoch,
        }
        assert self._wire.ask("AddOffsetsToTxn", 3, **of, group_id="g").error_code == Code.NONE
        parts = [
            TXN.TxnOffsetCommitRequestPartition(partition_index=n, committed_offset=7) for n in partitions
        ]
        answer = self._wire.ask(
            "TxnOffsetCommit",
            version,
            **of,
            group_id="g",
            generation_id_or_member_epoch=epoch,
            member_id=self._ids[name],
            topics=[TXN.TxnOffsetCommitRequestTopic(name="t", partitions=parts)],
        )
        assert self._wire.ask("EndTxn", 3, **of, committed=True).error_code == Code.NONE
        return [Code(each.error_code).name for each in answer.topics[0].partitions]

    def committed(self, *partitions: int) -> list[int]:
        """Return the committed offsets, as anybody may fetch them, once no transaction is open over them: a
        broker ends one behind its answer.
        """
        asked = FETCH.OffsetFetchRequestGroup(
            group_id="g",
            topics=[FETCH.OffsetFetchRequestTopics(name="t", partition_indexes=list(partitions))],
        )
        found: list[Any] = []

        def stable() -> bool:
            (group,) = self._wire.ask("OffsetFetch", 9, require_stable=True, groups=[asked]).groups
            found[:] = group.topics[0].partitions
            return all(each.error_code != Code.UNSTABLE_OFFSET_COMMIT for each in found)

        until(stable)
        return [each.committed_offset for each in found]

    def fetch(self, name: str, since: int) -> str:
        epoch = self._epochs[name] + since
        asked = FETCH.OffsetFetchRequestGroup(
            group_id="g",
            member_id=self._ids[name],
            member_epoch=epoch,
            topics=[FETCH.OffsetFetchRequestTopics(name="t", partition_indexes=[0])],
        )
        return Code(self._wire.ask("OffsetFetch", 9, groups=[asked]).groups[0].error_code).name


Step = Callable[[Server], Any]
STEPS: dict[str, Step] = {
    "a joins": lambda to: to.beat("a"),
    "a commits": lambda to: to.commit("a", 0, 0),
    "a commits before it joined": lambda to: to.commit("a", -1, 0),
    "b joins": lambda to: to.beat("b"),
    "a is to give up": lambda to: to.beat("a"),
    "a commits what it gives up": lambda to: to.commit("a", 0, to.given_up("a")),
    "a commits what it gives up, before it joined": lambda to: to.commit("a", -1, to.given_up("a")),
    "a has given up": lambda to: to.beat("a"),
    "the same epoch: kept": lambda to: to.commit("a", 0, to.kept("a")),
    "the same epoch: given up": lambda to: to.commit("a", 0, to.given_up("a")),
    "one behind: kept": lambda to: to.commit("a", -1, to.kept("a")),
    "one behind: given up": lambda to: to.commit("a", -1, to.given_up("a")),
    "one behind: both": lambda to: to.commit("a", -1, to.kept("a"), to.given_up("a")),
    "one behind: a partition of none": lambda to: to.commit("a", -1, 99),
    "before it joined": lambda to: to.commit("a", -2, to.kept("a")),
    "one ahead": lambda to: to.commit("a", 1, to.kept("a")),
    "one behind: by an old request": lambda to: to.commit("a", -1, to.kept("a"), version=8),
    "one behind: fetched": lambda to: to.fetch("a", -1),
    "txn: the same epoch: kept": lambda to: to.commit_in_transaction("a", 0, to.kept("a")),
    "txn: the same epoch: given up": lambda to: to.commit_in_transaction("a", 0, to.given_up("a")),
    "txn: one behind: kept": lambda to: to.commit_in_transaction("a", -1, to.kept("a")),
    "txn: one behind: given up": lambda to: to.commit_in_transaction("a", -1, to.given_up("a")),
    "txn: one behind: both": lambda to: to.commit_in_transaction("a", -1, to.kept("a"), to.given_up("a")),
    "txn: before it joined": lambda to: to.commit_in_transaction("a", -2, to.kept("a")),
    "txn: one ahead": lambda to: to.commit_in_transaction("a", 1, to.kept("a")),
    "txn: by version 5": lambda to: to.commit_in_transaction("a", -1, to.kept("a"), version=5),
    "b gets": lambda to: to.beat("b"),
    "one behind: new": lambda to: to.commit("b", -1, to.new("b")),
    "txn: one behind: new": lambda to: to.commit_in_transaction("b", -1, to.new("b")),
    "c joins as i": lambda to: to.beat("c", instance="i"),
    "a is to give up again": lambda to: to.beat("a"),
    "b is to give up": lambda to: to.beat("b"),
    "one behind: being given up": lambda to: [to.commit(name, -1, *to._had[name]) for name in "ab"],
    "the same epoch: being given up": lambda to: [to.commit(name, 0, *to._had[name]) for name in "ab"],
    "both have given up": lambda to: [to.beat("a"), to.beat("b")],
    "two behind: kept": lambda to: to.commit("a", -2, to.kept("a")),
    "c gets": lambda to: to.beat("c", instance="i"),
    "c: before it had": lambda to: to.commit("c", -1, to.new("c")),
    "c leaves for a while": lambda to: to.beat("c", -2, instance="i"),
    "c commits while it is away": lambda to: to.commit("c", 0, to.new("c")),
    "d comes back as i": lambda to: to.beat("d", instance="i"),
    "d: one behind": lambda to: to.commit("d", -1, *to._has["d"]),
    "d: three behind": lambda to: to.commit("d", -3, *to._has["d"]),
    "a leaves": lambda to: to.beat("a", -1),
    "d has more": lambda to: [to.beat(name, instance=to.instance(name)) for name in "dbdb"],
    "d: one behind: all": lambda to: [to.commit(name, -1, *to._has[name]) for name in "bd"],
    "x joins by the classic protocol": lambda to: to.join_classic("x"),
    "the others make room": lambda to: [to.beat(name, instance=to.instance(name)) for name in "dbdb"],
    "x joins for its part": lambda to: to.join_classic("x"),
    "b leaves": lambda to: to.beat("b", -1),
    "x joins with what it has": lambda to: to.join_classic("x"),
    "x: the same epoch": lambda to: to.commit("x", 0, to.kept("x")),
    "x: one behind: kept": lambda to: to.commit("x", -1, to.kept("x")),
    "txn: x: one behind: kept": lambda to: to.commit_in_transaction("x", -1, to.kept("x")),
    "x: one ahead": lambda to: to.commit("x", 1, to.kept("x")),
    "x: long behind": lambda to: to.commit("x", -3, to.kept("x")),
    "all offsets": lambda to: to.committed(*range(PARTITIONS)),
}
STALE, ILLEGAL = "STALE_MEMBER_EPOCH", "ILLEGAL_GENERATION"
REFUSED_BY_4_1: dict[str, Any] = {
    "one behind: kept": [STALE],
    "txn: one behind: kept": [ILLEGAL],
    "txn: by version 5": [ILLEGAL],
    "one behind: being given up": [[STALE] * 3, [STALE] * 3],
    "two behind: kept": [STALE],
    "d: one behind": [STALE] * 2,
    "d: three behind": [STALE] * 2,
    "x: one behind: kept": [ILLEGAL],
    "txn: x: one behind: kept": [ILLEGAL],
}
"""What a broker of 4.1 answers to the STEPS that 4.4 answers otherwise."""
POMS = {"4.4": POM, "4.1": POM_4_1}
Answers = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What the brokers and our server answer to each of the STEPS."""
    base = tmp_path_factory.mktemp("all")
    found = {}
    for version, pom in POMS.items():
        more = TRANSACTIONS + (AT_ONCE if version == "4.4" else "")
        broker = Broker(classpath(pom), base / version, more=more)
        with broker.running(), Server("127.0.0.1", broker.port) as theirs:
            found[version] = {name: step(theirs) for name, step in STEPS.items()}
    with (
        segstore.open(base / "store") as store,
        segstore.serve(store, port=0) as server,
        Server(server.host, server.port) as ours,
    ):
        found["ours"] = {name: step(ours) for name, step in STEPS.items()}
    assert segstore.check(base / "store") == []
    return found


@pytest.mark.parametrize("name", STEPS)
def test_a_commit_is_answered_as_by_a_broker(answers: Answers, name: str) -> None:
    ours = answers["ours"][name]
    assert ours == answers["4.4"][name]
    assert answers["4.1"][name] == REFUSED_BY_4_1.get(name, ours)
    assert ours != REFUSED_BY_4_1.get(name)
