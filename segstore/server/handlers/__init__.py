"""What answers each API. An API that has a handler here is advertised, no other one."""

from __future__ import annotations

from segstore.server.apis import Api
from segstore.server.request import Handler

from . import cluster, metadata, topics, versions

_MODULES = (cluster, metadata, topics, versions)
HANDLERS: dict[Api, Handler] = {
    api: handler for module in _MODULES for api, handler in module.HANDLERS.items()
}
