"""Every API is judged before its handler does anything: without one of the rights that it needs it is denied,
by the code of that kind of resource, and nothing is done; with all of them it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from authorized_requests import GROUP, TOPIC, A, fetched, node_with, of, produced, topics
from authorized_requests import info as info
from calls import send, versions

import segstore
from segstore.protocol.codec import Struct
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.authorization.judges import JUDGES
from segstore.server.handlers import HANDLERS
from segstore.server.node import Node
from segstore.server.topics import id_of
from segstore.storage.meta.topic_info import TopicInfo

CLUSTER, TRANSACTION = (
    int(Code.CLUSTER_AUTHORIZATION_FAILED),
    int(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
)


DENIALS = {TOPIC, GROUP, CLUSTER, TRANSACTION}
FREE = {Api.API_VERSIONS, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE}
FILTERED = {Api.LIST_GROUPS, Api.LIST_TRANSACTIONS, Api.DESCRIBE_CLUSTER}
"""APIs that deny nobody, and tell each what it may know: test_authorization_answers has their tests."""


class Case(NamedTuple):
    """`needs` has, for each right that the request needs, the code by which it is denied without."""

    fields: Callable[[int, TopicInfo], dict[str, Any]]
    needs: dict[str, int]


def partition(kind: Any, **fields: Any) -> list[Any]:
    return [kind(**fields)]


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
