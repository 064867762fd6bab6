"""Promise: tab completion shows the names that applications use, and no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import segstore
from segstore.public_names import PublicNames

CLIENT = "DEFAULT_CONFIG bootstrap_connected close config metrics"
CONSUMER = """assign assignment beginning_offsets commit commit_async committed end_offsets group_metadata
    highwater offsets_for_times partitions_for_topic pause paused poll poll_arrow position resume seek
    seek_to_beginning seek_to_end subscribe subscription topics unsubscribe"""
LOG = """append append_batch append_table delete_records end_offset flush high_watermark last_stable_offset
    leader_epoch log_end_offset max_timestamp offset_for_time partition read read_many read_one scan size
    start_offset topic transfer"""
PRODUCER = """abort_transaction begin_transaction commit_transaction flush init_transactions partitions_for
    send send_offsets_to_transaction"""
STORE = """add_partitions alter_topic close create_topic delete_topic ensure_topic flush host_pid members
    mended metrics metrics_text mode partition path recovered role scan stats sweep topics upgrade"""
NAMES: dict[str, tuple[Callable[[segstore.Store], Any], str]] = {
    "a store": (lambda store: store, STORE),
    "a log": (lambda store: store.partition("t"), LOG),
    "a log that is read": (lambda store: segstore.open(store.path, "r").partition("t"), LOG),
    "a producer": (segstore.Producer, f"{CLIENT} {PRODUCER}"),
    "a consumer": (segstore.Consumer, f"{CLIENT} {CONSUMER}"),
}


def public(something: object) -> set[str]:
    return {name for name in dir(something) if not name.startswith("_")}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_an_object(name: str, store: segstore.Store) -> None:
    make, wanted = NAMES[name]
    store.create_topic("t")
    assert public(make(store)) == set(wanted.split())


@pytest.mark.parametrize(
    ("cls", "wanted"), [(segstore.PartitionLog, LOG), (segstore.Store, STORE)], ids=["PartitionLog", "Store"]
)
def test_names_of_a_class(cls: type, wanted: str) -> None:
    of_objects_only = {"topic", "partition"} if cls is segstore.PartitionLog else set()
    assert public(cls) == set(wanted.split()) - of_objects_only


def test_replicated_stores_and_logs_have_no_inner_names(tmp_path: Path) -> None:
    with segstore.open_replicated([tmp_path / "a", tmp_path / "b"]) as store:
        store.create_topic("t")
        assert public(store) >= set(STORE.split())
        assert public(store.partition("t")) == set(LOG.split())
        assert not public(store) & segstore.Store._inner


def test_inner_names_are_there() -> None:
    """Else a name that is gone would stay in the list."""
    from segstore.replication.store import ReplicatedPartitionLog

    for cls in (segstore.Store, ReplicatedPartitionLog):
        held = {
            name for each in cls.__mro__ for name in (*vars(each), *vars(each).get("__annotations__", ()))
        }
        assert cls._inner <= held
        assert issubclass(cls, PublicNames)


def test_names_of_the_package() -> None:
    assert dir(segstore) == sorted(segstore.__all__)


REPRS: dict[str, tuple[Callable[[segstore.Store], Any], str]] = {
    "a topic": (lambda store: store.topics()["t"], "TopicInfo(name='t', partitions=2, topic_id='ID')"),
    "a topic with settings": (
        lambda store: store.alter_topic("t", {"retention.ms": 5}),
        "TopicInfo(name='t', partitions=2, topic_id='ID', config={'retention.ms': 5})",
    ),
    "a topic whose settings are lost": (
        lambda store: replace(
            store.topics()["t"], ours=False, lost=segstore.StorageError(5, "lost", "t.json")
        ),
        "TopicInfo(name='t', partitions=2, topic_id='ID', ours=False, lost=StorageError(5, 'lost'))",
    ),
    "a topic that lacks a partition": (
        lambda store: replace(store.topics()["t"], partition_ids=(1,)),
        "TopicInfo(name='t', partition_ids=(1,), topic_id='ID')",
    ),
}


@pytest.mark.parametrize("name", REPRS)
def test_what_a_topic_is_shown_as(name: str, store: segstore.Store) -> None:
    make, wanted = REPRS[name]
    topic_id = store.create_topic("t", 2).topic_id
    assert repr(make(store)) == wanted.replace("ID", topic_id)


def test_what_the_future_of_a_send_is_shown_as(store: segstore.Store) -> None:
    store.create_topic("t")
    with segstore.Producer(store, linger_ms=60_000) as producer:
        waiting = producer.send("t", b"x")
        assert repr(waiting) == "<FutureRecordMetadata pending>"
        producer.flush()
        assert repr(waiting) == f"<FutureRecordMetadata {waiting.get(0)!r}>"
        failed = producer.send("t", b"late")
        producer.close(0)
    assert repr(failed).startswith(f"<FutureRecordMetadata {type(failed.exception).__name__}: ")
