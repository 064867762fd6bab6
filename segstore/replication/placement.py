"""Chooses directories for new replicas, and checks assignments (Kafka: StripedReplicaPlacer, without racks).

Nothing is on disk. Threads: any.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from segstore.arrays import is_array
from segstore.config import arguments
from segstore.errors import InvalidReplicaAssignmentError, InvalidReplicationFactorError, InvalidTypeError

Replicas = tuple[int, ...]
BYTES = bytes | bytearray | memoryview


def place(partitions: int, replication_factor: int, live: Collection[int], start: int = 0) -> list[Replicas]:
    """Return the replicas of each of `partitions` new partitions, the preferred leader first. `live` are the
    ids of the online directories.

    The preferred leaders are assigned to the directories round-robin, beginning at index `start`. In each
    round over the directories, the followers of a leader are shifted by one directory. So if a directory
    fails, the partitions that it led get new leaders in many different directories. Raises
    InvalidReplicationFactorError.
    """
    check_factor(replication_factor, live)
    ids = sorted(live)
    return [_striped(ids, replication_factor, at) for at in range(start, start + partitions)]


def check_factor(replication_factor: int, live: Collection[int]) -> None:
    """Raise InvalidTypeError if the factor is not an integer, and InvalidReplicationFactorError if it is
    below 1 or above the number of live directories.
    """
    if not 1 <= arguments.whole("replication_factor", replication_factor, None) <= len(live):
        raise InvalidReplicationFactorError(
            f"replication_factor={replication_factor}: must be from 1 to {len(live)}, as many as "
            f"directories work: {_listed(sorted(live))}"
        )


def _striped(ids: Sequence[int], factor: int, at: int) -> Replicas:
    turn, leader = divmod(at, len(ids))
    others = [*ids[leader + 1 :], *ids[:leader]]
    moved = turn % len(others) if others else 0
    return (ids[leader], *(others[moved:] + others[:moved])[: factor - 1])


def as_assignments(given: Any) -> dict[int, Replicas]:
    """Return the requested replicas of partitions, with each id converted to an int, so that the controller
    gets no object of a caller's class. Raises InvalidTypeError.
    """
    if not isinstance(given, Mapping):
        raise InvalidTypeError(
            f"assignments must be a mapping of partitions to replicas, not {type(given).__name__}"
        )
    return {
        arguments.whole("partition", number, None): as_replicas(f"assignments[{number!r}]", given[number])
        for number in given
    }


def as_replicas(name: str, given: Any) -> Replicas:
    """Return the requested directory ids, each converted to an int. Raises InvalidTypeError."""
    if not (isinstance(given, Sequence) or is_array(given)) or isinstance(given, str | BYTES):
        raise InvalidTypeError(f"{name} must be a sequence of directories' ids, not {type(given).__name__}")
    return tuple(arguments.whole(name, replica, None) for replica in given)


def check_assignments(
    made: Mapping[int, Replicas], numbers: Sequence[int], known: Collection[int]
) -> dict[int, Replicas]:
    """Check the requested replicas `made` (a result of `as_assignments`), and return them in the order of
    `numbers`, the numbers of the partitions to create. `known` are the ids of all directories.

    Raises InvalidReplicaAssignmentError if `made` lacks a partition of `numbers` or has another partition, if
    a partition has an unknown replica or the same replica twice, or if partitions have different numbers of
    replicas.
    """
    if sorted(made) != list(numbers):
        raise InvalidReplicaAssignmentError(
            f"assignments has the partitions {_listed(sorted(made))}; must be {_listed(numbers)}"
        )
    factor = len(made[numbers[0]])
    for number, replicas in sorted(made.items()):
        _check_one(number, replicas, factor, known)
    return {number: made[number] for number in numbers}


def _check_one(number: int, replicas: Replicas, factor: int, known: Collection[int]) -> None:
    asked = f"assignments[{number}]={list(replicas)}"
    if not replicas or len({*replicas}) < len(replicas) or not {*replicas} <= {*known}:
        raise InvalidReplicaAssignmentError(
            f"{asked}: must be different ones of the directories {_listed(sorted(known))}, at least one"
        )
    if len(replicas) != factor:
        raise InvalidReplicaAssignmentError(f"{asked}: must be {factor} replicas, as of the first one")


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids)) or "none"
