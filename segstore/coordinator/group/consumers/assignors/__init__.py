"""Server-side assignors (KIP-848), which compute the target assignments of a consumer group. Threads: any;
assignors have no state.
"""

from __future__ import annotations

from segstore.coordinator.group.consumers.assignors.base import (
    MemberSpec,
    Partitions,
    ServerAssignor,
    Targets,
)
from segstore.coordinator.group.consumers.assignors.range import ConsumerGroupRangeAssignor
from segstore.coordinator.group.consumers.assignors.uniform import UniformAssignor

__all__ = [
    "DEFAULT_ASSIGNOR",
    "SERVER_ASSIGNORS",
    "ConsumerGroupRangeAssignor",
    "MemberSpec",
    "Partitions",
    "ServerAssignor",
    "Targets",
    "UniformAssignor",
]

SERVER_ASSIGNORS: dict[str, ServerAssignor] = {
    each.name: each for each in (UniformAssignor(), ConsumerGroupRangeAssignor())
}
DEFAULT_ASSIGNOR = UniformAssignor.name
