"""Runs the scenarios of `faulty` under the recorder: its ledger is noted in the trace."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from faulty.driver import Scenario
from faulty.judging import settle
from faulty.ledger import Told
from faulty.world import QUIET, World, observe

import segstore
from segstore.errors import SegstoreError
from segstore.files import Files

from .recorder import Recorder


class PlainFiles(Files):
    """The files of the system, with what scenarios ask of faulty ones. It overrides no call, so that the
    engine takes its ways through C.
    """

    dead = False

    def __init__(self, recorder: Recorder) -> None:
        self.hits = int(recorder.refusing)


class RecordedWorld(World):
    """A world whose ledger is noted before each use of its store or files, and when something is durable."""

    def __init__(self, root: Path, recorder: Recorder) -> None:
        self._recorder, self._plain = recorder, PlainFiles(recorder)
        super().__init__(root, self._plain, Told())  # type: ignore[arg-type]

    @property
    def store(self) -> segstore.Store:
        self.note()
        return super().store

    @property
    def files(self) -> Any:  # type: ignore[override]
        """The files; who asks for them is about to use them."""
        self.note()
        return self._plain

    @files.setter
    def files(self, files: Any) -> None:
        """They are always the same."""

    def note(self) -> None:
        """Note the ledger."""
        if hasattr(self, "clock"):  # not while the world is being made
            self._recorder.note(**self.state())

    def state(self) -> dict[str, Any]:
        told = {name: value for name, value in vars(self.told.freeze()).items() if name != "guard"}
        return {"told": told, "now": self.clock.now}

    def flushed(self, topic: str, partition: int = 0) -> None:
        super().flushed(topic, partition)
        self.note()

    def flush_all(self) -> None:
        super().flush_all()
        self.note()

    def commit(self, offset: int) -> None:
        super().commit(offset)
        self.note()

    def ended(self, name: str, state: str) -> None:
        super().ended(name, state)
        self.note()


def told_of(note: dict[str, Any]) -> Told:
    """Return the ledger that was noted."""
    told = Told()
    vars(told).update(note["told"])
    return told


def run(scenario: Scenario, root: Path, recorder: Recorder) -> None:
    """Build the scenario's store, and run it. If a sync is to fail, the store is flushed, closed and opened
    again behind it.
    """
    world = RecordedWorld(root, recorder)
    scenario.build(world)
    if scenario.crashed:
        world = _crashed(world)
    elif world._store is not None:
        world.close()
    scenario.before(world)
    recorder.begin()
    world.note()
    if recorder.refusing:
        for step in (partial(scenario.run, world), world.flush_all, world.close, world.flush_all):
            with suppress(SegstoreError):
                step()
    else:
        scenario.run(world)
    recorder.end(**world.state())


def _crashed(world: RecordedWorld) -> RecordedWorld:
    """Leave the store as a SIGKILL does, and return a world in which it can be opened."""
    again = RecordedWorld(world.root, world._recorder)
    again.told, again.count, again.clock = world.told, world.count, world.clock
    assert world._store is not None
    world._store.engine.abandon()
    world._store.context.closed = True
    world._store.engine._held.close()  # type: ignore[union-attr]
    return again


def recover(root: Path) -> None:
    """Open a store as its judge does."""
    with segstore.open(root, config=QUIET) as store:
        settle(store)
        observe(store)
