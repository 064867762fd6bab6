"""Opens a shared store: this process becomes the host, or a guest beside the host. Threads: any, because the
functions have no state.
"""

from __future__ import annotations

import sys
import time
from types import FrameType

from segstore.config import StoreConfig
from segstore.errors import HostUnavailableError, StoreLockedError
from segstore.storage.context import StoreContext
from segstore.storage.shared.members import Members
from segstore.storage.shared.shared_file import SharedFile
from segstore.storage.store.guest import StoreGuest
from segstore.storage.store.host_writer import HostWriter
from segstore.storage.store.writer import let_go_of_lost

_PAUSE = 0.01  # seconds between two tries
_LEAST = 5.0
"""The shortest wait, in seconds, of an open that finds the store locked and shared: another process may be
opening or closing the store.
"""


def open_shared(
    context: StoreContext, config: StoreConfig, shared: bool | str, seconds: float
) -> HostWriter | StoreGuest:
    """Open a shared store as a guest if a host lives. If no host lives and `shared` is True, open the store
    as its host. If neither is possible, try again for `seconds`. Raises HostUnavailableError,
    StoreLockedError, NotShareableError.
    """
    begun = time.monotonic()
    # `_let_go_of_lost` must not be called in a signal handler that has interrupted an open.
    if not _is_within_open(sys._getframe(1)):
        _let_go_of_lost(context)
    while True:
        guest = _join(context, config, may_host=shared is True)
        if guest is not None:
            return guest
        waited = time.monotonic() - begun
        if shared is True:
            try:
                return HostWriter(context, config)
            except StoreLockedError as error:
                if waited >= (max(seconds, _LEAST) if error.shared else seconds):
                    raise
        elif waited >= seconds:
            raise HostUnavailableError(context.root, 0, False)
        time.sleep(_PAUSE)


def _join(context: StoreContext, config: StoreConfig, *, may_host: bool) -> StoreGuest | None:
    """Open the store as a guest. Return None if no host lives, if the host does not answer, or if the store
    is not shared.
    """
    file = SharedFile.join(context.files, context.root)
    if file is None:
        return None
    try:
        members = Members(context.files, context.root, file, may_host=may_host)
    except LookupError:
        return None
    if members.host() is None:
        members.close()
        return None
    guest = StoreGuest(context, config, file, members, may_host=may_host)
    try:
        guest.begin()
    except BaseException as error:
        # The guest's thread may run already. It is stopped before the slot is released: it writes into the
        # slot, which the next open of this process may get.
        guest.undo()
        members.close()
        if isinstance(error, HostUnavailableError):
            return None
        raise
    return guest


def _let_go_of_lost(context: StoreContext) -> None:
    """Close a host of this process to which nothing refers, because Ctrl-C interrupted an open; else this
    process would become a guest of that host.
    """
    file = SharedFile.view(context.files, context.root)
    slot = -1 if file is None else int(file.header.host_slot)
    if file is not None and slot >= 0 and file.member(slot).pid == context.pid:
        let_go_of_lost(context.files, context.root)


def _is_within_open(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not open_shared.__code__:
        frame = frame.f_back
    return frame is not None
