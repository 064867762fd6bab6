"""What a share consumer refuses: settings, topics, stores, arguments (rule Q10 of docs/queues.md)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from share_consumers import opened, worker
from share_consumers import store as store
from waiting import until

import segstore
from segstore import ShareConsumer
from segstore.errors import (
    ConfigError,
    GroupNotFoundError,
    IllegalStateError,
    InvalidArgumentError,
    InvalidGroupIdError,
    InvalidTypeError,
    ReadOnlyError,
    UnknownTopicOrPartitionError,
)

REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no group": ({}, InvalidGroupIdError, "group_id=''"),
    "a blank group": ({"group_id": " "}, ConfigError, "group_id=' '"),
    "a setting of the group": (
        {"group_id": "g", "auto_offset_reset": "earliest"},
        ConfigError,
        "auto_offset_reset is refused.*share.auto.offset.reset",
    ),
    "an unknown setting": ({"group_id": "g", "colour": 1}, ConfigError, "colour"),
}


@pytest.mark.parametrize(("settings", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_q10_settings_are_refused_by_name(
    store: segstore.Store, settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        ShareConsumer(store, "t", **settings)


def test_a_topic_must_be_there(store: segstore.Store) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="'u'"):
        worker(store, "u")
    with worker(store) as queue:
        with pytest.raises(UnknownTopicOrPartitionError, match="'u'"):
            queue.subscribe(["t", "u"])
        assert queue.subscription() == {"t"}


@pytest.mark.parametrize("topics", ["t", 7, [7], None])
def test_topics_are_a_list_of_names(store: segstore.Store, topics: Any) -> None:
    with worker(store) as queue, pytest.raises(InvalidTypeError):
        queue.subscribe(topics)


def test_a_store_to_read_has_no_share_groups(store_dir: Path) -> None:
    with opened(store_dir), segstore.open(store_dir, mode="r") as reader:
        with pytest.raises(ReadOnlyError, match="share groups belong to the process that writes") as refused:
            worker(reader)
        assert "segstore serve" in str(refused.value)


def refusal(store: segstore.Store) -> str:
    try:
        worker(store)
    except ReadOnlyError as error:
        return str(error)
    return ""


def test_a_reader_is_told_where_the_store_is_served(store_dir: Path) -> None:
    """The server's thread says where, in a moment."""
    with (
        opened(store_dir) as store,
        segstore.serve(store, port=0) as server,
        segstore.open(store_dir, mode="r") as reader,
    ):
        until(lambda: re.search(f"with a Kafka client at .*:{server.port}, where", refusal(reader)))


def test_a_guest_is_refused_by_name(store_dir: Path) -> None:
    with opened(store_dir):
        pass
    with (
        segstore.open(store_dir, shared=True),
        segstore.open(store_dir, shared="guest") as guest,
        pytest.raises(IllegalStateError, match=r"ShareConsumer\(group_id='g'\).*guest"),
    ):
        worker(guest)


def test_no_store_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match="store must be a Store"):
        ShareConsumer("store", group_id="g")  # type: ignore[arg-type]


ARGUMENTS: dict[str, tuple[Callable[[ShareConsumer], object], type[Exception]]] = {
    "a negative time-out": (lambda queue: queue.poll(timeout_ms=-1), InvalidArgumentError),
    "a time-out of no number": (lambda queue: queue.poll(timeout_ms="1"), InvalidTypeError),  # type: ignore[arg-type]
    "NaN": (lambda queue: queue.poll(timeout_ms=float("nan")), InvalidArgumentError),
    "no records": (lambda queue: queue.poll(max_records=0), InvalidArgumentError),
    "a commit's time-out": (lambda queue: queue.commit_sync(-1), InvalidArgumentError),
    "a close's time-out": (lambda queue: queue.close(-1), InvalidArgumentError),
    "a callback": (
        lambda queue: queue.set_acknowledgement_commit_callback("f"),  # type: ignore[arg-type]
        InvalidTypeError,
    ),
    "a topic": (lambda queue: queue.acknowledge_offset(7, 0, 0), InvalidTypeError),  # type: ignore[arg-type]
    "a partition": (lambda queue: queue.acknowledge_offset("t", -1, 0), InvalidArgumentError),
    "an offset": (lambda queue: queue.acknowledge_offset("t", 0, "0"), InvalidTypeError),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("call", "error"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_are_judged(
    store: segstore.Store, call: Callable[[ShareConsumer], object], error: type[Exception]
) -> None:
    with worker(store) as queue:
        with pytest.raises(error):
            call(queue)
        assert len(queue.poll_flat()) == 10


def test_a_group_of_another_kind_is_refused(store: segstore.Store) -> None:
    with segstore.Consumer(store, "t", group_id="h") as consumer:
        consumer.poll()
        with worker(store, group="h") as queue, pytest.raises(GroupNotFoundError):
            queue.poll()
