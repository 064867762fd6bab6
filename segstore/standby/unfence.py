"""`unfence`: makes a demoted primary lead again, if the operator knows that no other node leads.

On disk new leader epochs are written first; then `.segstore/standby` is reset, and `.segstore/fence` is
removed last. So after a crash the store is still fenced, or `unfence` is complete. Threads: one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from segstore.config import StoreConfig, arguments
from segstore.coordinator.open import open as open_store
from segstore.errors import InvalidArgumentError
from segstore.files import Files
from segstore.integers import INT32_MAX
from segstore.mutex import check_apart
from segstore.standby.promotion import largest_epoch, lead
from segstore.storage.context import Clock, os_errors, wall_clock
from segstore.storage.meta.fence import FENCE, Fence
from segstore.storage.meta.standby_registration import NOBODY, REGISTRATION, StandbyRegistration
from segstore.storage.store.store import Store, open_context
from segstore.storage.store.writer import StoreWriter, check_role


def fence_of(files: Files, root: str) -> Fence:
    """Return the fence of a primary's directory. Raises InvalidArgumentError without a fence, or if the
    directory has become a standby or mirror; CorruptCheckpointError, OSError.
    """
    check_role(files, root, None)
    fence = FENCE.read(files, root) if files.exists(root) else None
    if fence is None:
        raise InvalidArgumentError(f"{root} was not demoted: there is no fence to lift")
    return fence


def unfence(
    directory: str | os.PathLike[str],
    *,
    store_config: Mapping[str, Any] | None = None,
    clock: Clock = wall_clock,
    files: Files | None = None,
) -> Store:
    """Lift the fence of a demoted store that no process has open; return the store, open for writing.

    Call this only if no other node leads. Otherwise both nodes take appends, and later the records of one
    node are truncated when it follows the other. The store leads under a new leader epoch, above the epoch of
    the fence, and no longer has a standby.

    Raises InvalidArgumentError for a store without a fence, and for a standby; StoreLockedError,
    CorruptCheckpointError, StorageError.
    """
    check_apart("unfence()")
    root, files = arguments.path("directory", directory), files or Files()
    settings = StoreConfig.parse({} if store_config is None else store_config)
    with os_errors():
        fence = fence_of(files, root)
        context = open_context(root, settings, clock, files, None)
        writer = StoreWriter(context, settings, replicated=True)
        try:
            known = largest_epoch(writer, -1)
            epoch = max(known, fence.leader_epoch) + 1
            if epoch > INT32_MAX:  # the fence has the largest possible epoch
                epoch = min(known + 1, INT32_MAX)
            for name, info in writer.topics.items():
                lead(writer, name, info.partition_ids, epoch)
            writer.partitions.flush()
            held = REGISTRATION.read(files, root) or NOBODY
            if held.is_there:
                REGISTRATION.write(files, root, StandbyRegistration(broker_epoch=held.broker_epoch))
            FENCE.remove(files, root)
        finally:
            writer.close()
    return open_store(root, config=store_config, clock=clock, files=files)
