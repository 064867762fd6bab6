"""A clock for producers that a test moves forward, so that minutes pass at once."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest


class Turned:
    """Replaces the module `time`; its monotonic clock is `ahead` by so many seconds."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def turned(monkeypatch: pytest.MonkeyPatch) -> Turned:
    """Give all producers such a clock, for one test."""
    clock = Turned()
    for name, module in list(sys.modules.items()):
        if name.startswith("segstore.client.producer.") and getattr(module, "time", None) is time:
            monkeypatch.setattr(module, "time", clock)
    return clock
