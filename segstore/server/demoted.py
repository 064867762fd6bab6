"""The error codes with which a demoted store (a former primary) refuses requests that write, by API. A client
that gets one of these codes looks for the new primary. The store still answers requests that only read.
Threads: any; no state.
"""

from __future__ import annotations

from segstore.protocol.error_codes import Code
from segstore.server.apis import Api

_OF_TOPICS = (
    *(Api.CREATE_TOPICS, Api.DELETE_TOPICS, Api.CREATE_PARTITIONS, Api.ALTER_CONFIGS),
    *(Api.INCREMENTAL_ALTER_CONFIGS, Api.ALTER_CLIENT_QUOTAS, Api.ALTER_USER_SCRAM_CREDENTIALS),
)
_OF_GROUPS = (
    *(Api.OFFSET_COMMIT, Api.OFFSET_DELETE, Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT, Api.LEAVE_GROUP),
    *(Api.DELETE_GROUPS, Api.CONSUMER_GROUP_HEARTBEAT, Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN),
    *(Api.ADD_OFFSETS_TO_TXN, Api.TXN_OFFSET_COMMIT, Api.END_TXN, Api.SHARE_GROUP_HEARTBEAT),
    *(Api.ALTER_SHARE_GROUP_OFFSETS, Api.DELETE_SHARE_GROUP_OFFSETS, Api.INITIALIZE_SHARE_GROUP_STATE),
    *(Api.READ_SHARE_GROUP_STATE, Api.WRITE_SHARE_GROUP_STATE, Api.DELETE_SHARE_GROUP_STATE),
)
REFUSED_BY_DEMOTED: dict[Api, Code] = {
    **dict.fromkeys(_OF_TOPICS, Code.NOT_CONTROLLER),
    **dict.fromkeys(_OF_GROUPS, Code.NOT_COORDINATOR),
    **dict.fromkeys(
        (Api.DELETE_RECORDS, Api.SHARE_FETCH, Api.SHARE_ACKNOWLEDGE), Code.NOT_LEADER_OR_FOLLOWER
    ),
}
"""API -> the code with which a demoted store refuses the API's requests. Produce is not listed, because the
logs themselves refuse its appends, and each partition gets an error. The requests of all other APIs are
handled as in a store that is not demoted.
"""
