"""Stops the garbage collector during the imports of a command, so that commands start faster. Threads:
the main thread.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imports() -> Iterator[None]:
    """Stop the garbage collector during a block of imports, and exempt the imported objects from its scans
    until the command returns. The scans would find no garbage, and take a sixth of a command's start-up time.
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
    """Undo the `gc.freeze` of `imports` when a command returns or raises, because a program that called the
    command goes on to run. If that program had frozen objects itself, nothing is undone, because its objects
    would be unfrozen, too.
    """
    theirs = gc.get_freeze_count()
    try:
        yield
    finally:
        if not theirs:
            gc.unfreeze()
