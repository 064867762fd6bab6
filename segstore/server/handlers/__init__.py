"""The handlers of all APIs. A handler is called when its request was authorized. ApiVersions lists exactly
the APIs that have a handler. A handler module is imported at the first request for one of its APIs: the
import of all modules (groups, transactions, administration) would take a third of the time that the server's
start takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from segstore.server.apis import Api
from segstore.server.authorization.judged import judged
from segstore.server.demoted import REFUSED_BY_DEMOTED
from segstore.server.error_answers import error_answer
from segstore.server.request import Handler, Request

MODULES: dict[str, tuple[Api, ...]] = {
    "acls": (Api.DESCRIBE_ACLS,),
    "cluster": (Api.DESCRIBE_CLUSTER,),
    "configs": (
        *(Api.DESCRIBE_CONFIGS, Api.LIST_CONFIG_RESOURCES),
        *(Api.ALTER_CONFIGS, Api.INCREMENTAL_ALTER_CONFIGS),
    ),
    "consumer_groups": (Api.CONSUMER_GROUP_HEARTBEAT, Api.CONSUMER_GROUP_DESCRIBE),
    "coordinators": (Api.FIND_COORDINATOR,),
    "fetch": (Api.FETCH,),
    "group_admin": (Api.LIST_GROUPS, Api.DESCRIBE_GROUPS, Api.DELETE_GROUPS),
    "group_offsets": (Api.OFFSET_COMMIT, Api.OFFSET_FETCH, Api.OFFSET_DELETE),
    "init_producer_id": (Api.INIT_PRODUCER_ID,),
    "list_offsets": (Api.LIST_OFFSETS,),
    "log_dirs": (Api.DESCRIBE_LOG_DIRS, Api.ALTER_REPLICA_LOG_DIRS),
    "membership": (Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT, Api.LEAVE_GROUP),
    "metadata": (Api.METADATA, Api.DESCRIBE_TOPIC_PARTITIONS),
    "offset_for_leader_epoch": (Api.OFFSET_FOR_LEADER_EPOCH,),
    "partitions": (
        *(Api.DELETE_RECORDS, Api.ELECT_LEADERS),
        *(Api.ALTER_PARTITION_REASSIGNMENTS, Api.LIST_PARTITION_REASSIGNMENTS),
    ),
    "produce": (Api.PRODUCE,),
    "quorum": (Api.DESCRIBE_QUORUM,),
    "quotas": (Api.DESCRIBE_CLIENT_QUOTAS, Api.ALTER_CLIENT_QUOTAS),
    "sasl": (Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE),
    "share_acknowledge": (Api.SHARE_ACKNOWLEDGE,),
    "share_fetch": (Api.SHARE_FETCH,),
    "share_groups": (Api.SHARE_GROUP_HEARTBEAT, Api.SHARE_GROUP_DESCRIBE),
    "share_offsets": (
        *(Api.DESCRIBE_SHARE_GROUP_OFFSETS, Api.ALTER_SHARE_GROUP_OFFSETS),
        Api.DELETE_SHARE_GROUP_OFFSETS,
    ),
    "share_state": (
        *(Api.INITIALIZE_SHARE_GROUP_STATE, Api.READ_SHARE_GROUP_STATE, Api.WRITE_SHARE_GROUP_STATE),
        *(Api.DELETE_SHARE_GROUP_STATE, Api.READ_SHARE_GROUP_STATE_SUMMARY),
    ),
    "scram": (Api.DESCRIBE_USER_SCRAM_CREDENTIALS, Api.ALTER_USER_SCRAM_CREDENTIALS),
    "topics": (Api.CREATE_TOPICS, Api.DELETE_TOPICS, Api.CREATE_PARTITIONS),
    "transaction_admin": (Api.DESCRIBE_TRANSACTIONS, Api.LIST_TRANSACTIONS, Api.DESCRIBE_PRODUCERS),
    "transactions": (
        *(Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN),
        *(Api.TXN_OFFSET_COMMIT, Api.END_TXN),
    ),
    "standby": (Api.BROKER_REGISTRATION, Api.BEGIN_QUORUM_EPOCH, Api.UNREGISTER_BROKER),
    "versions": (Api.API_VERSIONS,),
}
"""Handler module -> the APIs that it serves."""


@cache
def handlers_of(module: str) -> Mapping[Api, Handler]:
    """Import a handler module, and return its handlers by API."""
    found: Mapping[Api, Handler] = import_module(f"{__name__}.{module}").HANDLERS
    return found


def _handler(module: str, api: Api) -> Handler:
    refused = REFUSED_BY_DEMOTED.get(api)

    def handle(node: Any, request: Request) -> Any:
        if refused is not None and node.store.context.demoted:
            return error_answer(request, refused, node.store.context.demoted)
        return handlers_of(module)[api](node, request)

    return handle


HANDLERS: dict[Api, Handler] = judged(
    {api: _handler(module, api) for module, apis in MODULES.items() for api in apis}
)
