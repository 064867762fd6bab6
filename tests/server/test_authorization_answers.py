"""Answers to clients that have some rights: they name the resources that may be described, and
allowed parts of a request are done.
"""

from __future__ import annotations

from typing import Any

import pytest
from authorized_requests import GROUP, TOPIC, A, fetched, node_with, of, produced
from authorized_requests import info as info
from calls import FakeLoop, node_of, send, versions

import segstore
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.authorization.judged import judged
from segstore.server.authorization.judges import JUDGES
from segstore.server.authorized import NOT_ASKED, AclOperation, bits
from segstore.server.handlers import HANDLERS
from segstore.server.node import Node
from segstore.server.topics import id_of
from segstore.storage.meta.topic_info import TopicInfo


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
