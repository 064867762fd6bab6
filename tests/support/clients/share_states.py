"""Helpers for the durable states of share partitions: a store with topics, keys, and what its log says."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from groups import Unsynced
from stores import Clock, records

import segstore
from segstore.coordinator.share.core.values import Durable
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.state_log import TOPIC, StateLog
from segstore.coordinator.share.state_schema import StateKind, parse_snapshot, parse_state_key, parse_update
from segstore.coordinator.share.state_table import load
from segstore.coordinator.shared import shared
from segstore.files import Files

LIMIT = 500


def opened(
    path: Path, clock: Clock | None = None, files: Files | None = None, **config: int
) -> segstore.Store:
    """Open a store with topics "t" and "u" of four partitions, and one partition of the state topic; in
    `config` stand the share coordinator's settings, without their common prefix.
    """
    settings = {f"share.coordinator.{name.replace('_', '.')}": value for name, value in config.items()}
    settings = {"share.coordinator.state.topic.num.partitions": 1, **settings}
    store = segstore.open(path, config=settings, clock=clock or Clock(), files=files or Unsynced())
    for topic in ("t", "u"):
        if topic not in store.topics():
            store.create_topic(topic, 4)
    return store


def states_of(store: segstore.Store) -> StateLog:
    return shared(store, StateLog)


def key_of(store: segstore.Store, group: str = "g", topic: str = "t", partition: int = 0) -> ShareKey:
    return ShareKey(group, store.topics()[topic].topic_id, partition)


def kinds(store: segstore.Store, partition: int = 0) -> str:
    """Return a letter for each record of a partition: s(napshot), u(pdate), t(ombstone), ? for others."""
    found = ""
    for record in records(store.partition(TOPIC, partition)):
        assert record.key is not None
        letter = {b"\0\0": "s", b"\0\1": "u"}.get(record.key[:2], "?")
        found += "t" if letter == "s" and record.value is None else letter
    return found


def written(store: segstore.Store, partition: int = 0) -> list[tuple[ShareKey, object]]:
    """Return key and content of all records of a partition; None stands for a tombstone."""
    found = []
    for record in records(store.partition(TOPIC, partition)):
        assert record.key is not None
        kind = StateKind(record.key[1])
        parse = parse_snapshot if kind is StateKind.SNAPSHOT else parse_update
        found.append(
            (parse_state_key(kind, record.key), None if record.value is None else parse(record.value))
        )
    return found


def folded(store: segstore.Store, keys: Iterable[ShareKey], partition: int = 0) -> dict[ShareKey, Durable]:
    """Return the states that the log gives, as a new process would read it."""
    table = load(store.partition(TOPIC, partition), LIMIT)
    found = {}
    for key in keys:
        held = table.find(key)
        if held is not None and held.fold.state is not None:
            found[key] = held.fold.state
    return found


def held(store: segstore.Store, keys: Iterable[ShareKey]) -> dict[ShareKey, Durable]:
    """Return the states that memory has."""
    states = states_of(store)
    return {key: state for key in keys if (state := states.read(key)) is not None}
