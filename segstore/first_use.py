"""Imports of modules at their first use, safe against signal handlers and threads. It touches no files of a
store.

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
"""CPython's function that holds a module's lock during its import."""
_one_at_a_time = RLock()
"""The lock of all imports. CPython locks `a.b` before its parent `a`, and a package that imports its own
modules locks `a` first. If two threads import both at once, one of them gets a deadlock error.

A fork waits for this lock, because otherwise the child would have half a module, and a lock whose owner is a
thread that the child lacks. It is an RLock, since a module may fork during its import.
"""
_PATIENCE = 5.0
"""The longest time in seconds that a fork waits for an import, which itself may be waiting for a lock that
the fork has taken.
"""
_NONE: AbstractContextManager[object] = nullcontext()


def import_apart(name: str) -> ModuleType:
    """Import a module in a thread of its own, in which no signal handler runs.

    NumPy can't be imported again after Ctrl-C interrupted its import, and a handler would see half-imported
    modules. An exception of a handler is raised once the import is done.
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        return module
    # If the caller is itself part of an import, it holds a module's lock. A new thread could wait for that
    # lock, while the caller waits for the new thread.
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
    # The garbage collector could run a finalizer here, and the finalizer could wait for a lock that the
    # caller holds. But the caller waits for this thread.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if was_enabled:
            gc.enable()


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether this thread is importing a module, and so holds its lock."""
    while frame is not None and frame.f_code is not _IMPORT:
        frame = frame.f_back
    return frame is not None


def have_forks_wait() -> None:
    """Make each fork wait for an import that is under way.

    The wait comes before the fork hooks that were registered earlier, such as the hook of `logging`, whose
    locks the import may need.
    """
    os.register_at_fork(before=_await_import, after_in_parent=_let_import, after_in_child=_let_import)


def _await_import() -> None:
    if not others_are_gone():  # at exit a stopped thread may hold the lock for ever
        _one_at_a_time.acquire(timeout=_PATIENCE)


def _let_import() -> None:
    with suppress(RuntimeError):  # the wait timed out, so the lock is not ours
        _one_at_a_time.release()


have_forks_wait()
