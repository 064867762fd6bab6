"""Judges of settings: those of a topic are the topic's, those of the broker are the cluster's."""

from __future__ import annotations

from typing import Any

from segstore.server.apis import Api
from segstore.server.authorized import AclOperation
from segstore.server.request import Request
from segstore.server.security.allow_list import CLUSTER_NAME, ResourceType

from .judge import DENIED, Caller, Judge, Verdict, both, part

_O = AclOperation
_KINDS = {2: ResourceType.TOPIC, 4: ResourceType.CLUSTER, 8: ResourceType.CLUSTER, 32: ResourceType.GROUP}
"""What the types of resources with settings belong to (org.apache.kafka.common.config.ConfigResource: topic,
broker, broker's loggers, group).
"""


def _judge(operation: AclOperation, told: str) -> Judge:
    def of(resource: ResourceType) -> Judge:
        def judge(caller: Caller, request: Request) -> Verdict:
            def denied(each: Any) -> bool:
                # A type that nobody knows is the handler's to refuse, for those who may ask the cluster.
                if _KINDS.get(each.resource_type, ResourceType.CLUSTER) is not resource:
                    return False
                name = CLUSTER_NAME if resource is ResourceType.CLUSTER else each.resource_name
                return not caller.may(operation, resource, name)

            return part(request, "resources", told, denied, DENIED[resource])

        return judge

    return both(*(of(each) for each in (ResourceType.TOPIC, ResourceType.CLUSTER, ResourceType.GROUP)))


JUDGES: dict[Api, Judge] = {
    Api.DESCRIBE_CONFIGS: _judge(_O.DESCRIBE_CONFIGS, "results"),
    Api.ALTER_CONFIGS: _judge(_O.ALTER_CONFIGS, "responses"),
    Api.INCREMENTAL_ALTER_CONFIGS: _judge(_O.ALTER_CONFIGS, "responses"),
}
