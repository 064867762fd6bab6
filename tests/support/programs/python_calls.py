"""Counts calls of Python functions, which are most of the time of many hot paths."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType


def calls_of(work: Callable[[], object]) -> Counter[str]:
    """How often each Python function is called by `work`, in this thread."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            calls[f"{getattr(code, 'co_qualname', code.co_name)} ({Path(code.co_filename).name})"] += 1

    measured = sys.getprofile()
    gc.collect()
    gc.disable()  # what it runs is no part of the work
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(measured)
        gc.enable()
    return calls
