"""Promise: a kill or a power cut within a replica's append, truncation or new beginning leaves a prefix of
its leader's bytes, without a hole, and a sound store; the replica goes on from there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faulty import MODES, FaultyFiles
from replica_logs import closed, ends, log_bytes, opened, part_below, replica_of
from stores import killed_at_each_call, raw_batches

import segstore
from segstore.storage.log.replica import Replica

pytestmark = pytest.mark.kind("kills")

LED = raw_batches(range(60))
HALF = part_below(LED, 40)


def append(replica: Replica) -> None:
    replica.append_as_follower(LED[len(HALF) :])


def truncate(replica: Replica) -> None:
    replica.truncate_to(13)


def begin_anew(replica: Replica) -> None:
    replica.truncate_fully_and_start_at(10_000)


def begin_epoch(replica: Replica) -> None:
    replica.begin_epoch(7)


STEPS = {step.__name__: step for step in (append, truncate, begin_anew, begin_epoch)}


def prepared(path: Path, files: Any = None) -> tuple[segstore.PartitionLog, Replica]:
    """A replica with half of its leader's log, all of it flushed."""
    log = opened(path, files)
    replica = replica_of(log, 1 << 60)
    if log.log_end_offset == 0:
        replica.append_as_follower(HALF)
        log.flush()
    return log, replica


def assert_goes_on(path: Path, step: Callable[[Replica], None]) -> None:
    """The log is a prefix, and follows its leader again to the end."""
    log = opened(path)
    replica = replica_of(log)
    found, end = log_bytes(path / "t-0"), log.log_end_offset
    if step is begin_anew and not found:
        assert end in (0, 10_000)
        closed(log)
        assert segstore.check(path) == []
        return
    # A power cut may take the removals of a new beginning in any order: then the log has lost its begin, too.
    at = LED.find(found)
    assert at == 0 or (step is begin_anew and at > 0)
    assert end == (ends(found)[-1] if found else 0)
    if step in (append, begin_epoch):
        assert end >= 40
    elif step is truncate:
        assert end >= 10
    replica.truncate_to(end)  # the epoch that recovery has begun goes
    if step is not begin_epoch:
        replica.append_as_follower(LED[at + len(found) :])
        assert log_bytes(path / "t-0") == LED[at:]
    closed(log)
    assert segstore.check(path) == []


@pytest.mark.parametrize("name", STEPS)
def test_a_kill_at_each_call(tmp_path: Path, name: str) -> None:
    state = tmp_path / "state"
    closed(prepared(state)[0])
    count = 0

    def run(files: Any, path: Path) -> None:
        log, replica = prepared(path, files)
        STEPS[name](replica)
        closed(log)

    for _, path in killed_at_each_call(state, tmp_path, run):
        assert_goes_on(path, STEPS[name])
        count += 1
    assert count > 5


@pytest.mark.parametrize("name", STEPS)
def test_power_cuts(tmp_path: Path, rng: random.Random, name: str) -> None:
    (tmp_path / "disk").mkdir()
    files = FaultyFiles(tmp_path / "disk")
    log, replica = prepared(tmp_path / "disk" / "s", files)
    images: list[Any] = []
    files.watch = lambda call: images.append(files.image(rng.choice(list(MODES)), rng))
    STEPS[name](replica)
    files.watch = None
    images += [files.image(mode, rng) for mode in MODES]
    for number, image in enumerate(images):
        target = tmp_path / f"cut-{number}"
        target.mkdir()
        image.write(target)
        assert_goes_on(target / "s", STEPS[name])
    closed(log)
