"""Threads that can't be started for a while, as on a system that has no more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from segstore.threads import Background


@contextmanager
def refused(part: str) -> Iterator[list[str]]:
    """Refuse to start the threads whose names have `part` in them; yields the names, as they are refused."""
    names: list[str] = []
    start = Background.start

    def begun(thread: Background) -> None:
        if part in thread.name:
            names.append(thread.name)
            raise thread._refused("no more threads")
        start(thread)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Background, "start", begun)
        yield names
