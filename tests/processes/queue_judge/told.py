"""What all processes of a round share: the file of its history, and flags that say how far the round is."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from zlib import crc32

from queue_events import ACCEPT, REJECT, RELEASE, RENEW, Event, to_line


class Telling:
    """Events in the order in which they were written, over all processes; a kill loses none."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def __call__(self, event: Event) -> None:
        os.write(self._file, to_line(event))


class Flags:
    """Files beside the history. `over`: consumers end."""

    def __init__(self, told: Path) -> None:
        self._over = told.with_name("over")

    @property
    def is_over(self) -> bool:
        return self._over.exists()

    def over(self) -> None:
        self._over.touch()


def now() -> float:
    """Return the time of the machine's monotonic clock in seconds."""
    return time.monotonic()


def verdict(rng: random.Random, value: str, may_renew: bool) -> int:
    """Draw the type of acknowledgement of a record: some records are never accepted."""
    if crc32(value.encode()) % 23 == 0:
        return RELEASE
    kind = rng.choices((ACCEPT, RELEASE, REJECT, RENEW), (70, 14, 8, 8))[0]
    return ACCEPT if kind == RENEW and not may_renew else kind


def pause(rng: random.Random, lock_ms: int) -> None:
    """Work for a while, now and then for longer than a lock."""
    chance = rng.random()
    if chance < 0.06:
        time.sleep(lock_ms / 1000 * rng.uniform(0.8, 1.5))
    elif chance < 0.4:
        time.sleep(rng.uniform(0, 0.05))
