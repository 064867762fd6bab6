"""`unfence`: makes a demoted primary lead again, if the operator knows that no other node leads.

The steps on disk are: write new leader epochs; reset `.segstore/standby`; remove `.segstore/fence`. So after
a crash the store is still fenced, or `unfence` is complete. Threads: one.
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
    """Return the fence of a primary's directory. Raises CorruptCheckpointError, OSError, and
    InvalidArgumentError if there is no fence, or the directory has become a standby or mirror.
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
    """Remove the fence of a demoted store that no process has open. Return the store, which is open for
    writing.

    Call this only if no other node leads. If another node leads, both nodes accept appends; when one of the
    two later becomes the standby of the other, the records that only the new standby has are truncated. The
    store leads with a new leader epoch, above the epoch of the fence, and no longer has a standby.

    Raises StoreLockedError, CorruptCheckpointError, StorageError, and InvalidArgumentError for a store
    without a fence, and for a standby or mirror.
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
            if epoch > INT32_MAX:
                # No epoch is above INT32_MAX. If no log has that epoch, `epoch` is above the logs' epochs.
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
