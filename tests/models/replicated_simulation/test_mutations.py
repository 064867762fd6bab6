"""Promise: a fault in the shell or the engine of replicas breaks a run of the simulation, which is one of
forty seeds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from simulation.model import Wrong

from .mutations import MUTATIONS
from .play import play_seed

STEPS = 60


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = MUTATIONS[name]
    assert mutation.seed < 40
    for change in mutation.changes:
        monkeypatch.setattr(*change)
    with pytest.raises(Wrong):
        play_seed(mutation.seed, STEPS)
    monkeypatch.undo()
    play_seed(mutation.seed, STEPS)  # it is the fault that was found
