"""Impossible requests to a consumer: each raises the named error, and changes nothing."""

from __future__ import annotations

import re
from typing import Any

import kafka
import numpy as np
import pytest
from consumers import drain, earliest, fill, offsets, tp

import segstore
from segstore.client.consumer import Consumer
from segstore.errors import (
    ConfigError,
    IllegalStateError,
    InvalidArgumentError,
    InvalidTypeError,
    UnknownTopicOrPartitionError,
)

UNKNOWN, STATE, ARGUMENT, TYPE = (
    UnknownTopicOrPartitionError, IllegalStateError, InvalidArgumentError, InvalidTypeError,
)  # fmt: skip
NAMES = np.array([["a", "b"], ["c", "d"]])  # has neither truth nor hash
BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "an unknown topic": (lambda c: c.subscribe(["u"]), UNKNOWN, "no topic 'u'; there are: t"),
    "an unknown partition": (lambda c: c.assign([tp(7)]), UNKNOWN, "no partition 7"),
    "a topic that can't be": (lambda c: c.subscribe(["a/b"]), UNKNOWN, "'a/b'"),
    "topics as one str": (lambda c: c.subscribe("t"), TYPE, "a list of str, not str"),
    "a topic that is no str": (lambda c: c.subscribe([3]), TYPE, "must be a str, not int"),
    "topics that are a number": (lambda c: c.subscribe(3), TYPE, "a list of str, not int"),
    "nothing to subscribe to": (lambda c: c.subscribe(), ARGUMENT, "neither topics nor a pattern"),
    "both": (lambda c: c.subscribe(["t"], pattern="t"), STATE, "only one of them"),
    "a pattern that is none": (lambda c: c.subscribe(pattern="("), ARGUMENT, r"pattern='\('"),
    "a pattern of bytes": (lambda c: c.subscribe(pattern=b"t"), ARGUMENT, "regular expression"),
    "a pattern in an array": (lambda c: c.subscribe(pattern=NAMES), ARGUMENT, "regular expression"),
    "topics in an array of none": (
        lambda c: c.subscribe(NAMES[:0]),
        ARGUMENT,
        "neither topics nor a pattern",
    ),
    "a deaf listener": (lambda c: c.subscribe(["t"], listener=3), TYPE, "int has no on_partitions_revoked"),
    "a partition that is a str": (lambda c: c.assign(["t"]), TYPE, "a TopicPartition, not str"),
    "a plain tuple": (lambda c: c.seek(("t", 0), 0), TYPE, "a TopicPartition, not tuple"),
    "position of a stranger": (lambda c: c.position(tp(1)), STATE, "t-1 is not assigned; .*: t-0"),
    "seek in a stranger": (lambda c: c.seek(tp(1), 0), STATE, "t-1 is not assigned"),
    "pause of a stranger": (lambda c: c.pause(tp(0), tp(1)), STATE, "t-1 is not assigned"),
    "resume of a stranger": (lambda c: c.resume(tp(1)), STATE, "t-1 is not assigned"),
    "beginning of a stranger": (lambda c: c.seek_to_beginning(tp(1)), STATE, "t-1 is not assigned"),
    "highwater of a stranger": (lambda c: c.highwater(tp(1)), STATE, "t-1 is not assigned"),
    "an offset below 0": (lambda c: c.seek(tp(), -1), ARGUMENT, "offset=-1: must be at least 0"),
    "an offset that is no int": (lambda c: c.seek(tp(), "0"), TYPE, "offset must be an int, not str"),
    "time below 0": (lambda c: c.offsets_for_times({tp(): -1}), ARGUMENT, "timestamp=-1"),
    "offsets of the unknown": (lambda c: c.end_offsets([tp(0, "u")]), UNKNOWN, "no topic 'u'"),
    "a wait below 0": (lambda c: c.poll(-1), ARGUMENT, "timeout_ms=-1: must be at least 0"),
    "a wait that is NaN": (lambda c: c.poll_arrow(float("nan")), ARGUMENT, "timeout_ms=nan"),
    "a wait that no float holds": (lambda c: c.poll(10**400), ARGUMENT, "timeout_ms=10.*must"),
    "a wait that is no number": (lambda c: c.poll(None), TYPE, "timeout_ms must be a number"),
    "no records": (lambda c: c.poll(max_records=0), ARGUMENT, "max_records=0: must be at least 1"),
    "half a record": (lambda c: c.poll(max_records=1.5), TYPE, "max_records must be an int"),
    "a commit without a group": (lambda c: c.commit(), STATE, "belong to a group"),
    "one that does not wait": (lambda c: c.commit_async(), STATE, "belong to a group"),
    "what was committed": (lambda c: c.committed(tp()), STATE, "group_id is None"),
    "of no partition": (lambda c: c.committed("t"), TYPE, "a TopicPartition, not str"),
    "subscribe after assign": (lambda c: c.subscribe(["t"]), STATE, r"unsubscribe\(\) first"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_and_changes_nothing(store: segstore.Store, case: str) -> None:
    call, kind, said = BAD[case]
    fill(store, partitions=2)
    consumer = earliest(store)
    consumer.assign([tp(0)])
    consumer.seek(tp(0), 3)
    with pytest.raises(kind, match=said):
        call(consumer)
    assert (consumer.assignment(), consumer.position(tp(0)), consumer.paused()) == ({tp(0)}, 3, set())
    assert offsets(drain(consumer)) == list(range(3, 10))


@pytest.mark.parametrize("callback", [True, False, "f", 5, NAMES, np.array([1])])
def test_a_callback_that_can_not_be_called(store: segstore.Store, callback: Any) -> None:
    """The consumer closes, and its offsets are as they were."""
    fill(store)
    told: list[Any] = []
    given = earliest(store, group_id="g", default_offset_commit_callback=lambda *of: told.append(of))
    with given as consumer:
        consumer.assign([tp(0)])
        with pytest.raises(TYPE, match=f"callback must be a callable.* not {type(callback).__name__}"):
            consumer.commit_async({tp(0): kafka.OffsetAndMetadata(1, "", -1)}, callback=callback)
        assert consumer.committed(tp(0)) is None
        consumer.commit_async({tp(0): kafka.OffsetAndMetadata(2, "", -1)})
    assert [error for _, error in told] == [None]


@pytest.mark.parametrize("how", ["commit", "commit_async"])
def test_a_negative_offset_can_not_be_committed(store: segstore.Store, how: str) -> None:
    fill(store)
    with earliest(store, group_id="g") as consumer:
        consumer.assign([tp(0)])
        with pytest.raises(ARGUMENT, match="offset=-1: must be at least 0"):
            getattr(consumer, how)({tp(0): kafka.OffsetAndMetadata(-1, "", -1)})
        assert consumer.committed(tp(0)) is None


def test_what_kafka_python_raises_is_among_the_bases() -> None:
    assert issubclass(InvalidArgumentError, ValueError)
    assert issubclass(InvalidTypeError, TypeError)


def test_a_consumer_needs_a_store(store: segstore.Store) -> None:
    with pytest.raises(InvalidTypeError, match=re.escape("segstore.open()")):
        Consumer("t")  # type: ignore[arg-type]
    with pytest.raises(UnknownTopicOrPartitionError, match="'u'"):
        Consumer(store, "u")
    with pytest.raises(ConfigError, match="bootstrap_servers is refused: it names a cluster"):
        Consumer(store, bootstrap_servers="localhost:9092")


def test_assign_after_subscribe_and_the_way_out(store: segstore.Store) -> None:
    fill(store)
    consumer = earliest(store, "t")
    with pytest.raises(IllegalStateError, match=r"unsubscribe\(\) first"):
        consumer.assign([tp()])
    with pytest.raises(IllegalStateError, match=r"unsubscribe\(\) first"):
        consumer.subscribe(pattern="t")
    consumer.unsubscribe()
    assert consumer.poll() == {}
    with pytest.raises(IllegalStateError, match="no partitions are assigned"):
        consumer.seek_to_end()
    consumer.assign([tp()])
    assert len(drain(consumer)) == 10


def test_no_group_is_no_membership(store: segstore.Store) -> None:
    metadata = earliest(store).group_metadata()
    assert metadata == kafka.structs.ConsumerGroupMetadata()
