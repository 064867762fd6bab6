"""`importing`: appends many records to one topic, all of them or none. The import may create the topic and
the store.

The records are first written to staged files. Then all files are added to the logs together (an adoption).
After a failure a topic or store that was made for the import is removed. If the process is killed, at most an
empty topic stays. Threads: one. Processes: this process is the store's writer during the import.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

from segstore.config import TopicConfig, arguments
from segstore.errors import SegstoreError
from segstore.files import Files
from segstore.logger import Logger
from segstore.names import check_topic
from segstore.storage.context import os_errors
from segstore.storage.inbox.stager import Stager
from segstore.storage.meta.directory_safety import remove_unused
from segstore.storage.meta.topic_info import check_not_internal
from segstore.storage.meta.topics import TopicInfo, find_topic
from segstore.storage.staging.seal import adopt
from segstore.storage.store import store as store_module
from segstore.storage.store.store import Store

log = Logger("segstore")


class Importing(NamedTuple):
    """The topic of an import, and the stager. The records that the block of `importing` adds to the stager
    are appended when the block ends.
    """

    topic: TopicInfo
    stager: Stager


@contextmanager
def importing(
    path: str,
    topic: str,
    partitions: int | None = None,
    config: Mapping[str, Any] | None = None,
    *,
    files: Files | None = None,
) -> Iterator[Importing]:
    """Run a block that stages records for `topic`. When the block has ended, the records become durable and
    visible, all at once. If the block raises an error, or if the records can't be appended, the store is not
    changed.

    If `partitions` is given, the topic is created with `config`, and the store is created if it is missing.
    If `partitions` is None, the topic must exist. Raises TopicAlreadyExistsError,
    UnknownTopicOrPartitionError, InvalidTopicError, ConfigError, the errors of `segstore.open` and of
    `Stager`. If closing the store raises StorageError, the records are nevertheless in the log.
    """
    check_not_internal(topic, "nothing is imported into it")
    path, files = arguments.path("path", path), files or Files()
    with ExitStack() as stack:
        if partitions is None:
            with store_module.open(path, mode="r", files=files) as reader:
                find_topic(reader.topics(), topic)
        else:
            check_topic(topic)
            TopicConfig.parse({} if config is None else config)
            stack.enter_context(_perhaps_new(path, files))
        store = stack.enter_context(_opened(path, files))
        yield stack.enter_context(importing_into(store, topic, partitions, config))


@contextmanager
def importing_into(
    store: Store, topic: str, partitions: int | None = None, config: Mapping[str, Any] | None = None
) -> Iterator[Importing]:
    """Import as `importing` does, into a store that this process has open for writing. The store may be
    replicated. Raises the errors of `importing`, and the errors of an append with acks="all".
    """
    check_not_internal(topic, "nothing is imported into it")
    with ExitStack() as stack:
        if partitions is None:
            find_topic(store.topics(), topic)
        else:
            stack.enter_context(_new_topic(store, topic, partitions, config))
        side = store.writer()
        with Stager(side.staging_path, files=store.context.files) as stager:
            yield Importing(store.topics()[topic], stager)
            adopt(store, f"import {stager.name}", [stager.finish()])


@contextmanager
def _perhaps_new(path: str, files: Files) -> Iterator[None]:
    """Run a block; after an error, remove the store at `path` if the block has created it."""
    with os_errors():
        missing = not files.exists(path)
        bare = missing or not files.listdir(path)
    try:
        yield
    except BaseException:
        if bare:
            with _logging_failure(f"{path}, which was made for the import"):
                _unmake(path, files, missing)
        raise


def _unmake(path: str, files: Files, missing: bool) -> None:
    if files.exists(path) and remove_unused(files, path) and missing:
        files.rmdir(path)
        files.sync_dir(os.path.dirname(path))


@contextmanager
def _opened(path: str, files: Files) -> Iterator[Store]:
    """Run a block with the store open; if the block and the close both fail, the block's error is raised."""
    store = store_module.open(path, files=files)
    try:
        yield store
    except BaseException:
        with suppress(SegstoreError):
            store.close()
        raise
    store.close()


@contextmanager
def _new_topic(store: Store, topic: str, partitions: int, config: Mapping[str, Any] | None) -> Iterator[None]:
    store.create_topic(topic, partitions, config)
    try:
        yield
    except BaseException:
        with _logging_failure(f"topic {topic!r}, which was made for the import"):
            store.delete_topic(topic)
        raise


@contextmanager
def _logging_failure(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # this catches StorageError too
        log.warning("%s, can't be removed: %s", what, error)
