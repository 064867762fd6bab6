"""Authorization of APIs of the whole cluster. ApiVersions and the APIs of SASL are allowed to everybody,
because clients call them before they are authenticated.
"""

from __future__ import annotations

from typing import Any

from segstore.protocol.codec import structs
from segstore.server.apis import Api
from segstore.server.authorized import NOT_ASKED, AclOperation
from segstore.server.request import Request
from segstore.server.security.allow_list import ResourceType

from .judge import DENIED, Caller, Judge, Verdict, free, whole

_O, _CLUSTER = AclOperation, ResourceType.CLUSTER
_MESSAGE = "Cluster authorization failed."


def cluster_operations(caller: Caller) -> int:
    """Return the caller's operations on the cluster as bits, 0 if DESCRIBE is not allowed
    (KafkaApis.handleDescribeCluster).
    """
    return caller.operations(_CLUSTER) if caller.may(_O.DESCRIBE, _CLUSTER) else 0


def _describe_cluster(caller: Caller, _request: Request) -> Verdict:
    """Allow DescribeCluster to everybody; the answer has the caller's authorized operations."""

    def mend(answer: Any) -> Any:
        if answer.cluster_authorized_operations != NOT_ASKED:
            answer.cluster_authorized_operations = cluster_operations(caller)
        return answer

    return mend


def _alter_user_scram_credentials(caller: Caller, request: Request) -> Verdict:
    if caller.may(_O.ALTER, _CLUSTER):
        return None
    body, response = request.body, structs("AlterUserScramCredentialsResponse")
    kind, code = response.AlterUserScramCredentialsResult, DENIED[_CLUSTER]
    users = dict.fromkeys(each.name for each in [*body.deletions, *body.upsertions])
    return response(results=[kind(user=user, error_code=code, error_message=_MESSAGE) for user in users])


JUDGES: dict[Api, Judge] = {
    Api.API_VERSIONS: free,
    Api.SASL_HANDSHAKE: free,
    Api.SASL_AUTHENTICATE: free,
    Api.DESCRIBE_CLUSTER: _describe_cluster,
    Api.BROKER_REGISTRATION: whole(_O.CLUSTER_ACTION, _CLUSTER),
    Api.BEGIN_QUORUM_EPOCH: whole(_O.CLUSTER_ACTION, _CLUSTER),
    Api.UNREGISTER_BROKER: whole(_O.ALTER, _CLUSTER),
    Api.DESCRIBE_ACLS: whole(_O.DESCRIBE, _CLUSTER),
    Api.DESCRIBE_LOG_DIRS: whole(_O.DESCRIBE, _CLUSTER),
    Api.DESCRIBE_QUORUM: whole(_O.DESCRIBE, _CLUSTER),
    Api.LIST_PARTITION_REASSIGNMENTS: whole(_O.DESCRIBE, _CLUSTER),
    Api.ALTER_PARTITION_REASSIGNMENTS: whole(_O.ALTER, _CLUSTER),
    Api.ALTER_REPLICA_LOG_DIRS: whole(_O.ALTER, _CLUSTER),
    Api.LIST_CONFIG_RESOURCES: whole(_O.DESCRIBE_CONFIGS, _CLUSTER),
    Api.ELECT_LEADERS: whole(_O.ALTER, _CLUSTER),
    Api.DESCRIBE_CLIENT_QUOTAS: whole(_O.DESCRIBE_CONFIGS, _CLUSTER),
    Api.ALTER_CLIENT_QUOTAS: whole(_O.ALTER_CONFIGS, _CLUSTER),
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: whole(_O.DESCRIBE, _CLUSTER),
    Api.ALTER_USER_SCRAM_CREDENTIALS: _alter_user_scram_credentials,
}
