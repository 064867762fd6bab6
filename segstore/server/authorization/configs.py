"""Authorization of settings. Rights on a topic or a group are needed for its settings, and rights on the
cluster for the settings of the broker.
"""

from __future__ import annotations

from typing import Any

from segstore.server.apis import Api
from segstore.server.authorized import AclOperation
from segstore.server.request import Request
from segstore.server.security.allow_list import CLUSTER_NAME, ResourceType

from .judge import DENIED, Caller, Judge, Verdict, both, part

_O = AclOperation
_KINDS = {2: ResourceType.TOPIC, 4: ResourceType.CLUSTER, 8: ResourceType.CLUSTER, 32: ResourceType.GROUP}
"""Code of a resource type in org.apache.kafka.common.config.ConfigResource (topic, broker, broker's loggers,
group) -> type of the resource on which the rights are checked.
"""


def _judge(operation: AclOperation, answer_field: str) -> Judge:
    def of(resource: ResourceType) -> Judge:
        def judge(caller: Caller, request: Request) -> Verdict:
            def denied(each: Any) -> bool:
                # If the type is unknown, the rights on the cluster are checked, and the handler refuses the
                # type later.
                if _KINDS.get(each.resource_type, ResourceType.CLUSTER) is not resource:
                    return False
                name = CLUSTER_NAME if resource is ResourceType.CLUSTER else each.resource_name
                return not caller.may(operation, resource, name)

            return part(request, "resources", answer_field, denied, DENIED[resource])

        return judge

    return both(*(of(each) for each in (ResourceType.TOPIC, ResourceType.CLUSTER, ResourceType.GROUP)))


JUDGES: dict[Api, Judge] = {
    Api.DESCRIBE_CONFIGS: _judge(_O.DESCRIBE_CONFIGS, "results"),
    Api.ALTER_CONFIGS: _judge(_O.ALTER_CONFIGS, "responses"),
    Api.INCREMENTAL_ALTER_CONFIGS: _judge(_O.ALTER_CONFIGS, "responses"),
}
