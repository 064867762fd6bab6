"""Promise: a store that is not shared pays nothing for sharing, and an append to a shared one makes the calls
of the kernel that any append makes.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from shared_members import SMALL, MemberProcess

pytestmark = [
    pytest.mark.judge("strace"),
    pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace"),
    pytest.mark.kind("members of a shared store"),
]
OF_MEMORY = re.compile(r" (brk|madvise)\(|MAP_ANONYMOUS")
"""Calls by which the interpreter gets memory, which it may do at any moment."""
OF_SHARING = re.compile(r"\.segstore/(shared|members|host)\b")


def traced(root: Path, trace: Path, shared: bool | str, work: str) -> list[str]:
    """Return the calls of a process that opens a store, does `work` between two marks, and closes it."""
    strace = ("strace", "-f", "-qq", "-y", "-o", str(trace))
    with MemberProcess(root, shared, SMALL if shared is True else None, before=strace) as member:
        member.opened().run("'t' in store.topics() or store.create_topic('t') and 0")
        member.run("[log().append(b'x') for _ in range(5)] and log().read(0) and 0")
        member.run(f"of = log(); os.getsid(0); {work}; os.getsid(0)")
    return trace.read_text(errors="replace").splitlines()


def between_marks(lines: list[str]) -> Counter[str]:
    """Return how often the marking thread has made each call between its marks."""
    first, second = [at for at, line in enumerate(lines) if re.match(r"\d+ +getsid\(0", line)]
    thread = lines[first].split()[0]
    within = (line for line in lines[first + 1 : second] if not OF_MEMORY.search(line))
    calls = (re.match(rf"{thread} +(\w+)\(", line) for line in within)
    return Counter(found[1] for found in calls if found)


WORK = {
    "appends": "[of.append(b'x') for _ in range(50)]",
    "appends of many": "[of.append_batch([b'x'] * 10) for _ in range(50)]",
    "appends and a flush": "[(of.append(b'x'), of.flush()) for _ in range(10)]",
    "reads": "[of.read(0) for _ in range(50)]",
    "appends and reads": "[(of.append(b'x'), of.read(of.end_offset - 1)) for _ in range(20)]",
}


def test_a_store_that_is_not_shared_has_one_look_at_its_open_and_no_more(
    store_dir: Path, tmp_path: Path
) -> None:
    """From its first open to its close, and again at an open that finds it."""
    for turn in range(2):
        lines = traced(store_dir, tmp_path / f"trace {turn}", False, "; ".join(WORK.values()))
        assert any(".segstore/ends" in line for line in lines)
        (look,) = [line for line in lines if OF_SHARING.search(line)]
        assert re.search(r"stat\w*\(.*\.segstore/shared.*ENOENT", look)  # by the open; no file is opened
        assert {each for line in lines for each in re.findall(r"F_OFD_\w+", line)} <= {"F_OFD_SETLK"}
    assert not list(store_dir.glob(".segstore/shared"))


@pytest.mark.parametrize("work", WORK)
def test_a_host_s_calls_are_those_of_a_writer_alone(work: str, store_dir: Path, tmp_path: Path) -> None:
    alone = between_marks(traced(tmp_path / "alone", tmp_path / "first", False, WORK[work]))
    shared = between_marks(traced(store_dir, tmp_path / "second", True, WORK[work]))
    if "flush" in work:  # the interpreter's lock is let go of: how often its futex is woken is chance
        del shared["futex"], alone["futex"]
    assert shared == alone
    assert alone.total() > 0
