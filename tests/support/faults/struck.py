"""Raises Ctrl-C at one or two chosen places: exceptions come where CPython runs signal handlers.

These places are the beginning of a Python function, and the return of a call, whose result is then lost. A
profile function is called at both, and an exception that it raises is raised there, once. A trace function
sees that exception, and sets the profile function again for the second one.
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
from segstore.mutex import BoundedLock, Mutex

_HERE = os.path.dirname(segstore.__file__)
_PLACES = {"call", "return", "c_return"}
_TAKEN = {each.__enter__.__code__ for each in (Mutex, BoundedLock, Guard)}
"""Functions that `with` calls: CPython runs no signal handler between their return and the block."""


_LOSERS = {"__del__", "called_by_c"}


def _is_lost(frame: FrameType | None) -> bool:
    """Return whether a frame is within a destructor, or a callback of the tests that C calls, whose
    exceptions are printed and ignored.
    """
    while frame is not None and frame.f_code.co_name not in _LOSERS:
        frame = frame.f_back
    return frame is not None


def _is_kept(frame: FrameType) -> bool:
    """Return whether a return of this frame may be a yield: an exception there would end it without its
    `finally`.
    """
    return bool(frame.f_code.co_flags & (inspect.CO_COROUTINE | inspect.CO_GENERATOR))


def struck(
    run: Callable[[], object],
    *places: int,
    error: Callable[[], BaseException] = KeyboardInterrupt,
    within: str = _HERE,
) -> int:
    """Call `run`, with `error()` raised at the first of these places in this package's code, counted from 1,
    and at the second, counted from the first. Return how many were raised. Other exceptions pass.
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

    before = sys.gettrace(), sys.getprofile()  # a run that measures coverage has some
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
