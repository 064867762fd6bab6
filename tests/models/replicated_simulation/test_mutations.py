"""Promise: a fault in the shell or the engine of replicas breaks a run of the simulation."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from faulty.counts import record
from simulation.model import Wrong

from .mutations import MUTATIONS
from .play import play

pytestmark = pytest.mark.kind("simulation of replicas")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, changes, seed = MUTATIONS[name]
    for change in changes:
        monkeypatch.setattr(*change)
    with pytest.raises(Wrong) as found:
        play(steps, seed)
    assert not isinstance(found.value.__cause__, TypeError), "what is put in has the old signature"
    monkeypatch.undo()
    play(steps, seed)  # it is the fault that was found
    record("replicated simulation mutations found")
