"""What `test_two_replicas.py` says, of three replicas and in larger spaces. Those take minutes each, and are
for `make model-check`.
"""

from __future__ import annotations

import gc
import os

import pytest

from replicas.algorithms import ONE_HAS_IT
from replicas.bounds import Bounds
from replicas.search import search
from replicas.world import World

pytestmark = pytest.mark.kind("long model checks")

LARGE = "SEGSTORE_LARGE_SPACES" in os.environ
MOST = 20_000  # states that are looked at in every run

HELD = {
    "two replicas, 3 records, 4 epochs": (Bounds(2, 3, 4), (), 127_502),
    "three replicas, one epoch": (Bounds(3, 1, 1), (), 16_014),
    "three replicas, two epochs": (Bounds(3, 1, 2), (), 280_894),
    "one of three has heard of nothing, and is elected": (Bounds(3, 1, 3), ONE_HAS_IT, 264_842),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HELD)
def test_all_properties_hold(name: str) -> None:
    bounds, steps, states = HELD[name]
    if states > MOST and not LARGE:
        pytest.skip(f"{states:,} states are for `make model-check`")
    gc.disable()  # states are tuples, and all stay
    try:
        found = search(World(bounds), steps)
    finally:
        gc.enable()
    print(found)
    assert (found.fault, found.states) == ("", states)
