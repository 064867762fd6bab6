"""`ConsumerPulses`: a `Pulse` for each member of a consumer group whose consumer is in this process
(KIP-848). These members send heartbeats only to report a change; the `Pulse` shows the coordinator that the
consumer is alive.

Threads: under the group's lock; a `Pulse` is written by its consumer's thread too. Times are ms of the
monotonic clock.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Iterator

from segstore.coordinator.group.classic.member import Pulse


class ConsumerPulses:
    """The `Pulse` of each member, by member id, as a weak reference: if the consumer was garbage collected
    without `close`, its `Pulse` is gone, too.
    """

    def __init__(self) -> None:
        self._pulses: dict[str, weakref.ref[Pulse] | None] = {}
        self._looked: dict[str, float] = {}

    def attend(self, member_id: str, pulse: Pulse | None, now: float) -> None:
        """Start to check a member's `Pulse`. `pulse` is None if the consumer was in a process that has ended:
        the next `look` then yields False for the member.
        """
        self._pulses[member_id] = None if pulse is None else weakref.ref(pulse)
        self._looked[member_id] = now
        if pulse is not None:
            _beat(pulse, now)

    def forget(self, member_id: str) -> None:
        """Stop the checks of a member's `Pulse`."""
        self._pulses.pop(member_id, None)
        self._looked.pop(member_id, None)

    def look(self, now: float) -> Iterator[tuple[str, bool]]:
        """Yield (member id, whether the member's consumer is alive and polls in time) for each member."""
        for member_id, ref in list(self._pulses.items()):
            pulse = None if ref is None else ref()
            self._looked[member_id] = now
            if pulse is None:
                # At interpreter exit weak references are cleared before finalizers run. The consumer
                # then still counts as alive, because a finalizer may close it.
                yield member_id, ref is not None and sys.is_finalizing()
                continue
            is_alive = now - pulse.polled < pulse.max_poll_interval_ms
            if is_alive:
                _beat(pulse, now)
            yield member_id, is_alive

    def due(self, interval_ms: float) -> float:
        """Return the time at which `look` must be called next, at most `interval_ms` after the last call; inf
        if there are no members.
        """
        return min((self._due(*each, interval_ms) for each in self._pulses.items()), default=math.inf)

    def _due(self, member_id: str, ref: weakref.ref[Pulse] | None, interval_ms: float) -> float:
        pulse, looked = None if ref is None else ref(), self._looked[member_id]
        if pulse is None:
            return looked
        return min(looked + interval_ms, pulse.polled + pulse.max_poll_interval_ms)


def _beat(pulse: Pulse, now: float) -> None:
    pulse.beats += 1
    pulse.beaten = now
