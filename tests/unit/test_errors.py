"""Every error can be imported from `segstore`, and a program finds kafka-python's names and hierarchy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

import kafka.errors
import pytest

import segstore
from segstore import errors

OURS = {name: value for name, value in vars(errors).items() if inspect.isclass(value)}
ERRORS = {name: kind for name, kind in OURS.items() if issubclass(kind, errors.SegstoreError)}
THEIRS = {
    name: kind
    for name, kind in vars(kafka.errors).items()
    if inspect.isclass(kind) and issubclass(kind, kafka.errors.KafkaError)
}
BOTH = sorted(ERRORS.keys() & THEIRS.keys())
NOT_AS_THEIRS = {
    "KafkaConnectionError",  # theirs says that metadata is old, too, which is no matter here
    "KafkaStorageError",  # a failed sync is not passing, a full disk is: `errno` tells
}


def test_all_errors_are_listed_and_can_be_imported_from_segstore() -> None:
    assert sorted(errors.__all__) == sorted(ERRORS)
    assert len(set(errors.__all__)) == len(errors.__all__)
    for name in errors.__all__:
        assert getattr(segstore, name) is getattr(errors, name)
        assert name in segstore.__all__


def test_what_segstore_lists_is_there() -> None:
    assert [name for name in segstore.__all__ if not hasattr(segstore, name)] == []


@pytest.mark.parametrize("name", [name for name in BOTH if name not in NOT_AS_THEIRS])
def test_the_same_errors_are_retriable_as_in_kafka_python(name: str) -> None:
    retriable = issubclass(THEIRS[name], kafka.errors.RetriableError)
    assert issubclass(ERRORS[name], errors.RetriableError) == retriable
    assert ERRORS[name].retriable == retriable


@pytest.mark.parametrize("name", BOTH)
def test_kafka_error_catches_what_kafka_pythons_does(name: str) -> None:
    assert issubclass(ERRORS[name], segstore.KafkaError)


def test_names_for_the_same_error_are_kafka_pythons() -> None:
    aliases = {name for name, kind in ERRORS.items() if kind.__name__ != name}
    assert aliases - THEIRS.keys() == set()
    assert "MessageSizeTooLargeError" in aliases


RAISED: Mapping[str, tuple[str, Callable[[segstore.Store], object]]] = {
    "a record that is too large": (
        "MessageSizeTooLargeError",
        lambda store: segstore.Producer(store).send("t", bytes(2 << 20)),
    ),
    "a topic that is not there": (
        "UnknownTopicOrPartitionError",
        lambda store: segstore.Producer(store).send("none", b"v"),
    ),
    "a transaction that was not begun": (
        "IllegalStateError",
        lambda store: segstore.Producer(store).commit_transaction(),
    ),
    "a consumer that was closed": ("IllegalStateError", lambda store: closed(store).poll()),
    "a setting that is not allowed": (
        "KafkaConfigurationError",
        lambda store: segstore.Producer(store, acks=7),
    ),
    "a topic that is there": ("TopicAlreadyExistsError", lambda store: store.create_topic("t")),
    "no offset to begin at": ("NoOffsetForPartitionError", lambda store: without_reset(store)),
}


def closed(store: segstore.Store) -> segstore.Consumer:
    consumer = segstore.Consumer(store, "t")
    consumer.close()
    return consumer


def without_reset(store: segstore.Store) -> object:
    with segstore.Consumer(store, "t", auto_offset_reset="none") as consumer:
        return consumer.poll(100)


@pytest.mark.parametrize(("name", "call"), RAISED.values(), ids=RAISED)
def test_code_that_catches_kafka_pythons_name(
    store: segstore.Store, name: str, call: Callable[[segstore.Store], object]
) -> None:
    store.create_topic("t")
    with pytest.raises(segstore.KafkaError) as caught:
        call(store)
    assert isinstance(caught.value, getattr(segstore, name))
