"""Imports modules when they are first used, so that neither signal handlers nor other threads can break an
import. Does not touch the files of a store.

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
"""The code of the CPython function that has a module's lock while it imports the module."""
_one_at_a_time = RLock()
"""The lock under which `import_apart` imports modules. Without it two threads could deadlock, and one of them
would get an error: the import of `a.b` locks `a.b` before its parent `a`, and the import of a package `a`
that imports its own module `a.b` locks `a` first.

A fork waits for this lock. If it did not, the child would have a half-imported module, and a lock whose owner
is a thread that the child does not have. The lock is an RLock, because a module may fork during its import.
"""
_PATIENCE = 5.0
"""The longest time, in seconds, that a fork waits for an import. The wait is limited, because the import may
be waiting for a lock that the thread of the fork has taken.
"""
_NONE: AbstractContextManager[object] = nullcontext()


def import_apart(name: str) -> ModuleType:
    """Import a module in a thread of its own, in which no signal handler runs.

    After Ctrl-C has interrupted an import of NumPy, NumPy can't be imported again; and a signal handler that
    interrupts an import would see half-imported modules. If a handler raises an exception during the import,
    this function raises it after the import.
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        return module
    # If this call is part of the import of another module, this thread has that module's lock. A new thread
    # could wait for this lock, while this thread waits for the new thread.
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
    # The garbage collector is disabled, because it could run a finalizer in this thread. The finalizer could
    # wait for a lock of the thread that called `import_apart`, which waits for this thread.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if was_enabled:
            gc.enable()


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether `frame` is part of an import, so that this thread has the lock of a module."""
    while frame is not None and frame.f_code is not _IMPORT:
        frame = frame.f_back
    return frame is not None


def have_forks_wait() -> None:
    """Register fork hooks that make each fork wait for the end of an import.

    Hooks that are registered later run earlier. So the wait comes before the hook of `logging`, which takes
    locks that the import may need.
    """
    os.register_at_fork(before=_await_import, after_in_parent=_let_import, after_in_child=_let_import)


def _await_import() -> None:
    # At the interpreter's end, a stopped thread may have the lock for ever.
    if not others_are_gone():
        _one_at_a_time.acquire(timeout=_PATIENCE)


def _let_import() -> None:
    # RuntimeError means that the wait timed out, so this thread does not have the lock.
    with suppress(RuntimeError):
        _one_at_a_time.release()


have_forks_wait()
