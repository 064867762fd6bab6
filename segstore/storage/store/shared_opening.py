"""Opens a shared store: as its host, or as a guest beside it. Threads: any; functions without state."""

from __future__ import annotations

import time

from segstore.config import StoreConfig
from segstore.errors import HostUnavailableError, StoreLockedError
from segstore.storage.context import Context
from segstore.storage.shared.members import Members
from segstore.storage.shared.shared_file import SharedFile
from segstore.storage.store.guest import StoreGuest
from segstore.storage.store.host_writer import HostWriter

_PAUSE = 0.01  # seconds
_LEAST = 5.0
"""Seconds for which an open waits at least, if others open or close the store just now."""


def open_shared(
    context: Context, config: StoreConfig, shared: bool | str, seconds: float
) -> HostWriter | StoreGuest:
    """Return the side of a member: of the host with `shared` True, if there is none; else of a guest. Raises
    HostUnavailableError, StoreLockedError, NotShareableError.
    """
    begun = time.monotonic()
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


def _join(context: Context, config: StoreConfig, *, may_host: bool) -> StoreGuest | None:
    """Return the side of a guest; None if no host lives."""
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
    except HostUnavailableError:
        members.close()
        return None
    except BaseException:
        members.close()
        raise
    return guest
