"""Imports of modules at their first use, whatever comes in between. It touches no files of a store.

Threads: any.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib import import_module
from threading import Lock, RLock
from types import FrameType, ModuleType

from segstore.threads import apart, others_are_gone

_IMPORT = sys.modules["_frozen_importlib"]._find_and_load.__code__
"""CPython's function that holds the lock of a module while the module is imported."""
_one_at_a_time = RLock()
"""CPython locks `a.b` before its parent `a`, and a package that imports its own modules locks `a` first: of
two threads that import both, one gets a deadlock error.

A fork waits for it: the child would have half a module, and the lock of a thread that it does not have. It is
an RLock, since a module may fork while it is imported.
"""
_PATIENCE = 5.0
"""In seconds. An import that needs a lock which the fork has taken delays the fork no longer than this."""
_NONE: AbstractContextManager[object] = nullcontext()


def import_apart(name: str) -> ModuleType:
    """Import a module in a thread of its own, where no signal handler runs: NumPy can't be imported a second
    time where Ctrl-C ended the first, and a handler would find modules half imported.

    What a handler raises ends the wait, when the import has ended: the interpreter may be about to end, too.
    """
    there = sys.modules.get(name)
    if there is not None and not getattr(there.__spec__, "_initializing", False):
        return there
    if _is_importing(sys._getframe(1)):
        return import_module(name)
    under_way = Lock()

    def bring() -> ModuleType:
        with under_way, _NONE if others_are_gone() else _one_at_a_time:
            return _undisturbed(name)

    try:
        return apart(bring, "segstore-import")
    except BaseException:
        with under_way:
            raise


def _undisturbed(name: str) -> ModuleType:
    # A finalizer that the collector called in this thread could wait for a lock of the caller, who waits.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if was_enabled:
            gc.enable()


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether this thread has the lock of a module that it imports. Another thread may need that
    module, and would wait for this one, which waits for the other.
    """
    while frame is not None and frame.f_code is not _IMPORT:
        frame = frame.f_back
    return frame is not None


def have_forks_wait() -> None:
    """Have each fork wait for an import that is under way, before it takes the locks of all that has asked
    for forks so far, such as `logging`, which the import may need.
    """
    os.register_at_fork(before=_await_import, after_in_parent=_let_import, after_in_child=_let_import)


def _await_import() -> None:
    if not others_are_gone():  # else a thread that was stopped may have the lock for ever
        _one_at_a_time.acquire(timeout=_PATIENCE)


def _let_import() -> None:
    with suppress(RuntimeError):  # the wait ended without the lock
        _one_at_a_time.release()


have_forks_wait()
