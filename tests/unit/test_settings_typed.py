"""What editors and type checkers know of a client's settings is what its settings class takes."""

from __future__ import annotations

import collections.abc
import inspect
import math
import types
import typing
from typing import Any

import pytest

import segstore
from segstore.client.consumer.config import ConsumerConfig
from segstore.client.consumer.settings import ConsumerSettings
from segstore.client.producer.config import ProducerConfig
from segstore.client.producer.settings import ProducerSettings
from segstore.client.settings import StoreClientSettings
from segstore.client.share.config import ShareConsumerConfig
from segstore.client.share.settings import ShareConsumerSettings
from segstore.config.settings import options

KINDS: dict[str, tuple[type[StoreClientSettings], Any]] = {
    "producer": (ProducerConfig, ProducerSettings),
    "consumer": (ConsumerConfig, ConsumerSettings),
    "share consumer": (ShareConsumerConfig, ShareConsumerSettings),
}
CLIENTS = {
    segstore.Producer: "ProducerSettings",
    segstore.AsyncProducer: "ProducerSettings",
    segstore.Consumer: "ConsumerSettings",
    segstore.AsyncConsumer: "ConsumerSettings",
    segstore.ShareConsumer: "ShareConsumerSettings",
    segstore.AsyncShareConsumer: "ShareConsumerSettings",
}


def admits(hint: Any, value: object) -> bool:
    """Whether a type of the table takes a value."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return any(admits(each, value) for each in typing.get_args(hint))
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if hint is float:
        return isinstance(value, int | float)
    if hint is type(None):
        return value is None
    if origin is collections.abc.Sequence:
        return isinstance(value, collections.abc.Sequence)
    return hint in (int, str, bool) and isinstance(value, hint)


@pytest.mark.parametrize(("config", "typed"), KINDS.values(), ids=KINDS)
def test_names_and_defaults_are_those_of_the_settings_class(
    config: type[StoreClientSettings], typed: Any
) -> None:
    hints, known = typing.get_type_hints(typed), options(config)
    assert list(hints) == list(known)
    assert typed.__total__ is False
    wrong = {name: o.default for name, o in known.items() if not admits(hints[name], o.default)}
    assert wrong in ({}, {"client_id": None})


WORDS: dict[str, tuple[type[StoreClientSettings], Any, str]] = {
    "acks": (ProducerConfig, ProducerSettings, "acks"),
    "compression_type": (ProducerConfig, ProducerSettings, "compression_type"),
    "auto_offset_reset": (ConsumerConfig, ConsumerSettings, "auto_offset_reset"),
    "isolation_level": (ConsumerConfig, ConsumerSettings, "isolation_level"),
    "mode": (ShareConsumerConfig, ShareConsumerSettings, "share_acknowledgement_mode"),
    "acquire mode": (ShareConsumerConfig, ShareConsumerSettings, "share_acquire_mode"),
}


@pytest.mark.parametrize(("config", "typed", "name"), WORDS.values(), ids=WORDS)
def test_each_word_of_a_choice_is_taken(config: type[StoreClientSettings], typed: Any, name: str) -> None:
    hint = typing.get_type_hints(typed)[name]
    parts = [hint] if typing.get_origin(hint) is typing.Literal else typing.get_args(hint)
    words = [word for part in parts for word in typing.get_args(part)]
    assert words
    for word in words:
        config.parse({name: word})
    allowed = options(config)[name].allowed
    assert all(str(word) in allowed for word in words)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_clients_take_these_settings(client: type) -> None:
    taken = inspect.signature(client.__init__).parameters["settings"]  # type: ignore[misc]
    assert taken.annotation == f"Unpack[{CLIENTS[client]}]"


def test_an_infinite_number_is_a_float() -> None:
    assert admits(float, math.inf)
    assert not admits(float, "1")
