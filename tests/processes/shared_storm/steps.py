"""Names of the steps at which a storm pauses, kills and stops processes, as `segstore/_native/step.h` has them,
and what each process counts there.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from pathlib import Path

from places import REPOSITORY

_HEADER = REPOSITORY / "segstore" / "_native" / "step.h"
STEPS = tuple(re.findall(r"^    SEG_AT_(\w+)", _HEADER.read_text(), re.MULTILINE))
KINDS = ("met", "died", "stopped")
BUGS = ("hasty", "end-first", "words", "no-cut", "no-swap")
"""Planted: the lock is taken from the living behind a time; the end is moved before the write; an end whose
words change one after the other; no cut behind a dead owner; no compare-and-swap.
"""
_SIZE = len(STEPS) * len(KINDS) * 8


def make(path: Path) -> None:
    """Make the file of counts that `SEGSTORE_STORM_COUNTS` names."""
    path.write_bytes(bytes(_SIZE))


def counts(path: Path) -> dict[str, Counter[str]]:
    """Return how often each step was met, died at, stopped at."""
    numbers = struct.unpack(f"<{_SIZE // 8}q", path.read_bytes())
    found: dict[str, Counter[str]] = {}
    for which, kind in enumerate(KINDS):
        found[kind] = Counter(dict(zip(STEPS, numbers[which :: len(KINDS)], strict=True)))
    return found
