"""Makes one directory of a replicated store a plain store (a store without replicas), without copying: the
reverse of `adoption`. Kafka has no such class.

On disk are a ConfigRecord in the metadata log, and the directory's own files. Threads: one. The steps:
1. Wait until the directory is in all ISRs and has all records of the leaders, and sync it.
2. Write the ConfigRecord to a majority. From then on `open_replicated` refuses the other directories, which
   would otherwise become a second, different store. After a crash `open_replicated` also finishes step 3.
3. Give the directory new leader epochs, and delete its copy of the metadata log. After a crash in this step
   `open` opens the directory as a plain store, and finishes the step.
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
"""The longest time in seconds between two checks whether replicas have caught up; a change of
the counter `news` causes a check at once."""


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
    """Make one directory of a replicated store a store without replicas, for `open`, and return its path.
    Nothing is copied. The other directories can't be opened as a store any more, and may be removed. `paths`,
    `witness` and `config` are as in `open_replicated`; no process may have the store open.

    Raises InvalidArgumentError, without a change, if a partition has no replica in the directory, or its
    replica lacks records after `timeout_ms`; StaleDirectoryError if `unreplicate` was called for another
    directory before; the errors of `open_replicated`.
    """
    check_apart("unreplicate()")
    settings, files = StoreConfig.parse({} if config is None else config), files or Files()
    given = check_paths(files, paths, witness)
    number = arguments.whole("directory", directory, 0, len(paths) - 1)
    seconds = arguments.milliseconds("timeout_ms", timeout_ms) / 1000
    path = given[number]
    _check_replicated(files, given, witness is not None)  # else `open_replicated` could create a store
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
    """Wait until the directory has all records, and sync it. Raises InvalidArgumentError if replicas are
    missing, or records are missing after `seconds`; StorageError.
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
    """Yield a description of each partition that is incomplete in the directory."""
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
    """Write the ConfigRecord with the id of the directory that becomes a plain store to a majority. Raises
    QuorumLostError.
    """
    image = side.controller.image

    def decide(core: Controller, now: int) -> Decision:
        if BECAME_PLAIN in image.cluster_config:
            raise StaleDirectoryError("another directory became a store without replicas meanwhile")
        held = ConfigRecord(BROKER_RESOURCE, "", BECAME_PLAIN, image.directory_ids[directory])
        return Decision([held])

    side.controller.call(decide)
