"""Returns the cluster id of a store, for Kafka's clients. On disk: `.segstore/cluster-id`.

Threads: any.
"""

from __future__ import annotations

import itertools
import uuid
from contextlib import suppress

from segstore import names
from segstore.errors import CorruptCheckpointError
from segstore.files.reserve import NO_ROOM
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.replication.metadata.properties import read_properties
from segstore.server.replicated import replicated
from segstore.storage.context import StoreContext, os_errors
from segstore.storage.meta.sealed_file import CLUSTER_ID
from segstore.storage.store.store import Store

log = Logger("segstore")
_making = Mutex()


def cluster_id_of(store: Store) -> str:
    """Return the cluster id of a store, in Kafka's form (Uuid). Raises StorageError, StoreClosedError.

    The cluster id stays the same if the directory is moved. A replicated store, and the directory of a Kafka
    broker, have the cluster id in meta.properties. Any other store gets a cluster id when a server first
    serves the store. If a new id can't be written, because the store is open for reading or the disk is full,
    the id is derived from the directory's absolute path.
    """
    if (of_many := replicated(store)) is not None:
        return of_many.replicated.cluster_id
    context = store.context
    context.check_open()
    with os_errors(), _making:
        with suppress(CorruptCheckpointError):
            held = read_properties(context.files, context.root)
            if held is not None:
                return held.cluster_id
        return CLUSTER_ID.hint(context.files, context.root) or _made(context)


def _made(context: StoreContext) -> str:
    if context.writable:
        cluster_id = names.new_topic_id()
        try:
            CLUSTER_ID.write(context.files, context.root, cluster_id)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            log.warning("%s: there is no room for a cluster id: its path stands for one", context.root)
        else:
            return cluster_id
    root, tries = context.files.real_path(context.root), itertools.count()
    return names.new_topic_id(lambda: uuid.uuid5(uuid.NAMESPACE_URL, f"file://{root}#{next(tries)}"))
