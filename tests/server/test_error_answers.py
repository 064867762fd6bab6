"""An injected error is in the answer to all that was asked, in every version of every API."""

from __future__ import annotations

import random
from typing import Any

import pytest
from drawn_messages import drawn, encoded

from segstore.protocol.codec import Struct, decode, structs
from segstore.server.apis import Api, served
from segstore.server.error_answers import error_answer
from segstore.server.request import Request

CODE = 41
NO_PLACE = {(Api.DESCRIBE_LOG_DIRS, 1), (Api.DESCRIBE_LOG_DIRS, 2)}
"""Their answers name directories, which the request does not."""


def asking(api: Api, version: int, body: Any) -> Request:
    return Request(api, version, None, body, None, lambda body: None)  # type: ignore[arg-type]


def codes_of(value: Any) -> list[int]:
    """All error codes in a structure."""
    if isinstance(value, list):
        return [code for each in value for code in codes_of(each)]
    if not isinstance(value, Struct):
        return []
    named = [getattr(value, n) for n in value.__slots__ if n in ("error_code", "partition_error_code")]
    return [*named, *(code for n in value.__slots__ for code in codes_of(getattr(value, n)))]


@pytest.mark.parametrize("api", Api, ids=lambda api: api.name)
def test_every_version_has_the_code(api: Api, rng: random.Random) -> None:
    low, high = served(api)
    for version in range(low, high + 1):
        body = drawn(f"{api.message}Request", version, rng, lengths=(1, 1))
        answer = error_answer(asking(api, version, body), CODE)
        name = f"{api.message}Response"
        read = decode(name, version, memoryview(encoded(answer, version)))
        assert read == answer
        assert CODE in codes_of(answer) or (api, version) in NO_PLACE, version


def test_the_answer_names_what_was_asked() -> None:
    kinds = structs("ProduceRequest")
    partitions = [kinds.PartitionProduceData(index=n) for n in (3, 5)]
    body = kinds(topic_data=[kinds.TopicProduceData(name="flights", partition_data=partitions)])
    (topic,) = error_answer(asking(Api.PRODUCE, 9, body), CODE).responses
    assert topic.name == "flights"
    assert [(each.index, each.error_code) for each in topic.partition_responses] == [(3, CODE), (5, CODE)]


def test_the_answer_names_what_was_asked_by_numbers_and_names() -> None:
    kinds = structs("OffsetFetchRequest")
    topics = [kinds.OffsetFetchRequestTopics(name="flights", partition_indexes=[3, 5])]
    body = kinds(groups=[kinds.OffsetFetchRequestGroup(group_id="g", topics=topics)])
    (group,) = error_answer(asking(Api.OFFSET_FETCH, 8, body), CODE).groups
    assert (group.group_id, group.error_code, group.topics[0].name) == ("g", CODE, "flights")
    assert [each.partition_index for each in group.topics[0].partitions] == [3, 5]
    found = error_answer(asking(Api.FIND_COORDINATOR, 4, finding("a", "b")), CODE).coordinators
    assert [(each.key, each.error_code) for each in found] == [("a", CODE), ("b", CODE)]


def finding(*keys: str) -> Any:
    return structs("FindCoordinatorRequest")(coordinator_keys=list(keys))


def test_null_asks_for_nothing_that_could_be_named() -> None:
    answer = error_answer(asking(Api.METADATA, 9, structs("MetadataRequest")(topics=None)), CODE)
    assert answer.topics == []
