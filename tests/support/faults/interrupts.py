"""Raises Ctrl-C at a chosen place: a KeyboardInterrupt before the nth call that some modules make."""

from __future__ import annotations

import gc
import linecache
import sys
from collections.abc import Callable, Collection
from types import FrameType, ModuleType
from typing import Any


def interrupted(nth: int, modules: Collection[ModuleType], run: Callable[[], object]) -> bool:
    """Call `run`, with a KeyboardInterrupt before the `nth` call that these modules make. Return False where
    they make fewer calls.
    """
    files, count = {module.__file__ for module in modules}, 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in files:
            return None
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        # Python checks for signals at calls, but not between a block and the end of its `with`.
        if event == "line" and "(" in text and not text.startswith("with "):
            count += 1
            if count == nth:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()  # a run that measures coverage has one
    collects = gc.isenabled()
    gc.disable()  # finalizers of other tests' garbage make calls, too, which nobody is to interrupt
    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return False
