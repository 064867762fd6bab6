"""Promise: the administration clients of librdkafka and kafka-python do over the wire what `Store` does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from kafka import KafkaAdminClient
from kafka import admin as python_admin

import segstore

pytestmark = pytest.mark.kind("clients on the wire")

SECONDS = 30.0


@pytest.fixture
def librdkafka(server: segstore.Server) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})


@pytest.fixture
def kafka_python(server: segstore.Server) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=server.bootstrap_servers)
    yield client
    client.close()


def done(futures: Any) -> list[Any]:
    return [future.result(SECONDS) for future in futures.values()]


def test_librdkafka_administers_topics(librdkafka: AdminClient, store: segstore.Store) -> None:
    done(librdkafka.create_topics([NewTopic("t", 2, 1, config={"retention.ms": "1000"})]))
    assert (store.topics()["t"].partitions, store.topics()["t"].config) == (2, {"retention.ms": 1000})
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        done(librdkafka.create_topics([NewTopic("t", 2, 1)]))
    assert caught.value.args[0].code() == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS
    assert caught.value.args[0].str() == "topic 't' is there already"
    done(librdkafka.create_partitions([NewPartitions("t", 3)]))
    listed = librdkafka.list_topics(timeout=SECONDS)
    assert {name: sorted(each.partitions) for name, each in listed.topics.items()} == {"t": [0, 1, 2]}
    (described,) = done(librdkafka.describe_topics(TopicCollection(["t"])))
    assert [each.leader.id for each in described.partitions] == [1, 1, 1]
    store.partition("t", 1).append_batch([b"x"] * 5)
    (trimmed,) = done(librdkafka.delete_records([TopicPartition("t", 1, 3)]))
    assert (trimmed.low_watermark, store.partition("t", 1).start_offset) == (3, 3)
    done(librdkafka.delete_topics(["t"]))
    assert not store.topics()


def test_librdkafka_administers_settings(librdkafka: AdminClient, store: segstore.Store) -> None:
    store.create_topic("t", config={"retention.ms": 1000})
    of_topic = ConfigResource(ConfigResource.Type.TOPIC, "t")
    of_broker = ConfigResource(ConfigResource.Type.BROKER, "1")
    of_t, of_1 = done(librdkafka.describe_configs([of_topic, of_broker]))
    assert (of_t["retention.ms"].value, of_t["retention.ms"].is_default) == ("1000", False)
    assert (of_1["num.partitions"].value, of_1["num.partitions"].is_read_only) == ("1", True)
    more = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)
    less = ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE)
    changed = ConfigResource(ConfigResource.Type.TOPIC, "t", incremental_configs=[more, less])
    done(librdkafka.incremental_alter_configs([changed]))
    assert store.topics()["t"].config == {"cleanup.policy": "delete,compact"}


def test_librdkafka_sees_one_node(librdkafka: AdminClient, server: segstore.Server) -> None:
    cluster = librdkafka.describe_cluster(request_timeout=SECONDS).result(SECONDS)
    (node,) = cluster.nodes
    assert (cluster.cluster_id, cluster.controller.id) == (server.node.cluster_id, 1)
    assert (node.id, node.host, node.port) == (1, server.host, server.port)


def test_kafka_python_administers(kafka_python: KafkaAdminClient, store: segstore.Store) -> None:
    kafka_python.create_topics([python_admin.NewTopic("t", 2, 1)])
    kafka_python.create_partitions({"t": python_admin.NewPartitions(3)})
    assert (kafka_python.list_topics(), store.topics()["t"].partitions) == (["t"], 3)
    (topic,) = kafka_python.describe_topics(["t"])
    assert [each["leader_id"] for each in topic["partitions"]] == [1, 1, 1]
    assert [each["broker_id"] for each in kafka_python.describe_cluster()["brokers"]] == [1]
    store.partition("t").append(b"x")
    (broker,) = kafka_python.describe_log_dirs()
    (directory,) = broker["log_dirs"]
    sizes = {each["partition_index"]: each["partition_size"] for each in directory["topics"][0]["partitions"]}
    assert (directory["log_dir"], sizes) == (store.path, {0: store.partition("t").size, 1: 0, 2: 0})
    kafka_python.delete_topics(["t"])
    assert not store.topics()
