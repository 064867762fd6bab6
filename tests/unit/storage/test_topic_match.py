"""`create_topic(exist_ok=True)` and `ensure_topic`: what exists is taken where it is as it was asked for."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import segstore
from segstore import errors

HELD = {"retention.ms": 7, "segment.bytes": 5000}

# partitions and settings that are asked for of a topic with 2 partitions and the settings HELD
TAKEN: Mapping[str, tuple[int | None, Mapping[str, Any] | None]] = {
    "nothing said of settings": (2, None),
    "the same settings": (2, HELD),
    "one of the settings": (2, {"retention.ms": 7}),
    "a setting as text": (2, {"retention.ms": "7"}),
    "a default that was not given": (2, {"cleanup.policy": "delete"}),
    "any number of partitions": (None, HELD),
}
DIFFERENT: Mapping[str, tuple[int | None, Mapping[str, Any], Mapping[str, tuple[object, object]]]] = {
    "more partitions": (3, {}, {"partitions": (2, 3)}),
    "fewer partitions": (1, {}, {"partitions": (2, 1)}),
    "another value": (2, {"retention.ms": 8}, {"retention.ms": (7, 8)}),
    "a default that is not held": (2, {"retention.ms": -1}, {"retention.ms": (7, -1)}),
    "both": (3, {"retention.ms": 8}, {"partitions": (2, 3), "retention.ms": (7, 8)}),
    "settings only": (None, {"segment.bytes": 50}, {"segment.bytes": (5000, 50)}),
}
WRONG: Mapping[str, tuple[dict[str, Any], type[Exception]]] = {
    "a setting that is unknown": ({"config": {"retention": 7}}, errors.ConfigError),
    "a value that is not allowed": ({"config": {"retention.ms": "soon"}}, errors.ConfigError),
    "no partitions": ({"partitions": 0}, errors.InvalidArgumentError),
    "partitions as text": ({"partitions": "2"}, errors.InvalidTypeError),
}


@pytest.fixture
def made(store: segstore.Store) -> segstore.Store:
    store.create_topic("t", 2, HELD)
    return store


def ask(store: segstore.Store, partitions: int | None, config: Any) -> segstore.TopicInfo:
    if partitions is None:
        return store.ensure_topic("t", config=config)
    asked = store.create_topic("t", partitions, config, exist_ok=True)
    assert store.ensure_topic("t", partitions, config) == asked
    return asked


@pytest.mark.parametrize(("partitions", "config"), TAKEN.values(), ids=TAKEN)
def test_what_is_as_asked_is_returned_as_it_is(made: segstore.Store, partitions: Any, config: Any) -> None:
    before = made.topics()["t"]
    assert ask(made, partitions, config) == before == made.topics()["t"]
    assert before.config == HELD


@pytest.mark.parametrize(("partitions", "config", "differences"), DIFFERENT.values(), ids=DIFFERENT)
def test_what_differs_is_named_and_nothing_is_changed(
    made: segstore.Store, partitions: Any, config: Any, differences: Any
) -> None:
    before = made.topics()["t"]
    with pytest.raises(errors.TopicMismatchError) as caught:
        ask(made, partitions, config)
    assert caught.value.differences == differences
    assert isinstance(caught.value, errors.TopicAlreadyExistsError)
    for name, (has, asked) in differences.items():
        assert f"{name}={has}, not {asked}" in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.differences) == (str(caught.value), differences)
    assert made.topics()["t"] == before


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize(("given", "error"), WRONG.values(), ids=WRONG)
def test_bad_input_is_refused_whether_or_not_the_topic_exists(
    store: segstore.Store, exists: bool, given: dict[str, Any], error: type[Exception]
) -> None:
    if exists:
        store.create_topic("t", 2)
    with pytest.raises(error):
        store.ensure_topic("t", **given)
    with pytest.raises(error):
        store.create_topic("t", **given, exist_ok=True)
    assert ("t" in store.topics()) == exists


def test_a_topic_that_is_missing_is_made(store: segstore.Store) -> None:
    assert store.ensure_topic("one").partitions == 1
    assert store.ensure_topic("many", 3, HELD).config == HELD
    assert store.create_topic("new", 2, exist_ok=True).partitions == 2
    assert sorted(store.topics()) == ["many", "new", "one"]


def test_without_exist_ok_it_is_an_error_as_ever(made: segstore.Store) -> None:
    with pytest.raises(errors.TopicAlreadyExistsError) as caught:
        made.create_topic("t", 2, HELD)
    assert type(caught.value) is errors.TopicAlreadyExistsError
    with pytest.raises(errors.InvalidTypeError):
        made.create_topic("t", 2, exist_ok="yes")  # type: ignore[arg-type]


def test_internal_topics_and_readers_are_refused(made: segstore.Store) -> None:
    with pytest.raises(errors.InvalidTopicError):
        made.ensure_topic("__consumer_offsets")
    with segstore.open(made.path, "r") as reader, pytest.raises(errors.ReadOnlyError):
        reader.ensure_topic("t")


def test_threads_that_ensure_one_topic_all_get_it(store: segstore.Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        for name in ("a", "b", "c"):
            infos = list(pool.map(lambda _, name=name: store.ensure_topic(name, 2), range(16)))
            assert len({info.topic_id for info in infos}) == 1
