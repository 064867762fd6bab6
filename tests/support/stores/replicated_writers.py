"""Helpers for data directories of a replicated store, each opened by its own `StoreWriter`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stores import START_MS, Clock

from segstore.config import StoreConfig, TopicConfig
from segstore.files import Files
from segstore.names import new_topic_id
from segstore.storage.context import StoreContext
from segstore.storage.handle_pool import HandlePool
from segstore.storage.meta.topics import TopicInfo
from segstore.storage.scheduler import Scheduler
from segstore.storage.store.writer import StoreWriter

TOPIC_ID = new_topic_id()


def open_writer(path: Path, files: Files | None = None, *, replicated: bool = True) -> StoreWriter:
    """Open a data directory as a replicated store does, and make it where it is missing."""
    files = files or Files()
    path.mkdir(exist_ok=True)
    context = StoreContext(
        str(path), files, HandlePool(files, 100), Scheduler(), Clock(START_MS), True, os.getpid()
    )
    return StoreWriter(context, StoreConfig.parse({}), replicated=replicated)


def topic(name: str = "t", partitions: tuple[int, ...] = (0,), **config: Any) -> TopicInfo:
    """A topic with the same id in all directories; `config` has its settings with _ for dots."""
    settings = TopicConfig.parse({name.replace("_", "."): value for name, value in config.items()})
    return TopicInfo(name, partitions, TOPIC_ID, settings)
