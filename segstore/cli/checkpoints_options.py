"""Options of `segstore checkpoints`, and how its topic is opened. On disk: reads the store. Threads: one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import rich_click as click

from segstore.cli.options import open_reading
from segstore.errors import OffsetOutOfRangeError
from segstore.filetree import Snapshot, files_log, snapshot
from segstore.storage.store.partition_log import PartitionLog

F = TypeVar("F", bound=Callable[..., Any])


def topic_option(command: F) -> F:
    """--topic NAME: the argument `topic`."""
    return click.option(
        "--topic", "-t", default="checkpoints", show_default=True, help="The topic that holds them."
    )(command)


def at_option(command: F) -> F:
    """--at OFFSET: the argument `at`, None for now."""
    return click.option(
        "--at", type=click.IntRange(0), metavar="OFFSET", help="As of this offset; by default now."
    )(command)


@contextmanager
def opened(path: str, topic: str) -> Iterator[PartitionLog]:
    """The topic's log. StorageError, UnknownTopicOrPartitionError, ConfigError."""
    with open_reading(path) as store:
        yield files_log(store, topic)


def seen(log: PartitionLog, at: int | None) -> Snapshot:
    """The tree as of an offset. OffsetOutOfRangeError, which says why it can't be seen."""
    try:
        return snapshot(log, at)
    except OffsetOutOfRangeError as error:
        if error.offset < error.start:
            error.args = (f"{error}: compaction has been at what was before",)
        raise
