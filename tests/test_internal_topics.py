"""The topics that the engine writes for itself: nobody else writes or deletes them, and what lies in them
that is no record of theirs locks nobody out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli import run

import segstore
from segstore.client.filetree.topic import make_topic
from segstore.errors import ConfigError, InvalidTopicError, StagedFilesError
from segstore.files import Files
from segstore.spark.sink_store import Sink
from segstore.storage.importing import importing
from segstore.storage.staging import verifying
from segstore.storage.staging.message import StagedFile
from segstore.storage.staging.stager import Stager

OFFSETS, STATE = "__consumer_offsets", "__transaction_state"
T0 = segstore.TopicPartition("t", 0)


@pytest.fixture
def store(store_dir: Path) -> Any:
    """Ten records in `t`, read and committed by group `g`; a transaction of id `x` was committed."""
    config = {"offsets.topic.num.partitions": 3, "transaction.state.log.num.partitions": 3}
    with segstore.open(store_dir, config=config) as store:
        store.create_topic("t")
        store.partition("t").append_batch([b"%d" % i for i in range(10)])
        consumer = consume(store)
        consumer.poll(1000)
        consumer.commit()
        consumer.close()
        producer = segstore.Producer(store, transactional_id="x")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"last")
        producer.commit_transaction()
        producer.close()
        yield store


def consume(store: segstore.Store) -> segstore.Consumer:
    return segstore.Consumer(store, "t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)


REFUSED: dict[str, Callable[[segstore.Store, str], object]] = {
    "append": lambda store, topic: store.partition(topic).append(b"junk", key=b"junk"),
    "append_batch": lambda store, topic: store.partition(topic).append_batch([b"junk"], keys=[b"junk"]),
    "delete_records": lambda store, topic: store.partition(topic).delete_records(-1),
    "delete_topic": lambda store, topic: store.delete_topic(topic),
    "create_topic": lambda store, topic: store.create_topic(topic),
    "add_partitions": lambda store, topic: store.add_partitions(topic, 10),
    "alter_topic": lambda store, topic: store.alter_topic(topic, {"cleanup.policy": "delete"}),
    "alter_topic to the default": lambda store, topic: store.alter_topic(topic, {"cleanup.policy": None}),
    "Producer.send": lambda store, topic: segstore.Producer(store).send(topic, b"junk", key=b"junk"),
    "files": lambda store, topic: make_topic(store, topic, {}),
}


@pytest.mark.parametrize("topic", [OFFSETS, STATE])
@pytest.mark.parametrize("call", REFUSED)
def test_users_do_not_change_an_internal_topic(call: str, topic: str, store: segstore.Store) -> None:
    info = store.topics()[topic]
    ends = [store.partition(topic, p).end_offset for p in info.partition_ids]
    with pytest.raises(InvalidTopicError, match=f"'{topic}' is internal"):
        REFUSED[call](store, topic)
    assert store.topics()[topic] == info
    assert [store.partition(topic, p).end_offset for p in info.partition_ids] == ends


@pytest.mark.parametrize("topic", [OFFSETS, STATE, "__share_group_state", "__cluster_metadata"])
def test_users_make_no_internal_topic(topic: str, store_dir: Path) -> None:
    with (
        segstore.open(store_dir) as store,
        pytest.raises(InvalidTopicError, match="make it when they need it"),
    ):
        store.create_topic(topic)


def test_nothing_is_staged_or_imported_for_an_internal_topic(store: segstore.Store, store_dir: Path) -> None:
    with Stager(store_dir) as stager, pytest.raises(InvalidTopicError, match="is internal"):
        stager.append_batch(OFFSETS, 0, [b"junk"], [b"junk"])
    file = StagedFile("0" * 32, "0.log", OFFSETS, "", 0, 1, 1, 1, 0, "", True)
    with pytest.raises(StagedFilesError, match="takes no staged files"):
        verifying.verify(Files(), "0.log", file, store.topics()[OFFSETS].settings, 1)
    store.close()
    with pytest.raises(InvalidTopicError, match="is internal"), importing(str(store_dir), OFFSETS):
        pass
    with pytest.raises(ConfigError, match="option topic: topic '__consumer_offsets' is internal"):
        Sink(str(store_dir), OFFSETS, 1000).check(["key", "value"])


def test_the_commands_refuse_an_internal_topic(store: segstore.Store, store_dir: Path) -> None:
    store.close()
    for args in (("produce", OFFSETS), ("delete", OFFSETS, "--yes"), ("create", OFFSETS)):
        done = run(*args, "-s", store_dir, stdin="junk\n")
        assert done.exit_code == 1
        assert f"'{OFFSETS}' is internal" in done.stderr


def test_internal_topics_are_read_and_their_settings_altered(store: segstore.Store) -> None:
    """`flush.messages=1` makes each commit durable: that is an operator's choice."""
    assert sum(len(store.partition(OFFSETS, p).read(0)) for p in range(3)) > 0
    info = store.alter_topic(OFFSETS, {"flush.messages": 1, "cleanup.policy": "compact"})
    assert info.settings.flush_messages == 1
    assert segstore.Producer(store).partitions_for(OFFSETS) == {0, 1, 2}
    consumer = consume(store)
    assert consumer.committed(T0) == 10
    consumer.close()
