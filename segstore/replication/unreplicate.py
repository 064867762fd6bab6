"""Turns one directory of a replicated store into a plain store (a store without replicas). No record is
copied. The reverse of this conversion is `adoption`. Kafka has no counterpart.

On disk a ConfigRecord is appended to the metadata log, and files of the directory are changed. Threads: one.
The steps are:
1. Wait until the directory is in all ISRs and has all records of the leaders. Sync it.
2. Write the ConfigRecord to a majority. After this step `open_replicated` refuses the other directories:
   opened, they would be a second store with other records. If a crash interrupts step 3, the refused
   `open_replicated` finishes that step.
3. Begin new leader epochs in the directory, and delete its copy of the metadata log. If a crash interrupts
   this step, `open` finishes it, too, and opens the directory as a plain store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from segstore.config import StoreConfig, arguments
from segstore.errors import InvalidArgumentError, StaleDirectoryError
from segstore.files import Files
from segstore.mutex import check_apart
from segstore.replication import opening
from segstore.replication.core.controller import Controller
from segstore.replication.metadata.image import BROKER_RESOURCE
from segstore.replication.metadata.records import ConfigRecord
from segstore.replication.metadata.voters import check_paths, plan
from segstore.replication.plain_directory import BECAME_PLAIN, become_plain
from segstore.replication.quorum_controller import Decision
from segstore.replication.replicated_writer import ReplicatedWriter
from segstore.storage.context import Clock, os_errors, wall_clock

LOOK = 0.05
"""Interval in seconds at which a waiting thread checks whether the directory has all records. A change of the
counter `news` causes a check at once.
"""


def unreplicate(
    paths: Sequence[str | os.PathLike[str]],
    directory: int,
    *,
    witness: str | os.PathLike[str] | None = None,
    config: Mapping[str, Any] | None = None,
    clock: Clock = wall_clock,
    files: Files | None = None,
    timeout_ms: float = 30_000,
) -> str:
    """Turn one directory of a replicated store into a store without replicas, which `open` opens. Return its
    path. No record is copied. The other directories can't be opened as a store any more, and may be removed.
    `paths`, `witness` and `config` are as in `open_replicated`. No process may have the store open.

    Raises the errors of `open_replicated`. Raises InvalidArgumentError if a partition has no replica in the
    directory, or if a replica in it still lacks records after `timeout_ms`: then nothing was changed. Raises
    StaleDirectoryError if `unreplicate` was called for another directory before.
    """
    check_apart("unreplicate()")
    settings, files = StoreConfig.parse({} if config is None else config), files or Files()
    given = check_paths(files, paths, witness)
    number = arguments.whole("directory", directory, 0, len(paths) - 1)
    seconds = arguments.milliseconds("timeout_ms", timeout_ms) / 1000
    path = given[number]
    # Without this check, `open_replicated` could create a new store.
    _check_replicated(files, given, witness is not None)
    directories, last = (given, None) if witness is None else (given[:-1], given[-1])
    with opening.open_replicated(directories, witness=last, config=config, clock=clock, files=files) as store:
        side = store.replicated
        _await_all(side, number, seconds)
        _record(side, number)
    with os_errors():
        become_plain(path, side.controller.image, settings, files, clock)
    return path


def _check_replicated(files: Files, given: Sequence[str], witness: bool) -> None:
    """Raise InvalidArgumentError unless the directories are a replicated store."""
    with os_errors():
        places = plan(files, given, witness)
    if any(place.new for place in places.places):
        raise InvalidArgumentError(f"no replicated store: {', '.join(given)}")


def _await_all(side: ReplicatedWriter, directory: int, seconds: float) -> None:
    """Wait until the directory has all records, and sync it. Raises StorageError. Raises InvalidArgumentError
    if the directory lacks a replica, or still lacks records after `seconds`.
    """
    manager = side.manager
    never = [
        f"{key} has replicas in {list(state.replicas)}"
        for key, state in sorted(manager.partitions.items())
        if directory not in state.replicas
    ]
    if never or directory not in manager.directories:
        raise _refusal(side, directory, never or ["it is offline"])
    manager.news.until(lambda: next(_missing(side, directory), None) is None, seconds, LOOK)
    if missing := list(_missing(side, directory)):
        raise _refusal(side, directory, missing)
    with os_errors():
        manager.directories[directory].writer.partitions.flush()


def _missing(side: ReplicatedWriter, directory: int) -> Iterator[str]:
    """For each partition whose replica in the directory is missing or incomplete, yield a description of the
    reason.
    """
    manager = side.manager
    for key, state in sorted(manager.partitions.items()):
        leader, replica = manager.leader(key), manager.find(directory, key)
        if directory not in state.isr or replica is None:
            yield f"{key} is in sync in {list(state.isr)}"
        elif state.reassigning:
            yield f"{key} is being moved"
        elif leader is None:
            yield f"{key} has no leader"
        elif (end := leader.replica.log_end_offset) != replica.replica.log_end_offset:
            yield f"{key} ends at {end}, and there at {replica.replica.log_end_offset}"
        elif leader.replica.high_watermark != end:
            yield f"{key} ends at {end}, and is committed up to {leader.replica.high_watermark}"


def _refusal(side: ReplicatedWriter, directory: int, missing: Sequence[str]) -> InvalidArgumentError:
    more = f" (and {len(missing) - 10} more)" if len(missing) > 10 else ""
    return InvalidArgumentError(
        f"directory {directory}, {side.paths[directory]}, does not hold all of the store, so it can't be one "
        f"by itself: {'; '.join(missing[:10])}{more}"
    )


def _record(side: ReplicatedWriter, directory: int) -> None:
    """Write a ConfigRecord to a majority of voters. Its value is the id of the directory that becomes a plain
    store. Raises QuorumLostError.
    """
    image = side.controller.image

    def decide(core: Controller, now: int) -> Decision:
        if BECAME_PLAIN in image.cluster_config:
            raise StaleDirectoryError("another directory became a store without replicas meanwhile")
        held = ConfigRecord(BROKER_RESOURCE, "", BECAME_PLAIN, image.directory_ids[directory])
        return Decision([held])

    side.controller.call(decide)
