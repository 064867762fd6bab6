"""What answers each API. An API that has a handler here is advertised, no other one."""

from __future__ import annotations

from segstore.server.apis import Api
from segstore.server.request import Handler

from . import acls, cluster, configs, log_dirs, metadata, partitions, quotas, topics, versions

_MODULES = (acls, cluster, configs, log_dirs, metadata, partitions, quotas, topics, versions)
HANDLERS: dict[Api, Handler] = {
    api: handler for module in _MODULES for api, handler in module.HANDLERS.items()
}
