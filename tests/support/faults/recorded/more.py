"""Operations of a store that need other processes, or stores of others."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

from faulty.driver import Scenario
from faulty.world import World
from places import GOLDEN

import segstore
from segstore.errors import StorageError
from segstore.files import Files
from segstore.storage.staging import Stager, seal

from .recorder import Recorder

PLACES = [("t", 0), ("t", 1), ("u", 0)]
DURABLE = {"flush_messages": 1, "segment_bytes": 2000, "index_interval_bytes": 150}
OLD = ("magic0-none-0", "magic0-gzip-0", "magic1-lz4-0")


# --- staged by other processes --------------------------------------------------------------------


def three_logs(world: World) -> None:
    for topic, partitions in (("t", 2), ("u", 1)):
        world.create(topic, partitions, **DURABLE)
    world.append(n=3)


def staged(world: World, parts: dict[tuple[str, int], list[bytes]]) -> object:
    """Return what a stager of these values hands over; the text of its error if one of its calls fails."""
    try:
        with Stager(world.root, files=world.files) as stager:
            for (topic, partition), values in parts.items():
                stager.append_batch(topic, partition, values, batch_bytes=200)
            return stager.finish()
    except StorageError as error:
        return str(error)


def stage_apart(world: World, name: str) -> None:
    """Stage in a forked process, and seal here: the store that is open adopts it."""
    parts = world.begin(name, PLACES, 12)
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(writing, pickle.dumps(staged(world, parts)))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        message = pickle.load(pipe)
    os.waitpid(child, 0)
    if isinstance(message, str):
        raise StorageError(message)
    seal(world.root, name, [message], files=world.files)
    world.ended(name, "there")


def staged_apart(world: World) -> None:
    stage_apart(world, "a")
    world.append()
    stage_apart(world, "b")


def staged_apart_closed(world: World) -> None:
    """Nobody has the store open: the sealer opens it."""
    world.close()
    stage_apart(world, "a")
    world.append()


MORE = {
    "staged by a process": Scenario(three_logs, staged_apart),
    "staged by a process, closed": Scenario(three_logs, staged_apart_closed),
}


# --- bytes of a broker before 0.11 -----------------------------------------------------------------


def upgrades(root: Path, recorder: Recorder) -> None:
    """Write old messages anew, and append to the same logs."""
    _copied(root / "s", Files())
    with segstore.open(root / "s") as store:
        held = {topic: _values(store, topic) for topic in store.topics()}
    recorder.begin()
    recorder.note(held=held)
    store = segstore.open(root / "s")
    assert all(done.error is None for done in store.upgrade())
    recorder.end(held=held)


def _copied(root: Path, files: Files) -> None:
    files.mkdir(root)
    for name in OLD:
        files.mkdir(root / name)
        for path in sorted((GOLDEN / "old" / "clean" / name).iterdir()):
            files.write_atomic(root / name / path.name, path.read_bytes())
    files.sync_dir(root)
    files.sync_dir(root.parent)


def _values(store: segstore.Store, topic: str) -> dict[int, bytes | None]:
    log, found = store.partition(topic), {}
    at = log.start_offset
    while at < log.end_offset:
        records = log.read(at)
        found.update({record.offset: record.value for record in records})
        at = records.next_offset
    return found


def judge_upgraded(root: Path, note: dict[str, dict[str, dict[int, bytes | None]]]) -> None:
    with segstore.open(root / "s") as store:
        assert {topic: _values(store, topic) for topic in store.topics()} == note["held"]
        assert all(done.error is None for done in store.upgrade())
        assert {topic: _values(store, topic) for topic in store.topics()} == note["held"]
    findings = list(segstore.check(root / "s"))
    assert findings == [], "\n".join(map(str, findings))
