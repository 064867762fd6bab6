"""Client-side assignors, which compute the partitions of each member of a group. Threads: any; assignors have
no state.
"""

from __future__ import annotations

from typing import Any

from segstore.coordinator.group.assignors.base import (
    Assignment,
    Assignor,
    Members,
    MemberSubscription,
    Partitions,
    RangeAssignor,
    RoundRobinAssignor,
)
from segstore.coordinator.group.assignors.kafka_python import METHODS, Foreign
from segstore.coordinator.group.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from segstore.errors import InvalidArgumentError

__all__ = [
    "ASSIGNORS",
    "Assignment",
    "Assignor",
    "CooperativeStickyAssignor",
    "MemberSubscription",
    "Members",
    "Partitions",
    "RangeAssignor",
    "RoundRobinAssignor",
    "StickyAssignor",
    "by_name",
]

ASSIGNORS: dict[str, type[Assignor]] = {
    kind.name: kind for kind in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}


def by_name(assignor: str | Any) -> Assignor:
    """Return the assignor of this name. An assignor object or class may be passed instead of a name; an
    assignor that was written for kafka-python is adapted. Raises InvalidArgumentError if `assignor` is none
    of these.
    """
    if isinstance(assignor, str):
        if assignor in ASSIGNORS:
            return ASSIGNORS[assignor]()
    elif isinstance(getattr(assignor, "name", None), str):
        if _has(assignor, "assign", "user_data") and hasattr(assignor, "cooperative"):
            own: Assignor = assignor() if isinstance(assignor, type) else assignor
            return own
        if _has(assignor, *METHODS):
            return Foreign(assignor)
    raise InvalidArgumentError(
        f"{assignor!r:.80} is no assignor: allowed are {', '.join(ASSIGNORS)}, and objects with name, "
        f"cooperative, assign and user_data, or, as kafka-python's, with name, {', '.join(METHODS)}"
    )


def _has(assignor: Any, *methods: str) -> bool:
    return all(callable(getattr(assignor, name, None)) for name in methods)
