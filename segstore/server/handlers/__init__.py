"""What answers each API. An API that has a handler here is advertised, no other one."""

from __future__ import annotations

from segstore.server.apis import Api
from segstore.server.request import Handler

from . import (
    coordinators,
    fetch,
    group_admin,
    group_offsets,
    list_offsets,
    membership,
    offset_for_leader_epoch,
    transactions,
    versions,
)

_MODULES = (
    versions,
    fetch,
    list_offsets,
    offset_for_leader_epoch,
    coordinators,
    membership,
    group_offsets,
    group_admin,
    transactions,
)
HANDLERS: dict[Api, Handler] = {
    api: handler for module in _MODULES for api, handler in module.HANDLERS.items()
}
