"""Checks of a share partition's acknowledgements (Kafka: SharePartition.acknowledge, ShareFetchRequest's and
ShareAcknowledgeRequest's acknowledgement batches).

The functions change neither the share partition nor its offsets in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

from segstore.coordinator.share.core.in_flight import ACQUIRED, InFlight
from segstore.coordinator.share.core.values import AckBatch, AcknowledgeType
from segstore.errors import InvalidRecordStateError, InvalidRequestError

RENEW = AcknowledgeType.RENEW
KNOWN_TYPES = frozenset(AcknowledgeType)


class AckStep(NamedTuple):
    """Adjacent acquired offsets that are acknowledged with the same type."""

    first: int
    last: int
    type: int


# Calling `tuple.__new__`, which is C code, is faster than calling the class, whose `__new__` is Python code.
_step: Callable[[tuple[int, int, int]], AckStep] = partial(tuple.__new__, AckStep)


def check_form(batches: Sequence[AckBatch]) -> None:
    """Raise InvalidRequestError unless the batches are ordered by offset, and each batch has one
    AcknowledgeType, or as many as it has offsets. As in Kafka, the last offset of a batch may also be the
    first offset of the next batch.
    """
    before = -1
    for first, last, types in batches:
        if first > last or first < before or first < 0:
            raise InvalidRequestError(
                f"acknowledged are {first}-{last} behind {before}: batches of a partition must rise"
            )
        if (n := len(types)) != 1 and n != last - first + 1:
            raise InvalidRequestError(
                f"{first}-{last} has {n} acknowledge types: it must have one, or one an offset"
            )
        if not KNOWN_TYPES.issuperset(types):
            raise InvalidRequestError(
                f"acknowledge types of {first}-{last} must be 0 to 4, not {list(types)}"
            )
        before = last


def collect(
    flight: InFlight,
    member: str,
    batches: Sequence[AckBatch],
    may_renew: bool,
    ended: list[AckStep],
    renewed: list[AckStep],
) -> None:
    """Append a step for each run of offsets with one acknowledgement type: to `renewed` if the type is RENEW,
    else to `ended`. Offsets below the share-partition start get no step (rule Q29). If an offset is refused,
    the two lists have the steps of the offsets before it.

    Raises InvalidRequestError for an offset after the last offset in flight. Raises InvalidRecordStateError
    for an offset that the member has not acquired (rule Q30), for an offset that `batches` acknowledge twice,
    and for a RENEW that the group does not allow.
    """
    end = -1
    for batch in batches:
        if batch.last < flight.start:
            continue
        if batch.last >= flight.next_new:
            raise InvalidRequestError(
                f"offset {batch.last} is acknowledged, and {flight.next_new - 1} is the last one in flight"
            )
        for step in _alike(batch, flight.start):
            first, last, kind = step
            if first <= end:
                raise InvalidRecordStateError(f"offset {end} is acknowledged twice")
            if kind == RENEW and not may_renew:
                raise InvalidRecordStateError("share.renew.acknowledge.enable of the group is false")
            _check_held(flight, member, first, last)
            if kind == RENEW:
                renewed.append(step)
            else:
                ended.append(step)
                end = last


def _alike(batch: AckBatch, start: int) -> Sequence[AckStep]:
    first, last, types = batch
    low = first if first > start else start
    if len(types) == 1:
        return (_step((low, last, types[0])),)
    steps = []
    for kind, same in groupby(types[low - first :]):
        end = low + sum(1 for _ in same)
        steps.append(AckStep(low, end - 1, kind))
        low = end
    return steps


def _check_held(flight: InFlight, member: str, first: int, last: int) -> None:
    """Raise InvalidRecordStateError unless the member has acquired all these offsets."""
    at = first
    for run in flight.runs.overlapping(first, last):
        lock = run.lock
        if run.first > at or run.state is not ACQUIRED or run.write or lock is None or lock.owner != member:
            break
        at = run.last + 1
    if at <= last:
        raise InvalidRecordStateError(
            f"offset {at} is acknowledged by member {member}, which has not acquired it, or no longer"
        )
