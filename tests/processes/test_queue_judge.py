"""Promise: a share group loses no record, delivers none again once it was told to be done with, lets no two
consumers hold one at a time, and counts deliveries up to its limit, but for one a crash, whatever becomes of
consumers, connections, topics, clocks and the process that has the store (Q12).

`make queue-judge` has 1,000 rounds. A coordinator with a defect does not pass.
"""

from __future__ import annotations

import random
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from queue_judge.defects import DEFECTS
from queue_judge.plan import Plan
from queue_judge.running import Failed, Round

pytestmark = pytest.mark.kind("rounds of a share group")

ROUNDS, TURNS = 50, 4
CRASHES: dict[str, Any] = {"kills": (True, True), "faults": (("worker killed",), ("cut",))}


@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_round(tmp_path: Path, rng: random.Random, number: int) -> None:
    counts = Round(tmp_path, Plan.drawn(rng.randrange(1 << 32) + number)).play()
    assert counts["accepted"]
    assert counts["told"]


SHOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "acknowledges before it writes": ("delivered again", CRASHES),
    "ends no locks": ("not drained", {"sleeps": True, "topics": ("t",), "beside": ()}),
    "skips holes after a load": ("lost", CRASHES),
    "forgets what was accepted over a load": ("delivered again", CRASHES),
    "does not count deliveries that ran out": ("count after|held twice", {"wire": ("raw", "librdkafka")}),
    "does not count deliveries that were released": ("count after|held twice", {"limits": (5,)}),
    "grants what others hold": ("held twice", {"local": ("explicit", "asyncio")}),
    "sends no dead letters": ("no dead letter", {"letters": True}),
    "locks by the wall clock": ("held twice", {"beside": ("clock stepped",), "local": ("explicit",) * 3}),
    "writes one batch of several": ("delivered again|count after", CRASHES),
    "delivers without a limit": ("above the limit|check", {"limits": (2,)}),
    "archives what a session's end gives back": ("lost", {"local": ("explicit", "implicit"), "limits": (5,)}),
}
"""What the history says of a defect, and the kind of round that shows it."""


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found(tmp_path: Path, rng: random.Random, defect: str) -> None:
    words, fixed = SHOWN[defect]
    for turn in range(TURNS):
        directory = tmp_path / str(turn)
        directory.mkdir()
        played = Round(directory, Plan.drawn(rng.randrange(1 << 32), defect, **fixed))
        with suppress(Failed):
            played.play()
        if played.wrong:
            assert any(re.search(words, each) for each in played.wrong), played.wrong
            return
    pytest.fail(f"{defect}: not found by {TURNS} rounds")
