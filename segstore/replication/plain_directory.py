"""Turns a directory of a replicated store into a plain store (a store without replicas). Before that,
`unreplicate` has written the id of this directory into the metadata log.

On disk the leader epochs of the partitions, and the files with quotas, credentials, group settings and the
first free producer id, are written. The metadata log and `meta.properties` are removed. Threads: one. After a
crash these steps are repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from segstore import names
from segstore.config import StoreConfig
from segstore.errors import StaleDirectoryError
from segstore.files import Files
from segstore.replication.kept_records import write_files
from segstore.replication.metadata.image import MetadataImage
from segstore.replication.metadata.properties import read_properties
from segstore.storage.context import Clock
from segstore.storage.meta.sealed_file import CLUSTER_ID
from segstore.storage.meta.topic_info import CLUSTER_METADATA
from segstore.storage.store.store import open_context
from segstore.storage.store.writer import StoreWriter

BECAME_PLAIN = "segstore.plain.directory"
"""The name of a setting of the cluster. Its value is the id of the directory that became a plain store."""


class BecamePlain(Exception):
    """Raised if a store is opened and its metadata says that the directory `broker` became a plain store."""

    def __init__(self, broker: int, directory_id: str, image: MetadataImage) -> None:
        super().__init__(broker)
        self.broker, self.directory_id, self.image = broker, directory_id, image

    def finish(self, paths: Sequence[str], settings: StoreConfig, files: Files, clock: Clock) -> NoReturn:
        """If the directory is still at its path, finish its conversion, which was interrupted. After that,
        raise StaleDirectoryError. If the directory is not at its path, only raise the error.
        """
        path = paths[self.broker]
        held = read_properties(files, path) if files.exists(path) else None
        if held is not None and held.directory_id == self.directory_id:
            become_plain(path, self.image, settings, files, clock)
        raise StaleDirectoryError(
            f"directory {self.broker} of this store, {path}, became a store without replicas: "
            "`segstore.open` opens it, and the other directories are no store any more"
        )


def check_replicated(image: MetadataImage) -> None:
    """Raise BecamePlain if the metadata says that a directory became a plain store."""
    directory_id = image.cluster_config.get(BECAME_PLAIN)
    if directory_id is None:
        return
    broker = next(id_ for id_, each in image.directory_ids.items() if each == directory_id)
    raise BecamePlain(broker, directory_id, image)


def become_plain(path: str, image: MetadataImage, settings: StoreConfig, files: Files, clock: Clock) -> None:
    """Turn the directory into a plain store. No process may have the directory open. Raises StoreLockedError,
    StorageError, OSError.
    """
    writer = StoreWriter(open_context(path, settings, clock, files, None), settings, replicated=True)
    try:
        if CLUSTER_METADATA in writer.topics:
            for key, state in image.partitions.items():
                replica = writer.partitions.replica(*key)
                replica.set_high_watermark(replica.log_end_offset)
                # Other replicas may have uncommitted records under the latest epoch, so a new epoch must
                # begin (R2).
                replica.lead(state.leader_epoch + 1)
            write_files(files, path, image)
            writer.topic_admin.delete(CLUSTER_METADATA)
        if (held := read_properties(files, path)) is not None:
            CLUSTER_ID.write(files, path, held.cluster_id)
        files.unlink(names.below(path, names.META_PROPERTIES))
        files.sync_dir(path)
    finally:
        writer.close()
