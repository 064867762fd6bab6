"""Replaces a failed directory by a new directory, or by the failed directory if it works again (Kafka: a
restart of a broker, with its log directory or with an empty one; rules R26, R27, R32).

On disk a new directory gets `meta.properties` and a copy of the metadata log. Its replicas then fetch from
their leaders. Threads: any, but one replacement at a time.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING

from segstore import names
from segstore.errors import (
    InvalidArgumentError,
    StaleDirectoryError,
    StorageError,
    StoreLockedError,
    copy_of,
)
from segstore.replication.clock import now_ms
from segstore.replication.core.controller import Controller
from segstore.replication.data_directory import DataDirectory, claim, open_directory
from segstore.replication.metadata.metadata_log import Voter
from segstore.replication.metadata.properties import MetaProperties
from segstore.replication.metadata.voters import VoterDirectory, check_paths, look
from segstore.replication.quorum_controller import Decision
from segstore.threads import apart

if TYPE_CHECKING:
    from segstore.replication.replicated_writer import ReplicatedWriter
    from segstore.storage.store.writer import StoreWriter

ENDING = 10.0
"""The longest time in seconds to wait for the end of a failed directory's threads."""


def replace_directory(side: ReplicatedWriter, store: object, broker: int, path: str) -> None:
    """Replace the directory with the id `broker` by the directory at `path`. Raises OSError, and the errors
    of `ReplicatedStore.replace_directory`.
    """

    def run() -> None:
        with side.replacing:
            side.context.check_writable()
            _replace(side, store, broker, path)

    # Ctrl-C interrupts only the main thread, so the replacement runs in another thread.
    apart(run, "segstore-replace")


def _replace(side: ReplicatedWriter, store: object, broker: int, path: str) -> None:
    place, context = _voter_directory(side, broker, path), side.context
    _let_go(side, broker)
    writer = open_directory(place, side.config, context.files, context.clock, None)
    try:
        claim(place, context.files)
        side.metadata_log.add(Voter(broker, writer))
        side.paths[broker] = path
        if broker < side.data_directories:
            _register(side, place, writer)
        else:
            side.witness = writer
    except BaseException:
        writer.let_go()
        raise
    writer.owner = weakref.ref(store)
    if broker < side.data_directories:
        began = side.manager.directories[broker]
        side.directory_began(began)
        if side.address:
            began.announce(side.address)


def _let_go(side: ReplicatedWriter, broker: int) -> None:
    """Close the failed directory, or the failed witness, and release its lock. Raises StorageError if the
    disk hangs.
    """
    failed = side.manager.directories.get(broker)
    if failed is not None:
        if not failed.stop(ENDING):
            raise StorageError(None, "the disk of the failed directory still hangs", failed.path)
        failed.writer.let_go()
    elif broker == side.data_directories and side.witness is not None:
        side.metadata_log.lose(broker)
        side.witness.let_go()
        side.witness = None


def _works(side: ReplicatedWriter, broker: int) -> bool:
    """Return whether the directory or witness with the id `broker` works."""
    if broker < side.data_directories:
        directory = side.manager.directories.get(broker)
        return directory is not None and directory.error is None
    # Writes to the witness are so rare that no write may have failed since the witness was lost. Therefore
    # its files are read here.
    there = look(side.context.files, side.paths[broker])
    return broker in side.metadata_log.voters and there.properties is not None


def _voter_directory(side: ReplicatedWriter, broker: int, path: str) -> VoterDirectory:
    """Return the `VoterDirectory` of the directory at `path`. Raises StoreLockedError. Raises
    InvalidArgumentError if the directory `broker` works, or if the directory at `path` can't replace it.
    Raises StaleDirectoryError if the directory at `path` belongs to another store or has another id.
    """
    if not 0 <= broker < len(side.paths):
        raise InvalidArgumentError(f"directory {broker}: there are 0 to {len(side.paths) - 1}")
    if _works(side, broker):
        raise InvalidArgumentError(
            f"directory {broker}, {side.paths[broker]}, works: only one that has failed is replaced"
        )
    others = [other for number, other in enumerate(side.paths) if number != broker]
    check_paths(side.context.files, [*others, path], None)
    found = look(side.context.files, path)
    if found.error is not None:
        raise copy_of(found.error)
    if found.holder is not None and path != _open_path(side, broker):
        raise StoreLockedError(path, found.holder)
    if found.properties is None:
        if found.topics or found.has_metadata:
            raise InvalidArgumentError(f"{path} holds topics: a new directory has to be empty")
        return VoterDirectory(
            broker, path, MetaProperties(side.cluster_id, broker, names.new_topic_id()), True
        )
    if (found.properties.cluster_id, found.properties.node_id) != (side.cluster_id, broker):
        raise StaleDirectoryError(
            f"{path} is directory {found.properties.node_id} of the store {found.properties.cluster_id}, not "
            f"directory {broker} of {side.cluster_id}"
        )
    return VoterDirectory(broker, path, found.properties, False)


def _open_path(side: ReplicatedWriter, broker: int) -> str | None:
    """Return the path of the directory with the id `broker`, None if this process has no such directory
    open.
    """
    directory = side.manager.directories.get(broker)
    if directory is not None:
        return directory.path
    held = side.witness if broker == side.data_directories else None
    return None if held is None else held.context.root


def _register(side: ReplicatedWriter, place: VoterDirectory, writer: StoreWriter) -> None:
    """Register the directory with the controller. Then publish the metadata to the directory's replicas."""
    manager, controller, broker = side.manager, side.controller, place.id
    settings = side.topic_admin.settings
    made = DataDirectory(broker, writer, manager.brokers, manager, settings)

    def register(core: Controller, now: int) -> Decision:
        controller.image.directory_ids[broker] = place.properties.directory_id
        return Decision(effects=core.restart(broker, names.new_topic_id(), writer.clean_epoch, now_ms()))

    def begin(core: Controller, now: int) -> Decision:
        manager.directories[broker] = made
        keys = [key for key, state in manager.partitions.items() if broker in state.replicas]
        made.post(partial(made.write_topic_files, side.topics, None))
        made.post(partial(made.apply, manager.changes_for(broker, keys)))
        manager.remove_unknown_in(made, side.topics)
        made.start()
        return Decision()

    controller.call(register)
    controller.call(begin)
