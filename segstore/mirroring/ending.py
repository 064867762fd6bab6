"""`end_mirror`: turns a mirror into an ordinary store (KIP-1279: the end of a cluster link).

On disk: truncates open transactions, writes new leader epochs, then removes `.segstore/role`. Threads: one.
After a crash the next call repeats the steps.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from segstore.choices import CUT, KEEP
from segstore.config import StoreConfig, arguments
from segstore.errors import InvalidArgumentError
from segstore.files import Files
from segstore.logger import Logger
from segstore.mutex import check_apart
from segstore.storage.context import Clock, os_errors, wall_clock
from segstore.storage.log.replica import Replica
from segstore.storage.meta.role import MIRROR, ROLE, Role
from segstore.storage.meta.topic_info import TopicInfo
from segstore.storage.store.store import open_context
from segstore.storage.store.writer import StoreWriter

log = Logger("segstore")


class EndedPartition(NamedTuple):
    """A partition after `end_mirror`. `leader_epoch` is the partition's new leader epoch, which begins at
    `end_offset`. `cut` is the number of offsets that were truncated because of open transactions. `kept` has
    the paths of the files with copies of the truncated batches.
    """

    topic: str
    partition: int
    leader_epoch: int
    end_offset: int
    cut: int
    kept: tuple[str, ...]


def end_mirror(
    directory: str | os.PathLike[str],
    open_transactions: str = CUT,
    *,
    config: Mapping[str, Any] | None = None,
    clock: Clock = wall_clock,
    files: Files | None = None,
) -> list[EndedPartition]:
    """Turn a mirror that no process has open into an ordinary store. Each partition gets a leader epoch above
    all known epochs of the source: by their epoch, new records can be distinguished from the source's
    records.

    If `open_transactions` is "cut", each log is truncated to its last stable offset, because nobody would
    commit or abort the open transactions here. Copies of the truncated batches are stored in the quarantine.
    If it is "keep", open transactions stay in the logs, and read_committed consumers can't read beyond them.

    Raises StoreLockedError, StorageError, and InvalidArgumentError for a directory that is no mirror.
    """
    check_apart("end_mirror()")
    cuts = arguments.one_of("open_transactions", open_transactions, (CUT, KEEP)) == CUT
    settings = StoreConfig.parse({} if config is None else config)
    root, files = arguments.path("directory", directory), files or Files()
    with os_errors():
        role = ROLE.read(files, root) if files.exists(root) else None
        if role is None or role.kind != MIRROR:
            raise InvalidArgumentError(f"{root} is no mirror")
        context = open_context(root, settings, clock, files, None)
        writer = StoreWriter(context, settings, replicated=True, role=MIRROR)
        try:
            with context.reserve:
                ROLE.write(files, root, replace(role, ending=True))
                ended: list[EndedPartition] = []
                for info in writer.topics.values():
                    of_topic = _end_topic(writer, info, role, cuts)
                    ended += [] if info.internal else of_topic
                writer.partitions.flush()
                ROLE.remove(files, root)
        finally:
            writer.close()
    return ended


def _end_topic(writer: StoreWriter, info: TopicInfo, role: Role, cuts: bool) -> list[EndedPartition]:
    ended = [_end(writer, info, number, role, cuts) for number in info.partition_ids]
    if not info.internal:
        writer.topic_admin.remember_gaps(info.name, {each.partition: each.end_offset for each in ended})
    return ended


def _end(writer: StoreWriter, info: TopicInfo, number: int, role: Role, cuts: bool) -> EndedPartition:
    replica: Replica = writer.partitions.replica(info.name, number)
    before, stable = replica.log_end_offset, replica.written.stable_offset
    kept: tuple[str, ...] = ()
    if cuts and stable < before:
        done = replica.truncate_to(stable)
        kept = done.kept
        log.warning("%s-%d: open transactions are cut, from offset %d on", info.name, number, done.end_offset)
    end = replica.log_end_offset
    replica.set_high_watermark(end)
    epoch = max(role.leader_epoch, replica.epoch_cache.current) + 1
    replica.lead(epoch)
    return EndedPartition(info.name, number, epoch, end, before - end, kept)
