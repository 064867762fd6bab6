"""Rewrites small files that have no readable copy: topic settings, `partition.metadata`, quotas, credentials,
settings of groups.

The damaged files are moved to the quarantine. `partition.metadata` is rewritten only for the topics of a
Kafka broker, because they have no settings file of segstore. Threads: one, while the store is open for
writing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from segstore import names
from segstore.errors import CorruptCheckpointError, StorageError
from segstore.storage.finding import Repaired
from segstore.storage.meta.client_quotas import QUOTAS
from segstore.storage.meta.group_configs import GROUP_CONFIGS
from segstore.storage.meta.scram_credentials import SCRAM
from segstore.storage.meta.small_files import Copies, put_aside, reason
from segstore.storage.meta.topics import TopicFiles, TopicInfo
from segstore.storage.store.store import Store


def state_anew(store: Store) -> Iterator[Repaired]:
    """Move the files that can't be read to the quarantine, and rewrite topic settings and topic ids. Yield
    each repair. Raises OSError.
    """
    files, root = store.context.files, store.path
    for info in list(store.topics().values()):
        if info.lost is not None:
            yield _state_settings(store, info)
        elif not info.ours and info.error is None:
            yield from _identify(store, info)
    yield from _put_aside(store, QUOTAS.copies(files, root), "no client has a limit until it is given anew")
    yield from _put_aside(store, SCRAM.copies(files, root), "there is no SCRAM user until one is made anew")
    yield from _put_aside(store, GROUP_CONFIGS.copies(files, root), "groups have the store's settings")


def _put_aside(store: Store, copies: Copies[Any], then: str) -> Iterator[Repaired]:
    files, root = store.context.files, store.path
    try:
        copies.read()
    except (CorruptCheckpointError, StorageError) as error:
        asides = [put_aside(files, root, path) for path in copies.paths if files.exists(path)]
        done = f"moved to {' and '.join(asides)}: {then}"
        yield Repaired(copies.paths[0], None, None, reason(error), done)


def _state_settings(store: Store, info: TopicInfo) -> Repaired:
    """Write topic settings with which no record is deleted, because the right settings are lost."""
    files, root = store.context.files, store.path
    paths = TopicFiles(files, root).settings(info.name).paths
    asides = [put_aside(files, root, path) for path in paths if files.exists(path)]
    stated = store.writer().topic_admin.alter(info.name, {})
    listed = ", ".join(f"{name}={value}" for name, value in stated.config.items())
    done = f"moved to {' and '.join(asides)}; the settings are {listed} until they are altered"
    assert info.lost is not None
    return Repaired(paths[0], None, None, reason(info.lost), done)


def _identify(store: Store, info: TopicInfo) -> Iterator[Repaired]:
    """Move each wrong or unreadable `partition.metadata` of a broker's topic to the quarantine. If the
    topic's id is known, write the file anew. Yield each repair.
    """
    context, topic_files = store.context, TopicFiles(store.context.files, store.path)
    for number in info.partition_ids:
        path = os.path.join(topic_files.partition_path(info.name, number), names.PARTITION_METADATA)
        try:
            wrong = topic_files.read_id(info.name, number) not in ("", info.topic_id) and "another topic's id"
        except (CorruptCheckpointError, StorageError) as error:
            wrong = reason(error)
        if wrong and context.files.exists(path):
            aside = f"moved to {put_aside(context.files, context.root, path)}"
            if info.topic_id:
                context.files.write_atomic(path, names.partition_metadata(info.topic_id))
                aside += ", and made anew from the topic's other partitions"
            yield Repaired(path, None, None, wrong, aside)
