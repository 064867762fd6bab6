"""Promise: clients of several libraries at once lose nothing that was acknowledged, see nothing twice and
nothing that was aborted, and copy exactly once, whatever becomes of the server, of clients and connections.

`make wire-storm` has long rounds. A server with a defect does not pass.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from wire_storm.defects import DEFECTS
from wire_storm.running import Failed, Round

pytestmark = pytest.mark.kind("storms on the wire")

FAULTS, TURNS = 4, 3


def test_a_short_round(tmp_path: Path, rng: random.Random) -> None:
    played = Round(tmp_path, rng.randrange(1 << 32))
    counts = played.play(rng.sample([*played.faults], FAULTS))
    assert counts["sends"]
    assert counts["commits"]


LOST_ANSWERS = ("answers lost", "torn", "answers lost", "cut")
SHOWN = {
    "acknowledges before it appends": (
        ("cut", "server killed"),
        "lost write|inconsistent offset|duplicated offset|torn transaction",
    ),
    "forgets producers over a restart": (("server killed without answers",) * 3, "duplicate|not once"),
    "takes each sequence": (LOST_ANSWERS, "duplicate|not once"),
    "reads above the last stable offset": (("cut",), "precommitted read|aborted read"),
    "tells of no aborted transaction": (("cut",), "aborted read"),
    "acknowledges commits before it writes them": (
        ("server killed",) * 3,
        "lost commit|rebalance rewind|commit goes back|not once",
    ),
}
"""The faults that show a defect, and what the history says of it: that not all was read is no evidence, since
a group may wait for other reasons.
"""


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found(tmp_path: Path, rng: random.Random, defect: str) -> None:
    faults, words = SHOWN[defect]
    for turn in range(TURNS):
        directory = tmp_path / str(turn)
        directory.mkdir()
        found = anomalies(Round(directory, rng.randrange(1 << 32), defect), faults)
        if found:
            assert any(re.search(words, each) for each in found), found
            return
    pytest.fail(f"{defect}: not found by {TURNS} rounds")


def anomalies(played: Round, faults: Sequence[str]) -> list[str]:
    """Return what the judge of a round has found."""
    with suppress(Failed):
        played.play(faults)
    return played.wrong
