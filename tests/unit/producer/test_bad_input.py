"""Records that a producer can't send: each raises the named error, and the accumulator goes on working."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest
from stores import values
from waiting import PATIENCE

import segstore
from segstore import errors
from segstore.client.producer import Producer

NAMES = np.array([["a", "b"], ["c", "d"]])  # has neither truth nor hash
BAD: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "a str": ({}, {"value": "x"}, errors.SerializationError, "value is str.*value_serializer"),
    "a str for a key": ({}, {"key": "x"}, errors.SerializationError, "key is str"),
    "an int": ({}, {"value": 5}, errors.SerializationError, "value is int"),
    "a serializer that fails": (
        {"value_serializer": lambda value: value and value.encode()},
        {"value": 5},
        errors.SerializationError,
        "5 can't be serialized",
    ),
    "a serializer that gives a str": (
        {"key_serializer": lambda key: key and str(key)},
        {"key": 5},
        errors.SerializationError,
        r"the key is str, as key_serializer returned it: .*; encode it, by str\.encode\(\)",
    ),
    "a serializer that gives a number": (
        {"value_serializer": lambda value: value},
        {"value": 5},
        errors.SerializationError,
        "the value is int, as value_serializer returned it: .* or None$",
    ),
    "headers that are no list": (
        {},
        {"headers": {"a": b"b"}},
        errors.InvalidTypeError,
        "headers is dict: .*of a dict",
    ),
    "a header that is no pair": ({}, {"headers": [("a",)]}, errors.InvalidTypeError, r"headers\[0\]"),
    "a header's name in bytes": ({}, {"headers": [(b"a", b"b")]}, errors.InvalidTypeError, r"headers\[0\]"),
    "a header's value in str": (
        {},
        {"headers": [("a", b"b"), ("a", "b")]},
        errors.InvalidTypeError,
        r"headers\[1\]",
    ),
    "a header without a name": ({}, {"headers": [(None, b"b")]}, errors.InvalidTypeError, r"headers\[0\]"),
    "a header's value as a number": ({}, {"headers": [("a", 1)]}, errors.InvalidTypeError, r"headers\[0\]"),
    "a header's name that UTF-8 lacks": (
        {},
        {"headers": [("\ud800", b"b")]},
        errors.InvalidArgumentError,
        r"headers\[0\].*UTF-8",
    ),
    "headers in an array": ({}, {"headers": NAMES}, errors.InvalidTypeError, "headers is ndarray"),
    "too large": (
        {"max_request_size": 1000},
        {"value": b"x" * 1000},
        errors.RecordTooLargeError,
        "1,082 bytes.*max_request_size=1,000",
    ),
    "larger than the memory": (
        {"buffer_memory": 500},
        {"value": b"x" * 600},
        errors.RecordTooLargeError,
        "buffer_memory=500",
    ),
    "an unknown topic": ({}, {"topic": "u"}, errors.UnknownTopicOrPartitionError, "u"),
    "a topic that is no str": ({}, {"topic": 5}, errors.InvalidTypeError, "topic must be a str"),
    "a topic that can't be hashed": ({}, {"topic": []}, errors.InvalidTypeError, "topic must be a str"),
    "an unknown partition": ({}, {"partition": 1}, errors.UnknownTopicOrPartitionError, r"1.*\[0\]"),
    "a negative partition": ({}, {"partition": -1}, errors.UnknownTopicOrPartitionError, "-1"),
    "a partition that is no int": (
        {},
        {"partition": "0"},
        errors.InvalidTypeError,
        "partition must be an int",
    ),
    "a partition in an array": (
        {},
        {"partition": np.array([1])},
        errors.InvalidTypeError,
        "partition must be an int, not ndarray",
    ),
    "a timestamp that is no int": ({}, {"timestamp_ms": 1.5}, errors.InvalidTypeError, "timestamp_ms"),
    "a timestamp below -1": ({}, {"timestamp_ms": -2}, errors.InvalidArgumentError, "timestamp_ms=-2"),
    "a partitioner that fails": (
        {"partitioner": lambda key, all_, available: 1 // 0},
        {},
        ZeroDivisionError,
        "zero",
    ),
    "a partitioner that finds none": (
        {"partitioner": lambda key, all_, available: 7},
        {},
        errors.UnknownTopicOrPartitionError,
        "7",
    ),
}


@pytest.mark.parametrize(("settings", "given", "error", "match"), BAD.values(), ids=BAD)
def test_bad_input_is_named_and_the_producer_goes_on(
    store: segstore.Store, settings: dict, given: dict, error: type[Exception], match: str
) -> None:
    with Producer(store, **settings) as producer:
        with pytest.raises(error, match=match):
            producer.send(**{"topic": "t", "value": None, **given})
        assert producer.send("t", None, partition=0).get(PATIENCE).offset == 0
        producer.flush()
        assert producer.metrics()["producer-metrics"]["buffer-available-bytes"] == (
            settings.get("buffer_memory", 32 << 20)
        )


# What is too large here, where the limit is another.
LARGE: dict[str, dict[str, Any]] = {"larger than the memory": {"value": b"x" * 1_000}}


@pytest.mark.parametrize("kind", ["plain", "idempotent", "transactional"])
def test_bad_input_does_not_touch_what_waits(store: segstore.Store, kind: str) -> None:
    """Each of them comes between good records that lie in one open batch."""
    settings: dict[str, Any] = {"enable_idempotence": kind != "plain", "linger_ms": 60_000}
    if kind == "transactional":
        settings["transactional_id"] = "x"
    bad = [(case, LARGE.get(case, given), error) for case, (_, given, error, _) in BAD.items() if given]
    good: list[Any] = []
    with Producer(store, max_request_size=1_000, **settings) as producer:
        if kind == "transactional":
            producer.init_transactions()
            producer.begin_transaction()
        for case, given, error in bad:
            good.append(producer.send("t", case.encode(), partition=0))
            with pytest.raises(error):
                producer.send(**{"topic": "t", "value": None, **given})
        if kind == "transactional":
            producer.commit_transaction()
        producer.flush()
        assert [future.get(0).offset for future in good] == list(range(len(good)))
        assert producer.metrics()["producer-metrics"]["buffer-available-bytes"] == 32 << 20
    found = store.partition("t").read(0)
    assert found.values == [case.encode() for case, *_ in bad]
    assert found.batches["count"].tolist()[0] == len(good) > 15


UNKNOWN_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "no such option": ({"linger": 5}, "no setting 'linger'; did you mean linger_ms"),
    "one of the network's": (
        {"bootstrap_servers": "x:9092"},
        "bootstrap_servers is refused: it names a cluster",
    ),
    "a value that can't be": ({"acks": 2}, 'acks=2: must be 0, 1, "all" or -1'),
    "an array for a partitioner": ({"partitioner": NAMES}, "partitioner=array.*must be None, a callable"),
    "a value of another type": ({"batch_size": "large"}, "batch_size='large': must be an integer"),
}


@pytest.mark.parametrize(("settings", "match"), UNKNOWN_SETTINGS.values(), ids=UNKNOWN_SETTINGS)
def test_an_unknown_option_makes_no_producer(store: segstore.Store, settings: dict, match: str) -> None:
    running = set(threading.enumerate())
    with pytest.raises(errors.ConfigError, match=match):
        Producer(store, **settings)
    assert set(threading.enumerate()) <= running


WAITS: dict[str, tuple[Any, type[Exception]]] = {
    "a str": ("5", errors.InvalidTypeError),
    "a bool": (True, errors.InvalidTypeError),
    "an array": (NAMES, errors.InvalidTypeError),
    "a complex number": (1j, errors.InvalidTypeError),
    "NaN": (float("nan"), errors.InvalidArgumentError),
    "below 0": (-1, errors.InvalidArgumentError),
    "more than a float holds": (10**400, errors.InvalidArgumentError),
    "more digits than Python prints": (10**5000, errors.InvalidArgumentError),
    "as many below 0": (-(10**5000), errors.InvalidArgumentError),
}


@pytest.mark.parametrize("call", ["flush", "close"])
@pytest.mark.parametrize(("timeout", "error"), WAITS.values(), ids=WAITS)
def test_a_wait_that_can_not_be_changes_nothing(
    store: segstore.Store, call: str, timeout: Any, error: type[Exception]
) -> None:
    with Producer(store, linger_ms=60_000) as producer:
        future = producer.send("t", b"x")
        with pytest.raises(error, match=r"^timeout.* must be "):
            getattr(producer, call)(timeout)
        assert not future.is_done
        producer.flush(float("inf"))
        assert future.get(0).offset == 0


class _Falsy:
    """A serializer that has a length, as one with a table may."""

    def __len__(self) -> int:
        return 0

    def serialize(self, topic: str, headers: Any, data: Any) -> bytes:
        return b"made"


def test_a_serializer_that_is_false_is_called_all_the_same(store: segstore.Store) -> None:
    with Producer(store, value_serializer=_Falsy()) as producer:
        producer.send("t", b"x")
        producer.flush()
        producer.send("t", b"x")
    assert values(store.partition("t")) == [b"made"] * 2


def test_a_closed_producer_leaves_the_others_alone(store: segstore.Store) -> None:
    closed = Producer(store, client_id="c")
    with Producer(store, client_id="c") as producer:
        closed.close()
        for _ in range(2):
            with pytest.raises(errors.ClientClosedError, match="closed"):
                closed.send("t", b"x")
            producer.send("t", b"y").get(PATIENCE)
    assert values(store.partition("t")) == [b"y", b"y"]


# Refused when they are appended: the future tells, and the others of the batch go their way.
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception]]] = {
    "larger than max.message.bytes": (
        {"max.message.bytes": 500},
        {"value": os.urandom(600)},
        errors.RecordTooLargeError,
    ),
    "from the future": ({}, {"value": b"x", "timestamp_ms": 2**60}, errors.InvalidArgumentError),
}


@pytest.mark.parametrize(("config", "given", "error"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("around", [0, 3])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_refused_record_takes_no_other_with_it(
    store: segstore.Store, config: dict, given: dict, error: type[Exception], around: int, compression: Any
) -> None:
    store.alter_topic("t", config)
    told: list[BaseException] = []
    counted: list[float] = []
    with Producer(store, linger_ms=60_000, compression_type=compression) as producer:

        def errors_so_far(_: BaseException) -> None:
            counted.append(producer.metrics()["producer-metrics"]["record-error-total"])

        before = [producer.send("t", b"%d" % i) for i in range(around)]
        bad = producer.send("t", **given).add_errback(told.append).add_errback(errors_so_far)
        after = [producer.send("t", b"%d" % i, timestamp_ms=i) for i in range(around)]
        producer.flush()
        with pytest.raises(error) as caught:
            bad.get(0)
        known = [*told, bad.exception]
        assert [(type(e), e.args) for e in known] == [(type(caught.value), caught.value.args)] * 2
        assert bad.failed()
        assert bad.value is None
        assert [future.get(0).offset for future in before + after] == list(range(2 * around))
        assert [future.get(0).timestamp for future in after] == list(range(around))
        assert counted == [1]  # whoever hears of an error finds it counted
    assert values(store.partition("t")) == [b"%d" % i for i in range(around)] * 2


def test_a_topic_that_is_deleted_and_made_anew(store: segstore.Store) -> None:
    with Producer(store) as producer:
        producer.send("four", b"x", partition=3).get(PATIENCE)
        store.delete_topic("four")
        with pytest.raises((errors.UnknownTopicOrPartitionError, errors.StoreClosedError)):
            producer.send("four", b"x", partition=3).get(PATIENCE)
        with pytest.raises(errors.UnknownTopicOrPartitionError):
            producer.send("four", b"x")
        store.create_topic("four", partitions=1)
        assert producer.send("four", b"y").get(PATIENCE).offset == 0
        store.add_partitions("four", 2)
        assert producer.send("four", b"z", partition=1).get(PATIENCE)[1:4:2] == (1, 0)
        assert producer.partitions_for("four") == {0, 1}
