"""Ctrl-C at chosen places, one or two: exceptions that come where CPython runs the handlers of signals.

That is at the beginning of a function of Python's and when a call has returned, whose result is lost then. A
profiler is told of both, and what it raises is raised there, once: a tracer, which sees that, sets the
profiler for the second.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import segstore
from segstore.client.consumer.base import Guard
from segstore.mutex import Mutex

_HERE = os.path.dirname(segstore.__file__)
_PLACES = {"call", "return", "c_return"}
_TAKEN = {Mutex.__enter__.__code__, Guard.__enter__.__code__}
"""`with` calls them, and goes on in its block: CPython runs no handler when they return."""


def _is_lost(frame: FrameType | None) -> bool:
    """Whether it is within a destructor, where what is raised is told and passed over."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def _is_kept(frame: FrameType) -> bool:
    """Whether it may only have yielded: it would be ended without its `finally`."""
    return bool(frame.f_code.co_flags & (inspect.CO_COROUTINE | inspect.CO_GENERATOR))


def struck(
    run: Callable[[], object],
    *places: int,
    error: Callable[[], BaseException] = KeyboardInterrupt,
    within: str = _HERE,
) -> int:
    """Run it, with `error()` raised at the first of these places of this package's code, counted from 1, and
    at the second, counted from the first: how many were raised. Other exceptions pass.
    """
    left, raised, seen = list(places), 0, 0

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal raised, seen
        if event in _PLACES and frame.f_code.co_filename.startswith(within):
            if _is_lost(frame) or (event == "return" and (frame.f_code in _TAKEN or _is_kept(frame))):
                return
            seen += 1
            if left and seen == left[0]:
                left.pop(0)
                raised, seen = raised + 1, 0
                raise error()

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        frame.f_trace_lines = False
        if raised and left and sys.getprofile() is None:
            sys.setprofile(profile)
        return trace

    before = sys.gettrace(), sys.getprofile()  # those of a run which measures coverage
    if len(places) > 1:
        sys.settrace(trace)
    sys.setprofile(profile)
    try:
        run()
    except BaseException as caught:
        if type(caught) is not type(error()):
            raise
    finally:
        sys.settrace(before[0])  # first: what the collector runs in between would have it profile again
        sys.setprofile(before[1])
    return raised
