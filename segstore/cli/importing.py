"""Stops the garbage collector during the imports of a command, so that commands start faster. Threads:
the main thread.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imports() -> Iterator[None]:
    """Stop the garbage collector during a `with` block of imports, and exempt the imported objects from its
    scans until the command returns. These scans would find no garbage, and would take a sixth of a command's
    start-up time.
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
    """When the `with` block ends, undo the `gc.freeze` of `imports`: the process may be a program that has
    called the command, and that runs on. If this program had frozen objects before the block, undo nothing,
    because its objects would be unfrozen, too.
    """
    theirs = gc.get_freeze_count()
    try:
        yield
    finally:
        if not theirs:
            gc.unfreeze()
