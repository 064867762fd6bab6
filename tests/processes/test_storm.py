"""Promise: one or two interrupts at any moment lose nothing, fence nothing, and let no call hang.

A short storm for each run of the tests; `make storm` has long ones.
"""

from __future__ import annotations

import random

import pytest
from storm.running import run

pytestmark = pytest.mark.kind("interrupts")

STEPS = {"logs": 150, "clients": 15}


@pytest.mark.parametrize("kind", STEPS)
def test_a_short_storm(rng: random.Random, kind: str) -> None:
    counts = run(kind, rng.randrange(2**32), STEPS[kind])
    assert counts["interrupts"]
