"""The trees of a store: one for each topic, which all who change its files share. On disk: makes the topic.

Threads: any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from segstore.coordinator.shared import shared
from segstore.filetree.topic import files_log, make_topic
from segstore.filetree.tree import FileTree
from segstore.mutex import Mutex
from segstore.storage.store.store import Store


def file_tree(store: Store, topic: str, config: Mapping[str, Any] | None = None) -> FileTree:
    """The one tree of a topic in an open store, which is made where it is not there.

    ConfigError where the topic can't hold files, InvalidRecordError where it holds others; ReadOnlyError.
    """
    return shared(store, _Trees).tree(topic, config or {})


class _Trees:
    """By topic."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Mutex()
        self._held: dict[str, FileTree] = {}

    def tree(self, topic: str, config: Mapping[str, Any]) -> FileTree:
        with self._lock:
            make_topic(self._store, topic, config)
            log = files_log(self._store, topic)
            held = self._held.get(topic)
            if held is None or held.log is not log:
                held = self._held[topic] = FileTree(log)
            return held

    def close(self) -> None:
        self._held.clear()
