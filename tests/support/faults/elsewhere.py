"""Runs what an application does in another thread, while a thread of segstore is within a call."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from waiting import PATIENCE


def elsewhere(act: Callable[[], object]) -> None:
    """Call `act` in a thread of its own and wait for it; its exception is raised here."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(act).result(PATIENCE)
