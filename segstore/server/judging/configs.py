"""Judges of settings: those of a topic are the topic's, those of the broker are the cluster's."""

from __future__ import annotations

from typing import Any

from segstore.server.apis import Api
from segstore.server.authorized import Operation
from segstore.server.request import Request
from segstore.server.security.allow_list import CLUSTER_NAME, Resource

from .judge import DENIED, Caller, Judge, Verdict, both, part

_O = Operation
_KINDS = {2: Resource.TOPIC, 4: Resource.CLUSTER, 8: Resource.CLUSTER, 32: Resource.GROUP}
"""What the types of resources with settings belong to (org.apache.kafka.common.config.ConfigResource: topic,
broker, broker's loggers, group).
"""


def _judge(operation: Operation, told: str) -> Judge:
    def of(resource: Resource) -> Judge:
        def judge(caller: Caller, request: Request) -> Verdict:
            def denied(each: Any) -> bool:
                # A type that nobody knows is the handler's to refuse, for those who may ask the cluster.
                if _KINDS.get(each.resource_type, Resource.CLUSTER) is not resource:
                    return False
                name = CLUSTER_NAME if resource is Resource.CLUSTER else each.resource_name
                return not caller.may(operation, resource, name)

            return part(request, "resources", told, denied, DENIED[resource])

        return judge

    return both(*(of(each) for each in (Resource.TOPIC, Resource.CLUSTER, Resource.GROUP)))


JUDGES: dict[Api, Judge] = {
    Api.DESCRIBE_CONFIGS: _judge(_O.DESCRIBE_CONFIGS, "results"),
    Api.ALTER_CONFIGS: _judge(_O.ALTER_CONFIGS, "responses"),
    Api.INCREMENTAL_ALTER_CONFIGS: _judge(_O.ALTER_CONFIGS, "responses"),
}
