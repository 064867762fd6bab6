"""What `test_two_replicas.py` says of two replicas, of three: minutes, in `make test-all` only."""

from __future__ import annotations

import gc

import pytest

from replicas.algorithms import ONE_HAS_IT
from replicas.bounds import Bounds
from replicas.search import search
from replicas.world import World

HELD = {
    "one epoch": (Bounds(3, 1, 1), (), 16_014),
    "two epochs": (Bounds(3, 1, 2), (), 280_894),
    "one of three has heard of nothing, and is elected": (Bounds(3, 1, 3), ONE_HAS_IT, 264_842),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HELD)
def test_all_properties_hold(name: str) -> None:
    bounds, steps, states = HELD[name]
    gc.disable()  # states are tuples, and all stay
    try:
        found = search(World(bounds), steps)
    finally:
        gc.enable()
    print(found)
    assert (found.fault, found.states) == ("", states)
