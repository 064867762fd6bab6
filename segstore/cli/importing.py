"""How commands are imported. Threads: the main thread."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imports() -> Iterator[None]:
    """Have the garbage collector rest while modules are imported, and not look at what they define until the
    command ends: it would do so again and again, for a sixth of the time until a command begins, and find
    nothing.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


@contextmanager
def thawing() -> Iterator[None]:
    """Have the garbage collector look at what `imports` froze once the command has ended, however it ended: a
    program that called the command goes on. What the program itself froze before stays frozen.
    """
    theirs = gc.get_freeze_count()
    try:
        yield
    finally:
        if not theirs:
            gc.unfreeze()
