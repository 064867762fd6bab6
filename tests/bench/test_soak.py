"""Promise: with everything running at once, resources stay bounded; and the soak fails where they do not."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest
from places import REPOSITORY
from waiting import PATIENCE

pytestmark = pytest.mark.kind("measurements")

BENCHMARKS = REPOSITORY / "benchmarks"
MIB = 1 << 20


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("soak")


def sample(soak: Any, at: int, **changed: Any) -> Any:
    topics = dict.fromkeys(soak.CONFIG, 10 * MIB)
    steady = soak.Sample(float(at), at, at, dict.fromkeys(topics, MIB * at), topics, 100 * MIB, 200, 16, 0)
    return steady._replace(**changed)


BROKEN: dict[str, dict[str, Any]] = {
    "disk": {"disk": {"events": 900 * MIB, "state": 0, "both": 0}},
    "memory": {"rss": 400 * MIB},
    "open files": {"files": 400},
    "threads": {"threads": 30},
    "keys": {"wrong": 1},
}


@pytest.mark.parametrize("name", ["nothing", *BROKEN])
def test_judged(soak: Any, name: str) -> None:
    samples = [sample(soak, at) for at in range(1, 120)]
    samples.append(sample(soak, 120, **BROKEN.get(name, {})))
    broken = [what for what, most, bound in soak.judged(samples) if most > bound]
    assert [what.startswith(name) for what in broken] == [True] * (name in BROKEN)


@pytest.mark.slow
def test_some_seconds() -> None:
    """`make soak` does the same for ten minutes."""
    command = [sys.executable, str(BENCHMARKS / "soak.py"), "--seconds", "10"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=4 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "BROKEN" not in done.stdout
