"""Checks whether a store can be shared, and whether the platform allows that. Files are only read.

Threads: any, because the function has no state.
"""

from __future__ import annotations

import sys

from segstore.errors import InvalidArgumentError, NotShareableError
from segstore.files import Files
from segstore.storage.meta.standby_registration import REGISTRATION
from segstore.storage.store.writer import check_plain, check_role


def check_shareable(files: Files, root: str) -> None:
    """Raise NotShareableError if the platform is not Linux. Raise InvalidArgumentError if the store is a
    directory of a replicated store, a mirror, a standby, or a primary whose standby is in sync mode. Raises
    CorruptCheckpointError, OSError.
    """
    if sys.platform != "linux":
        raise NotShareableError(
            f"{root} can't be shared: several processes write one store on Linux only, not on"
            f" {sys.platform}: open it with shared=False in one process, and let that serve it"
        )
    if not files.exists(root):
        return
    check_plain(files, root)
    check_role(files, root, None)
    standby = REGISTRATION.read(files, root)
    if standby is not None and standby.is_there and standby.sync:
        raise InvalidArgumentError(
            f"{root} can't be shared: its standby is in sync mode, and appends of guests would not wait for"
            " it; `segstore demote --standby` takes the standby away, which may follow in async mode then"
        )
