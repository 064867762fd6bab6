"""Every API is judged before its handler does anything: without one of the rights that it needs it is denied,
by the code of that kind of resource, and nothing is done; with all of them it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from calls import FakeLoop, node_of, send, versions

import segstore
from segstore.protocol.codec import Struct, structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.authorization.judged import judged
from segstore.server.authorization.judges import JUDGES
from segstore.server.authorized import NOT_ASKED, AclOperation, bits
from segstore.server.handlers import HANDLERS
from segstore.server.node import Node
from segstore.server.topics import id_of
from segstore.storage.meta.topic_info import TopicInfo

TOPIC, GROUP = int(Code.TOPIC_AUTHORIZATION_FAILED), int(Code.GROUP_AUTHORIZATION_FAILED)
CLUSTER, TRANSACTION = (
    int(Code.CLUSTER_AUTHORIZATION_FAILED),
    int(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
)
DENIALS = {TOPIC, GROUP, CLUSTER, TRANSACTION}
FREE = {Api.API_VERSIONS, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE}
FILTERED = {Api.LIST_GROUPS, Api.LIST_TRANSACTIONS, Api.DESCRIBE_CLUSTER}
"""APIs that deny nobody, and tell each what it may know: tests of their own are below."""


class Case(NamedTuple):
    """`needs` has, for each right that the request needs, the code by which it is denied without."""

    fields: Callable[[int, TopicInfo], dict[str, Any]]
    needs: dict[str, int]


def of(api: Api) -> Any:
    return structs(f"{api.message}Request")


def partition(kind: Any, **fields: Any) -> list[Any]:
    return [kind(**fields)]


def produced(version: int, info: TopicInfo) -> dict[str, Any]:
    kind = of(Api.PRODUCE)
    data = [kind.PartitionProduceData(index=0, records=memoryview(b""))]
    topic = kind.TopicProduceData(name="t", topic_id=id_of(info), partition_data=data)
    return {"acks": 1, "timeout_ms": 0, "transactional_id": "x", "topic_data": [topic]}


def fetched(version: int, info: TopicInfo) -> dict[str, Any]:
    kind = of(Api.FETCH)
    partitions = [kind.FetchPartition(partition=0, partition_max_bytes=1)]
    topic = kind.FetchTopic(topic="t", topic_id=id_of(info), partitions=partitions)
    return {"max_wait_ms": 0, "topics": [topic]}


def topics(
    api: Api, name: str, kinds: tuple[str, str], index: str, ids_since: int = 1 << 15, **more: Any
) -> Any:
    """Fields of requests that name topics with partitions, from a version on by ids."""

    def fields(version: int, info: TopicInfo) -> dict[str, Any]:
        kind = of(api)
        of_topic, of_partition = (getattr(kind, each) for each in kinds)
        names = {"topic_id": id_of(info)} if version >= ids_since else {name: "t"}
        return {"topics": [of_topic(**names, partitions=[of_partition(**{index: 0})])], **more}

    return fields


def metadata(version: int, info: TopicInfo) -> dict[str, Any]:
    return {"topics": [of(Api.METADATA).MetadataRequestTopic(name="t")], "allow_auto_topic_creation": False}


def offset_fetch(version: int, info: TopicInfo) -> dict[str, Any]:
    kind = of(Api.OFFSET_FETCH)
    if version < 8:
        topic = kind.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
        return {"group_id": "g", "topics": [topic]}
    named = {"topic_id": id_of(info)} if version >= 10 else {"name": "t"}
    wanted = [kind.OffsetFetchRequestTopics(**named, partition_indexes=[0])]
    return {"groups": [kind.OffsetFetchRequestGroup(group_id="g", topics=wanted)]}


def find(key_type: int) -> Any:
    def fields(version: int, info: TopicInfo) -> dict[str, Any]:
        named = {"coordinator_keys": ["g"]} if version >= 4 else {"key": "g"}
        return {**named, **({"key_type": key_type} if version else {})}

    return fields


def leave(version: int, info: TopicInfo) -> dict[str, Any]:
    kind = of(Api.LEAVE_GROUP)
    members = {"members": [kind.MemberIdentity(member_id="m")]}
    return {"group_id": "g", **(members if version >= 3 else {"member_id": "m"})}


def create(version: int, info: TopicInfo) -> dict[str, Any]:
    topic = of(Api.CREATE_TOPICS).CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    return {"topics": [topic], "timeout_ms": 0, "validate_only": True}


def delete(version: int, info: TopicInfo) -> dict[str, Any]:
    if version < 6:
        return {"topic_names": ["t"]}
    return {"topics": [of(Api.DELETE_TOPICS).DeleteTopicState(name="t")]}


def add_partitions(version: int, info: TopicInfo) -> dict[str, Any]:
    kind = of(Api.ADD_PARTITIONS_TO_TXN)
    wanted = [kind.AddPartitionsToTxnTopic(name="t", partitions=[0])]
    if version < 4:
        return {"v3_and_below_transactional_id": "x", "v3_and_below_topics": wanted}
    each = kind.AddPartitionsToTxnTransaction(transactional_id="x", topics=wanted)
    return {"transactions": [each]}


def resources(api: Api, kind: str, resource: int, name: str) -> Any:
    def fields(version: int, info: TopicInfo) -> dict[str, Any]:
        each = getattr(of(api), kind)(resource_type=resource, resource_name=name)
        return {"resources": [each]}

    return fields


def plain(**fields: Any) -> Any:
    return lambda version, info: fields


def producers(version: int, info: TopicInfo) -> dict[str, Any]:
    return {"topics": [of(Api.DESCRIBE_PRODUCERS).TopicRequest(name="t", partition_indexes=[0])]}


def scram(version: int, info: TopicInfo) -> dict[str, Any]:
    kind = of(Api.ALTER_USER_SCRAM_CREDENTIALS)
    return {
        "deletions": [kind.ScramCredentialDeletion(name="a", mechanism=1)],
        "upsertions": [kind.ScramCredentialUpsertion(name="b", mechanism=1, iterations=1)],
    }


def quotas(version: int, info: TopicInfo) -> dict[str, Any]:
    kind = of(Api.ALTER_CLIENT_QUOTAS)
    entity = [kind.EntityData(entity_type="client-id", entity_name="c")]
    return {"entries": [kind.EntryData(entity=entity, ops=[])], "validate_only": True}


def grown(version: int, info: TopicInfo) -> dict[str, Any]:
    topic = of(Api.CREATE_PARTITIONS).CreatePartitionsTopic(name="t", count=2, assignments=None)
    return {"topics": [topic], "validate_only": True}


def shared(api: Api, topic: str, partition: str, **fields: Any) -> Any:
    def made(version: int, info: TopicInfo) -> dict[str, Any]:
        kind = of(api)
        wanted = [getattr(kind, topic)(topic_id=id_of(info), partitions=[getattr(kind, partition)()])]
        return {"group_id": "g", "member_id": "m", "topics": wanted, **fields}

    return made


def share_offsets(version: int, info: TopicInfo) -> dict[str, Any]:
    kind = of(Api.DESCRIBE_SHARE_GROUP_OFFSETS)
    topic = kind.DescribeShareGroupOffsetsRequestTopic(topic_name="t", partitions=[0])
    return {"groups": [kind.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=[topic])]}


def altered_share_offsets(version: int, info: TopicInfo) -> dict[str, Any]:
    kind = of(Api.ALTER_SHARE_GROUP_OFFSETS)
    topic = kind.AlterShareGroupOffsetsRequestTopic(
        topic_name="t", partitions=[kind.AlterShareGroupOffsetsRequestPartition(start_offset=0)]
    )
    return {"group_id": "g", "topics": [topic]}


def share_state(api: Api, topic: str) -> Any:
    def made(version: int, info: TopicInfo) -> dict[str, Any]:
        kind = of(api)
        wanted = getattr(kind, topic)(topic_id=id_of(info), partitions=[kind.PartitionData()])
        return {"group_id": "g", "topics": [wanted]}

    return made


A = Api
ON_CLUSTER = {"cluster_action cluster": CLUSTER}
JOIN = plain(group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, protocol_type="consumer")
COMMITTED = {"group_id": "g", "member_id": ""}
CASES: dict[tuple[Api, str], Case] = {
    (A.PRODUCE, ""): Case(produced, {"write topic t": TOPIC, "write transactional-id x": TRANSACTION}),
    (A.FETCH, ""): Case(fetched, {"read topic t": TOPIC}),
    (A.LIST_OFFSETS, ""): Case(
        topics(A.LIST_OFFSETS, "name", ("ListOffsetsTopic", "ListOffsetsPartition"), "partition_index"),
        {"describe topic t": TOPIC},
    ),
    (A.METADATA, ""): Case(metadata, {"describe topic t": TOPIC}),
    (A.OFFSET_COMMIT, ""): Case(
        topics(
            A.OFFSET_COMMIT,
            "name",
            ("OffsetCommitRequestTopic", "OffsetCommitRequestPartition"),
            "partition_index",
            10,
            **COMMITTED,
        ),
        {"read group g": GROUP, "read topic t": TOPIC},
    ),
    (A.OFFSET_FETCH, ""): Case(offset_fetch, {"describe group g": GROUP, "describe topic t": TOPIC}),
    (A.FIND_COORDINATOR, "group"): Case(find(0), {"describe group g": GROUP}),
    (A.FIND_COORDINATOR, "transaction"): Case(find(1), {"describe transactional-id g": TRANSACTION}),
    (A.JOIN_GROUP, ""): Case(JOIN, {"read group g": GROUP}),
    (A.SYNC_GROUP, ""): Case(plain(group_id="g", member_id="m"), {"read group g": GROUP}),
    (A.HEARTBEAT, ""): Case(plain(group_id="g", member_id="m"), {"read group g": GROUP}),
    (A.LEAVE_GROUP, ""): Case(leave, {"read group g": GROUP}),
    (A.DESCRIBE_GROUPS, ""): Case(plain(groups=["g"]), {"describe group g": GROUP}),
    (A.CREATE_TOPICS, ""): Case(create, {"create topic new": TOPIC, "describe-configs topic new": TOPIC}),
    (A.DELETE_TOPICS, ""): Case(delete, {"delete topic t": TOPIC}),
    (A.DELETE_RECORDS, ""): Case(
        topics(A.DELETE_RECORDS, "name", ("DeleteRecordsTopic", "DeleteRecordsPartition"), "partition_index"),
        {"delete topic t": TOPIC},
    ),
    (A.INIT_PRODUCER_ID, "idempotent"): Case(
        plain(transactional_id=None), {"idempotent-write cluster": CLUSTER}
    ),
    (A.INIT_PRODUCER_ID, "writer"): Case(plain(transactional_id=None), {"write topic any": CLUSTER}),
    (A.INIT_PRODUCER_ID, "transaction"): Case(
        plain(transactional_id="x", transaction_timeout_ms=1000), {"write transactional-id x": TRANSACTION}
    ),
    (A.OFFSET_FOR_LEADER_EPOCH, ""): Case(
        topics(
            A.OFFSET_FOR_LEADER_EPOCH,
            "topic",
            ("OffsetForLeaderTopic", "OffsetForLeaderPartition"),
            "partition",
        ),
        {"describe topic t": TOPIC},
    ),
    (A.ADD_OFFSETS_TO_TXN, ""): Case(
        plain(transactional_id="x", group_id="g"),
        {"write transactional-id x": TRANSACTION, "read group g": GROUP},
    ),
    (A.END_TXN, ""): Case(plain(transactional_id="x"), {"write transactional-id x": TRANSACTION}),
    (A.TXN_OFFSET_COMMIT, ""): Case(
        topics(
            A.TXN_OFFSET_COMMIT,
            "name",
            ("TxnOffsetCommitRequestTopic", "TxnOffsetCommitRequestPartition"),
            "partition_index",
            6,
            transactional_id="x",
            group_id="g",
        ),
        {"write transactional-id x": TRANSACTION, "read group g": GROUP, "read topic t": TOPIC},
    ),
    (A.DESCRIBE_ACLS, ""): Case(
        plain(resource_type_filter=1, operation=1, permission_type=1), {"describe cluster": CLUSTER}
    ),
    (A.DESCRIBE_CONFIGS, "topic"): Case(
        resources(A.DESCRIBE_CONFIGS, "DescribeConfigsResource", 2, "t"), {"describe-configs topic t": TOPIC}
    ),
    (A.DESCRIBE_CONFIGS, "broker"): Case(
        resources(A.DESCRIBE_CONFIGS, "DescribeConfigsResource", 4, "1"),
        {"describe-configs cluster": CLUSTER},
    ),
    (A.ALTER_CONFIGS, "topic"): Case(
        resources(A.ALTER_CONFIGS, "AlterConfigsResource", 2, "t"), {"alter-configs topic t": TOPIC}
    ),
    (A.ALTER_CONFIGS, "broker"): Case(
        resources(A.ALTER_CONFIGS, "AlterConfigsResource", 4, "1"), {"alter-configs cluster": CLUSTER}
    ),
    (A.INCREMENTAL_ALTER_CONFIGS, "topic"): Case(
        resources(A.INCREMENTAL_ALTER_CONFIGS, "AlterConfigsResource", 2, "t"),
        {"alter-configs topic t": TOPIC},
    ),
    (A.INCREMENTAL_ALTER_CONFIGS, "group"): Case(
        resources(A.INCREMENTAL_ALTER_CONFIGS, "AlterConfigsResource", 32, "g"),
        {"alter-configs group g": GROUP},
    ),
    (A.DESCRIBE_LOG_DIRS, ""): Case(plain(topics=None), {"describe cluster": CLUSTER}),
    (A.CREATE_PARTITIONS, ""): Case(grown, {"alter topic t": TOPIC}),
    (A.DELETE_GROUPS, ""): Case(plain(groups_names=["g"]), {"delete group g": GROUP}),
    (A.ELECT_LEADERS, ""): Case(
        lambda version, info: {
            "topic_partitions": [of(A.ELECT_LEADERS).TopicPartitions(topic="t", partitions=[0])]
        },
        {"alter cluster": CLUSTER},
    ),
    (A.ALTER_PARTITION_REASSIGNMENTS, ""): Case(
        lambda version, info: {
            "topics": [
                of(A.ALTER_PARTITION_REASSIGNMENTS).ReassignableTopic(
                    name="t",
                    partitions=[of(A.ALTER_PARTITION_REASSIGNMENTS).ReassignablePartition(replicas=None)],
                )
            ]
        },
        {"alter cluster": CLUSTER},
    ),
    (A.ALTER_REPLICA_LOG_DIRS, ""): Case(
        lambda version, info: {
            "dirs": [
                of(A.ALTER_REPLICA_LOG_DIRS).AlterReplicaLogDir(
                    path="/nowhere",
                    topics=[of(A.ALTER_REPLICA_LOG_DIRS).AlterReplicaLogDirTopic(name="t", partitions=[0])],
                )
            ]
        },
        {"alter cluster": CLUSTER},
    ),
    (A.LIST_CONFIG_RESOURCES, ""): Case(plain(), {"describe-configs cluster": CLUSTER}),
    (A.LIST_PARTITION_REASSIGNMENTS, ""): Case(plain(topics=None), {"describe cluster": CLUSTER}),
    (A.OFFSET_DELETE, ""): Case(
        topics(
            A.OFFSET_DELETE,
            "name",
            ("OffsetDeleteRequestTopic", "OffsetDeleteRequestPartition"),
            "partition_index",
            group_id="g",
        ),
        {"delete group g": GROUP, "read topic t": TOPIC},
    ),
    (A.DESCRIBE_CLIENT_QUOTAS, ""): Case(plain(), {"describe-configs cluster": CLUSTER}),
    (A.ALTER_CLIENT_QUOTAS, ""): Case(quotas, {"alter-configs cluster": CLUSTER}),
    (A.DESCRIBE_USER_SCRAM_CREDENTIALS, ""): Case(plain(users=None), {"describe cluster": CLUSTER}),
    (A.ALTER_USER_SCRAM_CREDENTIALS, ""): Case(scram, {"alter cluster": CLUSTER}),
    (A.BROKER_REGISTRATION, ""): Case(
        lambda version, info: {"rack": None}, {"cluster_action cluster": CLUSTER}
    ),
    (A.BEGIN_QUORUM_EPOCH, ""): Case(
        lambda version, info: {"cluster_id": None}, {"cluster_action cluster": CLUSTER}
    ),
    (A.UNREGISTER_BROKER, ""): Case(lambda version, info: {"broker_id": 2}, {"alter cluster": CLUSTER}),
    (A.DESCRIBE_QUORUM, ""): Case(
        lambda version, info: {
            "topics": [
                of(A.DESCRIBE_QUORUM).TopicData(
                    topic_name="__cluster_metadata", partitions=[of(A.DESCRIBE_QUORUM).PartitionData()]
                )
            ]
        },
        {"describe cluster": CLUSTER},
    ),
    (A.CONSUMER_GROUP_HEARTBEAT, ""): Case(
        lambda version, info: {
            "group_id": "g",
            "member_id": "m" * 22,
            "rebalance_timeout_ms": 1000,
            "subscribed_topic_names": ["t"],
            "topic_partitions": [],
        },
        {"read group g": GROUP, "describe topic t": TOPIC},
    ),
    (A.CONSUMER_GROUP_DESCRIBE, ""): Case(plain(group_ids=["g"]), {"describe group g": GROUP}),
    (A.FIND_COORDINATOR, "share partition"): Case(find(2), {"cluster_action cluster": CLUSTER}),
    (A.SHARE_GROUP_HEARTBEAT, ""): Case(
        plain(group_id="g", member_id="m" * 22, subscribed_topic_names=["t"]),
        {"read group g": GROUP, "describe topic t": TOPIC},
    ),
    (A.SHARE_GROUP_DESCRIBE, ""): Case(plain(group_ids=["g"]), {"describe group g": GROUP}),
    (A.SHARE_FETCH, ""): Case(
        shared(A.SHARE_FETCH, "FetchTopic", "FetchPartition", max_records=1, share_session_epoch=0),
        {"read group g": GROUP, "read topic t": TOPIC},
    ),
    (A.SHARE_ACKNOWLEDGE, ""): Case(
        shared(A.SHARE_ACKNOWLEDGE, "AcknowledgeTopic", "AcknowledgePartition", share_session_epoch=-1),
        {"read group g": GROUP},
    ),
    (A.DESCRIBE_SHARE_GROUP_OFFSETS, ""): Case(
        share_offsets, {"describe group g": GROUP, "describe topic t": TOPIC}
    ),
    (A.ALTER_SHARE_GROUP_OFFSETS, ""): Case(
        altered_share_offsets, {"read group g": GROUP, "read topic t": TOPIC}
    ),
    (A.DELETE_SHARE_GROUP_OFFSETS, ""): Case(
        lambda version, info: {
            "group_id": "g",
            "topics": [of(A.DELETE_SHARE_GROUP_OFFSETS).DeleteShareGroupOffsetsRequestTopic(topic_name="t")],
        },
        {"delete group g": GROUP, "read topic t": TOPIC},
    ),
    (A.INITIALIZE_SHARE_GROUP_STATE, ""): Case(
        share_state(A.INITIALIZE_SHARE_GROUP_STATE, "InitializeStateData"), ON_CLUSTER
    ),
    (A.READ_SHARE_GROUP_STATE, ""): Case(share_state(A.READ_SHARE_GROUP_STATE, "ReadStateData"), ON_CLUSTER),
    (A.WRITE_SHARE_GROUP_STATE, ""): Case(
        share_state(A.WRITE_SHARE_GROUP_STATE, "WriteStateData"), ON_CLUSTER
    ),
    (A.DELETE_SHARE_GROUP_STATE, ""): Case(
        share_state(A.DELETE_SHARE_GROUP_STATE, "DeleteStateData"), ON_CLUSTER
    ),
    (A.READ_SHARE_GROUP_STATE_SUMMARY, ""): Case(
        share_state(A.READ_SHARE_GROUP_STATE_SUMMARY, "ReadStateSummaryData"), ON_CLUSTER
    ),
    (A.DESCRIBE_PRODUCERS, ""): Case(producers, {"read topic t": TOPIC}),
    (A.DESCRIBE_TRANSACTIONS, ""): Case(
        plain(transactional_ids=["x"]), {"describe transactional-id x": TRANSACTION}
    ),
    (A.DESCRIBE_TOPIC_PARTITIONS, ""): Case(
        lambda version, info: {
            "topics": [of(A.DESCRIBE_TOPIC_PARTITIONS).TopicRequest(name="t")],
            "response_partition_limit": 10,
        },
        {"describe topic t": TOPIC},
    ),
}
BEFORE_4 = {"write transactional-id x": TRANSACTION, "write topic t": TOPIC}
NO_PLACE = {(A.DESCRIBE_LOG_DIRS, 1), (A.DESCRIBE_LOG_DIRS, 2)}
"""Their answers have no place for an error: they are empty."""


def test_every_api_is_judged_and_has_a_case() -> None:
    assert set(HANDLERS) <= set(JUDGES)
    assert {api for api, _ in CASES} | {A.ADD_PARTITIONS_TO_TXN} | FREE | FILTERED == set(HANDLERS)


def codes(value: Any) -> Iterator[int]:
    """All error codes in an answer."""
    if isinstance(value, list):
        for each in value:
            yield from codes(each)
    elif isinstance(value, Struct):
        for name in value.__slots__:
            held = getattr(value, name)
            if name.endswith("error_code"):
                yield int(held)
            else:
                yield from codes(held)


def asked(node: Node, api: Api, version: int, fields: dict[str, Any]) -> tuple[set[int], Any]:
    sent = send(node, api, version, **fields)
    (answer,) = sent.answers or [None]
    return {code for code in codes(answer) if code in DENIALS}, answer


def node_with(store: segstore.Store, rights: Any, principal: str = "ANONYMOUS") -> Node:
    return node_of(
        store, allow=[f"User:{principal}: {right}" for right in rights], group_initial_rebalance_delay_ms=0
    )


@pytest.fixture
def info(store: segstore.Store) -> TopicInfo:
    return store.create_topic("t")


@pytest.mark.parametrize(
    ("api", "name"), CASES, ids=lambda each: each.name if isinstance(each, Api) else each
)
def test_each_right_is_needed_in_every_version(
    store: segstore.Store, info: TopicInfo, api: Api, name: str
) -> None:
    case = CASES[api, name]
    for version in versions(api):
        if name in ("transaction", "share partition") and api is A.FIND_COORDINATOR and version == 0:
            continue  # its keys are groups
        fields = case.fields(version, info)
        needs = {"create topic new": TOPIC} if api is A.CREATE_TOPICS and version < 5 else dict(case.needs)
        for missing, code in needs.items():
            node = node_with(store, [right for right in needs if right != missing])
            denied, answer = asked(node, api, version, fields)
            if (api, version) in NO_PLACE:
                assert answer.results == [], version
            else:
                assert denied == {code}, (version, missing)
        denied, answer = asked(node_with(store, needs), api, version, fields)
        assert denied == set(), version
        denied, _ = asked(node_with(store, needs, "other"), api, version, fields)
        assert denied or (api, version) in NO_PLACE
    assert set(store.topics()) >= {"t"} or api is A.DELETE_TOPICS


@pytest.mark.parametrize("version", versions(A.ADD_PARTITIONS_TO_TXN))
def test_partitions_are_added_to_transactions_all_or_none(
    store: segstore.Store, info: TopicInfo, version: int
) -> None:
    store.create_topic("other")
    fields = add_partitions(version, info)
    needs = BEFORE_4 if version < 4 else {"cluster-action cluster": CLUSTER}
    for missing, code in needs.items():
        node = node_with(store, [right for right in needs if right != missing])
        denied, _ = asked(node, A.ADD_PARTITIONS_TO_TXN, version, fields)
        assert denied == {code}
    assert asked(node_with(store, needs), A.ADD_PARTITIONS_TO_TXN, version, fields)[0] == set()
    if version < 4:
        kind = of(A.ADD_PARTITIONS_TO_TXN)
        fields["v3_and_below_topics"].append(kind.AddPartitionsToTxnTopic(name="other", partitions=[0]))
        _, answer = asked(node_with(store, needs), A.ADD_PARTITIONS_TO_TXN, version, fields)
        told = {each.name: each.results_by_partition[0].partition_error_code
                for each in answer.results_by_topic_v3_and_below}  # fmt: skip
        assert told == {"t": Code.OPERATION_NOT_ATTEMPTED, "other": TOPIC}


# --- what is told of what one may not see ------------------------------------------------------


def test_topics_that_may_not_be_described_are_not_listed(store: segstore.Store, info: TopicInfo) -> None:
    store.create_topic("hidden")
    hidden = id_of(store.topics()["hidden"])
    node = node_with(store, ["read topic t"])
    for version in versions(A.METADATA):
        answer = send(node, A.METADATA, version, topics=None if version else []).answers[0]
        assert [each.name for each in answer.topics] == ["t"], version
    kind = of(A.METADATA).MetadataRequestTopic
    for topic, code in (
        (kind(name="hidden"), TOPIC),
        (kind(name=None, topic_id=hidden), Code.UNKNOWN_TOPIC_ID),
    ):
        (told,) = send(node, A.METADATA, 12, topics=[topic]).answers[0].topics
        assert (told.error_code, told.partitions) == (code, [])
    (told,) = send(node, A.METADATA, 0, topics=[kind(name="hidden")]).answers[0].topics
    assert (told.name, told.error_code) == ("hidden", TOPIC)
    pages = send(node, A.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[], response_partition_limit=1).answers[0]
    assert ([each.name for each in pages.topics], pages.next_cursor) == (["t"], None)
    assert send(node_with(store, []), A.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[]).answers[0].topics == []


@pytest.mark.parametrize(
    ("rights", "code"),
    [
        (["describe topic new"], TOPIC),
        (["describe topic new", "create topic new"], 0),
        (["describe topic new", "create cluster"], 0),
        (["create cluster"], TOPIC),
    ],
)
def test_topics_are_made_for_those_only_who_may(store: segstore.Store, rights: list[str], code: int) -> None:
    topic = of(A.METADATA).MetadataRequestTopic(name="new")
    sent = send(node_with(store, rights), A.METADATA, 9, topics=[topic], allow_auto_topic_creation=True)
    (told,) = sent.answers[0].topics
    assert (told.error_code, "new" in store.topics()) == (code, not code)


def test_operations_tell_the_truth(store: segstore.Store, info: TopicInfo) -> None:
    rights = ["read,alter-configs topic t", "delete group g", "describe,create cluster"]
    node = node_with(store, rights)
    topic = of(A.METADATA).MetadataRequestTopic(name="t")
    asked_for = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    answer = send(node, A.METADATA, 9, topics=[topic], **asked_for).answers[0]
    assert answer.topics[0].topic_authorized_operations == bits(
        AclOperation.READ, AclOperation.DESCRIBE, AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS
    )
    assert answer.cluster_authorized_operations == bits(AclOperation.DESCRIBE, AclOperation.CREATE)
    group = send(node, A.DESCRIBE_GROUPS, 5, groups=["g"], include_authorized_operations=True).answers[0]
    assert group.groups[0].authorized_operations == bits(AclOperation.DELETE, AclOperation.DESCRIBE)
    cluster = send(node, A.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=True).answers[0]
    assert cluster.cluster_authorized_operations == bits(AclOperation.DESCRIBE, AclOperation.CREATE)
    nobody = node_with(store, ["create cluster"])
    cluster = send(nobody, A.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=True).answers[0]
    assert cluster.cluster_authorized_operations == 0
    assert send(node, A.DESCRIBE_CLUSTER, 0).answers[0].cluster_authorized_operations == NOT_ASKED


def test_groups_and_transactions_are_listed_to_those_who_may_describe_them(store: segstore.Store) -> None:
    for name in ("mine", "theirs"):
        with segstore.Consumer(store, group_id=name) as consumer:
            store.create_topic(name)
            consumer.commit({segstore.TopicPartition(name, 0): segstore.OffsetAndMetadata(0)})
        with segstore.Producer(store, transactional_id=name) as producer:
            producer.init_transactions()
    for rights, seen in (
        (["describe group mine", "describe transactional-id mine"], ["mine"]),
        (["describe cluster", "describe transactional-id *"], ["mine", "theirs"]),
        ([], []),
    ):
        node = node_with(store, rights)
        for version in versions(A.LIST_GROUPS):
            listed = send(node, A.LIST_GROUPS, version).answers[0].groups
            assert [each.group_id for each in listed] == seen
        listed = send(node, A.LIST_TRANSACTIONS, 0).answers[0].transaction_states
        assert [each.transactional_id for each in listed] == seen


def test_offsets_of_all_topics_are_those_one_may_describe(store: segstore.Store) -> None:
    for name in ("t", "hidden"):
        store.create_topic(name)
        with segstore.Consumer(store, group_id="g") as consumer:
            consumer.commit({segstore.TopicPartition(name, 0): segstore.OffsetAndMetadata(7)})
    node = node_with(store, ["describe group g", "describe topic t"])
    group = of(A.OFFSET_FETCH).OffsetFetchRequestGroup(group_id="g", topics=None)
    other = of(A.OFFSET_FETCH).OffsetFetchRequestGroup(group_id="other", topics=None)
    found, denied = send(node, A.OFFSET_FETCH, 8, groups=[group, other]).answers[0].groups
    assert [(each.name, each.partitions[0].committed_offset) for each in found.topics] == [("t", 7)]
    assert (denied.group_id, denied.error_code, denied.topics) == ("other", GROUP, [])
    old = send(node, A.OFFSET_FETCH, 7, group_id="g", topics=None).answers[0]
    assert [each.name for each in old.topics] == ["t"]


def test_ids_of_topics_tell_no_names(store: segstore.Store, info: TopicInfo) -> None:
    by_id = of(A.DELETE_TOPICS).DeleteTopicState(name=None, topic_id=id_of(info))
    for rights, name in (([], None), (["describe topic t"], "t")):
        (told,) = send(node_with(store, rights), A.DELETE_TOPICS, 6, topics=[by_id]).answers[0].responses
        assert (told.name, told.topic_id, told.error_code) == (name, id_of(info), TOPIC)
    assert "t" in store.topics()
    send(node_with(store, ["delete topic t"]), A.DELETE_TOPICS, 6, topics=[by_id])
    assert "t" not in store.topics()


def test_what_is_allowed_is_done_beside_what_is_denied(store: segstore.Store) -> None:
    kind = of(A.CREATE_TOPICS).CreatableTopic
    wanted = [kind(name=name, num_partitions=1, replication_factor=1) for name in ("a", "b", "aa")]
    answer = send(node_with(store, ["create topic a*"]), A.CREATE_TOPICS, 5, topics=wanted).answers[0]
    assert {each.name: each.error_code for each in answer.topics} == {"a": 0, "aa": 0, "b": TOPIC}
    assert set(store.topics()) == {"a", "aa"}


def test_a_session_is_judged_at_each_fetch(store: segstore.Store, info: TopicInfo) -> None:
    """Another principal that guesses a session's id reads nothing by it."""
    store.partition("t", 0).append(b"secret")
    node = node_with(store, ["read topic t"], "alice")
    fields = fetched(13, info) | {"max_bytes": 1000, "session_epoch": 0, "session_id": 0}
    begun = send_as(node, "alice", A.FETCH, 13, **fields)
    assert begun.responses[0].partitions[0].error_code == 0
    session = {"max_bytes": 1000, "max_wait_ms": 0, "session_id": begun.session_id, "session_epoch": 1}
    stolen = send_as(node, "mallory", A.FETCH, 13, **session)
    assert [each.error_code for each in stolen.responses[0].partitions] == [TOPIC]
    assert not stolen.responses[0].partitions[0].records


def send_as(node: Node, principal: str, api: Api, version: int, **fields: Any) -> Any:
    """The answer to a request of a principal."""
    from calls import FakeChannel, coded

    from segstore.server.request import Request

    channel, answers = FakeChannel(principal), list[Any]()
    body = coded(of(api)(**fields), version)
    found = HANDLERS[api](node, Request(api, version, "c", body, channel, answers.append))
    assert isinstance(node.loop, FakeLoop)
    node.loop.run()
    answer = answers[0] if answers else found
    if api is A.FETCH:
        for topic in answer.responses:
            for each in topic.partitions:
                if hasattr(each.records, "release"):
                    each.records.release()
    return answer


def test_produce_without_acks_is_denied_by_the_end_of_the_connection(
    store: segstore.Store, info: TopicInfo
) -> None:
    for rights in ([], ["write transactional-id x"], ["write topic t"]):
        sent = send(node_with(store, rights), A.PRODUCE, 9, **(produced(9, info) | {"acks": 0}))
        assert not sent.channel.is_open


def test_an_api_without_a_judge_is_refused(store: segstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Api] = []
    monkeypatch.delitem(JUDGES, A.HEARTBEAT)
    handler = judged({A.HEARTBEAT: lambda node, request: called.append(request.api)})[A.HEARTBEAT]
    request: Any = type("Request", (), {"api": A.HEARTBEAT})()
    with pytest.raises(segstore.errors.InvalidRequestError, match="not judged"):
        handler(node_with(store, []), request)
    handler(node_of(store), request)
    assert called == [A.HEARTBEAT]


def test_acls_are_the_allow_list(store: segstore.Store) -> None:
    node = node_of(
        store,
        allow="User:a: read,write topic t*; all cluster\nUser:*: read topic t\n# a remark\n",
        super_users="User:ANONYMOUS",
    )
    any_acl = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    any_acl |= dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter"))

    def listed(**filters: Any) -> set[tuple[int, str, int, str, int]]:
        answer = send(node, A.DESCRIBE_ACLS, 3, **{**any_acl, **filters}).answers[0]
        assert answer.error_code == 0
        return {
            (each.resource_type, each.resource_name, each.pattern_type, acl.principal, acl.operation)
            for each in answer.resources
            for acl in each.acls
        }

    prefixed = {(2, "t", 4, "User:a", 3), (2, "t", 4, "User:a", 4)}
    literal, cluster = {(2, "t", 3, "User:*", 3)}, {(4, "kafka-cluster", 3, "User:a", 2)}
    assert listed() == prefixed | literal | cluster
    assert listed(resource_type_filter=2, operation=4) == {(2, "t", 4, "User:a", 4)}
    assert listed(resource_name_filter="t", pattern_type_filter=3) == literal
    assert listed(resource_name_filter="tx", resource_type_filter=2, pattern_type_filter=2) == prefixed
    assert listed(principal_filter="User:*") == literal
    assert listed(permission_type=2) == set()
    assert send(node_of(store), A.DESCRIBE_ACLS, 3, **any_acl).answers[0].error_code == Code.SECURITY_DISABLED
