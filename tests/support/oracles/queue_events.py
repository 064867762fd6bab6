"""The events of a share group's history: what a coordinator granted and answered, and what consumers got and
were told, in all lives of the process that has the store. Writes nothing.

Times are seconds of the machine's monotonic clock, which all processes share. A call of the coordinator is
told with the times before and after it, so that each judgement has a moment at which it holds for certain.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

Part = tuple[str, int]
Run = tuple[int, int, int]
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)


class Granted(NamedTuple):
    """A fetch has acquired runs of offsets with their delivery counts, for `lock_ms` at least."""

    life: int
    member: str
    part: Part
    runs: list[Run]
    token: int
    began: float
    ended: float
    lock_ms: float


class TakenBack(NamedTuple):
    """A grant was taken back, because its answer could not be given."""

    life: int
    part: Part
    token: int
    began: float
    ended: float


class Asked(NamedTuple):
    """Acknowledgements of a partition begin: first offset, last offset, types."""

    life: int
    call: int
    member: str
    part: Part
    acks: list[tuple[int, int, list[int]]]
    began: float


class Answered(NamedTuple):
    """They have ended: `error` is "" once they are durable."""

    life: int
    call: int
    part: Part
    error: str
    ended: float


class Released(NamedTuple):
    """A session has ended, and what its member held was given back."""

    life: int
    member: str
    parts: list[Part]
    began: float
    ended: float


class Got(NamedTuple):
    """A consumer's application has got records: offset, delivery count, value."""

    who: str
    part: Part
    records: list[tuple[int, int, str]]
    at: float


class Told(NamedTuple):
    """A consumer was told how its acknowledgements of offsets went: "" if they count."""

    who: str
    part: Part
    offsets: list[int]
    error: str
    at: float


class Ended(NamedTuple):
    """A life of the process that has the store has ended by a kill, or not."""

    life: int
    is_killed: bool
    at: float


class Noted(NamedTuple):
    """What was done, for who reads the history."""

    what: str
    at: float


Event = Granted | TakenBack | Asked | Answered | Released | Got | Told | Ended | Noted
KINDS: dict[str, Any] = {
    kind.__name__: kind for kind in (Granted, TakenBack, Asked, Answered, Released, Got, Told, Ended, Noted)
}


def to_line(event: Event) -> bytes:
    """Return the event as one line. Lines that a process has written by one write each survive its death."""
    return json.dumps([type(event).__name__, *event], separators=(",", ":")).encode() + b"\n"


def from_lines(data: bytes) -> list[Event]:
    """Return the events of all whole lines."""
    return [_event(line) for line in data.split(b"\n")[:-1]]


def _event(line: bytes) -> Event:
    kind, *fields = json.loads(line)
    made = KINDS[kind](*fields)
    if "part" in made._fields:
        made = made._replace(part=tuple(made.part))
    if isinstance(made, Released):
        made = made._replace(parts=[(topic, number) for topic, number in made.parts])
    return made  # type: ignore[no-any-return]
