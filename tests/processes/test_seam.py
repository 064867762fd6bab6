"""Every write goes through `Files`: strace sees of a store exactly the calls that they counted."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import memory
import pytest
from seam.changes import TRACED, Change
from seam.counted import CHANGING
from seam.escapes import ESCAPES
from seam.trace import seen
from waiting import PATIENCE

from segstore import names

pytestmark = [pytest.mark.judge("strace"), pytest.mark.xdist_group("seam"), pytest.mark.kind("strace")]
MAPPED = rf"/{names.ENDS}$|{names.INDEX}$|{names.TIME_INDEX}$"


class Traced(NamedTuple):
    """What was counted and seen in each place; which methods were called."""

    counted: dict[str, Counter[Change]]
    seen: dict[str, Counter[Change]]
    called: set[str]


@pytest.fixture(scope="module")
def traced() -> Iterator[Traced]:
    """In memory, where there is such a place: thousands of syncs take their time."""
    if shutil.which("strace") is None:
        pytest.skip("there is no strace")
    with memory.directory() as place:
        yield trace(Path(place).resolve())


def trace(place: Path) -> Traced:
    (place / "stores").mkdir()
    command = ["strace", "-f", "-y", "-qq", "--seccomp-bpf", "-o", str(place / "trace")]
    command += ["-e", f"trace={TRACED}"]
    done = subprocess.run(
        [*command, sys.executable, "-m", "seam", str(place / "stores")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=4 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    called = set(told.pop("called"))
    lines = (place / "trace").read_text(errors="replace").splitlines()
    counted = {name: Counter({Change(*change): n for *change, n in held}) for name, held in told.items()}
    return Traced(counted, {name: seen(lines, place / "stores" / name) for name in counted}, called)


def differences(traced: Traced, place: str) -> tuple[Counter[Change], Counter[Change]]:
    """What was counted and not seen, and the other way round."""
    counted, found = traced.counted[place], traced.seen[place]
    return counted - found, found - counted


def test_every_change_is_counted(traced: Traced) -> None:
    assert differences(traced, "whole") == (Counter(), Counter())
    assert traced.counted["whole"].total() > 3000


def test_every_method_was_called(traced: Traced) -> None:
    assert CHANGING - traced.called == set()


def test_written_through_mappings_are_ends_and_indexes(traced: Traced) -> None:
    """And no store is ever waited for through one: msync tells no path, and is none of our calls."""
    mapped = {change.path for change in traced.seen["whole"] if change.call == "mmap"}
    assert len({re.search(MAPPED, path)[0] for path in mapped if re.search(MAPPED, path)}) == 3
    assert [path for path in mapped if not re.search(MAPPED, path)] == []


@pytest.mark.parametrize("escape", ESCAPES)
def test_what_passes_by_is_seen(traced: Traced, escape: str) -> None:
    counted, found = differences(traced, escape)
    assert counted == Counter()
    assert bool(found) == (escape != "nothing"), found
