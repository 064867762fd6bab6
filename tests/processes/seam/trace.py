"""Parses the output of strace. It only reads."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from .changes import ALIKE, BY_FD, NEVER, Change, plain

_LINE = re.compile(r"(\d+) +(?:<\.\.\. (\w+) resumed>|(\w+)\()(.*)")
_UNFINISHED = "<unfinished ...>"
_BEGUN_ANEW = " = ? ERESTART"  # by the kernel: it is listed again
_FD = re.compile(r"-?\d+<(.*)>(?:\(deleted\))?")


def seen(trace: Iterable[str], place: Path) -> Counter[Change]:
    """Changes below `place`, by `strace -f -y`."""
    found: Counter[Change] = Counter()
    for call, arguments in _calls(trace):
        change = _change(call, arguments, f"{place}/")
        if change is not None:
            found[change] += 1
    return found


def _calls(trace: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Name and arguments, whole where another thread's call came in between."""
    begun: dict[str, str] = {}
    for line in trace:
        if not (match := _LINE.match(line)):
            continue
        thread, resumed, call, rest = match.groups()
        rest = begun.pop(thread, "") + rest if resumed else rest
        if rest.endswith(_UNFINISHED):
            begun[thread] = rest.removesuffix(_UNFINISHED)
        elif _BEGUN_ANEW not in rest:
            yield call or resumed, rest


def _change(call: str, arguments: str, place: str) -> Change | None:
    """None where nothing below the place is changed. What tells no path counts as a change there."""
    if call == "mmap" and not {"PROT_WRITE", "MAP_SHARED"} <= set(re.split(r"[|, ]", arguments)):
        return None
    if "open" in call and not re.search(r"\bO_(WRONLY|RDWR|CREAT|TRUNC)\b", arguments):
        return None
    path = _path(call, arguments)
    if not path:
        return Change(call, "?")
    return Change(ALIKE.get(call, call), plain(path[len(place) :])) if path.startswith(place) else None


def _path(call: str, arguments: str) -> str:
    """Absolute; "" where it can't be told."""
    if call in NEVER:
        return ""
    if call in BY_FD:
        return _fd_path(arguments.split(", ")[BY_FD[call]]) or "no file"
    named, directory = re.search(r'"([^"]*)"', arguments), _fd_path(arguments.split(", ")[0])
    path = os.path.join(directory, named[1]) if named else directory
    return path if path.startswith("/") else ""


def _fd_path(argument: str) -> str:
    match = _FD.match(argument.rstrip(")"))
    return match[1] if match else ""
