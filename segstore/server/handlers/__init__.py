"""What answers each API, after its request was judged. An API that has a handler here is advertised, no other
one.
"""

from __future__ import annotations

from segstore.server.apis import Api
from segstore.server.judging.judged import judged
from segstore.server.request import Handler

from . import (
    acls,
    cluster,
    configs,
    consumer_groups,
    coordinators,
    fetch,
    group_admin,
    group_offsets,
    init_producer_id,
    list_offsets,
    log_dirs,
    membership,
    metadata,
    offset_for_leader_epoch,
    partitions,
    produce,
    quorum,
    quotas,
    sasl,
    scram,
    topics,
    transaction_admin,
    transactions,
    versions,
)

_MODULES = (
    acls,
    cluster,
    configs,
    consumer_groups,
    coordinators,
    fetch,
    group_admin,
    group_offsets,
    init_producer_id,
    list_offsets,
    log_dirs,
    membership,
    metadata,
    offset_for_leader_epoch,
    partitions,
    produce,
    quorum,
    quotas,
    sasl,
    scram,
    topics,
    transaction_admin,
    transactions,
    versions,
)
HANDLERS: dict[Api, Handler] = judged(
    {api: handler for module in _MODULES for api, handler in module.HANDLERS.items()}
)
