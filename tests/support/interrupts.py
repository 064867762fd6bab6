"""Ctrl-C at a chosen place: a KeyboardInterrupt before the nth call that is made in some modules."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Collection
from types import FrameType, ModuleType
from typing import Any


def interrupted(nth: int, modules: Collection[ModuleType], run: Callable[[], object]) -> bool:
    """Run it, with a KeyboardInterrupt before the `nth` call of these modules. False: it has no so many."""
    files, count = {module.__file__ for module in modules}, 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in files:
            return None
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        # Python looks for signals where it calls, but not between a block and the end of its `with`.
        if event == "line" and "(" in text and not text.startswith("with "):
            count += 1
            if count == nth:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()  # that of a run which measures coverage
    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
