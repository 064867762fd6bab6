"""Promise: groups whose members pause, vanish, are fenced, stopped and killed lose nothing, commit nothing
behind a later member's back, and do each record of an exactly-once loop once.

A short round for each run of the tests; `make groups` has long ones.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from jepsen.running import Round

pytestmark = pytest.mark.kind("kills")


def test_a_short_round(tmp_path: Path, rng: random.Random) -> None:
    counts = Round(tmp_path, rng.randrange(1 << 32)).run(lives=1, readers=1)
    assert counts["commits"]
