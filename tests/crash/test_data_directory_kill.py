"""Promise: a kill or a power cut in a data directory of a replicated store leaves replicas that their leader
can go on with: a prefix of its bytes, or an empty log where a new one was begun, no epoch of their own, and
just the partitions of the settings.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import MODES, FaultyFiles
from replica_logs import ends, log_bytes, part_below
from replicated_writers import open_writer, topic
from stores import killed_at_each_call, raw_batches

import segstore
from segstore.records import scan
from segstore.storage.log.append import append_one
from segstore.storage.log.replica import Replica
from segstore.storage.store.writer import StoreWriter

pytestmark = pytest.mark.kind("long kills")

LED = raw_batches(range(60))
HALF = part_below(LED, 40)
FIRST = part_below(LED, 20)
SMALL = {"segment_bytes": 300, "index_interval_bytes": 100}


def append(replica: Replica) -> None:
    replica.append_as_follower(LED[len(HALF) :])


def truncate(replica: Replica) -> None:
    replica.truncate_to(23)


def begin_above(replica: Replica) -> None:
    replica.truncate_fully_and_start_at(10_000)


def begin_below(replica: Replica) -> None:
    replica.truncate_to(5)


def lead(replica: Replica) -> None:
    replica.lead(7)


STEPS = {step.__name__: step for step in (append, truncate, begin_above, begin_below, lead)}
NEW_STARTS = {begin_above: 10_000, begin_below: 5}


def prepared(path: Path, files: Any = None) -> tuple[StoreWriter, Replica]:
    """A replica that begins at offset 20, up to offset 40 of its leader's log, all of it flushed."""
    writer = open_writer(path, files)
    writer.topic_admin.make(topic(**SMALL))
    replica = writer.partitions.replica("t", 0)
    if replica.log_end_offset == 0:
        replica.truncate_fully_and_start_at(20)
        replica.append_as_follower(HALF[len(FIRST) :])
        replica.set_high_watermark(30)
        writer.partitions.flush()
    return writer, replica


def assert_goes_on(path: Path, step: Callable[[Replica], None]) -> None:
    writer = open_writer(path)
    replica = writer.partitions.replica("t", 0)
    found, end = log_bytes(path / "t-0"), replica.log_end_offset
    start = NEW_STARTS.get(step)
    if end == start:
        assert (found, replica.epochs, replica.start_offset) == (b"", (), start)
    else:
        assert LED[len(FIRST) :].startswith(found)
        assert end == (ends(found)[-1] if found else 20)
        assert end >= (20 if step is truncate else 40)
        assert replica.start_offset == 20
        assert set(replica.epochs) <= {(0, 20), (7, 40)}
        replica.truncate_to(end)
        replica.append_as_follower(LED[len(FIRST) + len(found) :])
        assert log_bytes(path / "t-0") == LED[len(FIRST) :]
    writer.close(broker_epoch=1)
    assert segstore.check(path) == []


@pytest.mark.parametrize("name", STEPS)
def test_a_kill_at_each_call(tmp_path: Path, name: str) -> None:
    state, count = tmp_path / "state", 0
    prepared(state)[0].close()

    def run(files: Any, path: Path) -> None:
        writer, replica = prepared(path, files)
        STEPS[name](replica)
        writer.close()

    for _, path in killed_at_each_call(state, tmp_path, run):
        assert_goes_on(path, STEPS[name])
        count += 1
    assert count > 5


@pytest.mark.parametrize("name", STEPS)
def test_power_cuts(tmp_path: Path, rng: random.Random, name: str) -> None:
    (tmp_path / "disk").mkdir()
    files = FaultyFiles(tmp_path / "disk")
    writer, replica = prepared(tmp_path / "disk" / "s", files)
    images: list[Any] = []
    files.watch = lambda call: images.extend(files.image(mode, rng) for mode in MODES)
    STEPS[name](replica)
    files.watch = None
    images += [files.image(mode, rng) for mode in MODES]
    for number, image in enumerate(images):
        target = tmp_path / f"cut-{number}"
        target.mkdir()
        image.write(target)
        assert_goes_on(target / "s", STEPS[name])
    writer.let_go()


def test_r3_a_leader_epoch_that_a_power_cut_takes_from_its_file_is_found_in_the_batches(
    tmp_path: Path, rng: random.Random
) -> None:
    """An election syncs no file; a flush vouches for the epochs, too."""
    (tmp_path / "disk").mkdir()
    files = FaultyFiles(tmp_path / "disk")
    writer, replica = prepared(tmp_path / "disk" / "s", files)
    images: list[Any] = []
    files.watch = lambda call: images.extend(files.image(mode, rng) for mode in MODES)
    for epoch in (7, 9):
        replica.lead(epoch)
        append_one(writer.partition("t", 0), b"of epoch %d" % epoch, None, (), None)
    files.watch = None
    writer.partitions.flush()
    flushed = files.image("none", rng)
    assert_epochs_of_batches(tmp_path / "flushed", flushed, {(0, 20), (7, 40), (9, 41)}, damaged=False)
    for number, image in enumerate(images):
        assert_epochs_of_batches(tmp_path / f"cut-{number}", image)
    writer.let_go()


def assert_epochs_of_batches(
    target: Path, image: Any, expected: set[tuple[int, int]] | None = None, damaged: bool = True
) -> None:
    target.mkdir()
    image.write(target)
    path = target / "s"
    if not damaged:
        assert (path / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n3\n0 20\n7 40\n9 41\n"
    writer = open_writer(path)
    replica = writer.partitions.replica("t", 0)
    batches = scan(log_bytes(path / "t-0"))[0]
    epochs, first = np.unique(batches["leader_epoch"], return_index=True)
    found = set(zip(epochs.tolist(), batches["base_offset"][first].tolist(), strict=True))
    assert set(replica.epochs) == found
    assert expected is None or found == expected
    writer.close(broker_epoch=1)
    assert segstore.check(path) == []


def test_a_kill_while_partitions_come_and_go(tmp_path: Path) -> None:
    state, count = tmp_path / "state", 0
    writer = open_writer(state)
    writer.topic_admin.make(topic(partitions=(0, 1)))
    for n in (0, 1):
        writer.partitions.replica("t", n).append_as_follower(HALF)
    writer.close()

    def run(files: Any, path: Path) -> None:
        writer = open_writer(path, files)
        writer.topic_admin.make(topic(partitions=(1, 2), **SMALL))
        writer.close()

    for _, path in killed_at_each_call(state, tmp_path, run):
        writer = open_writer(path)
        there = writer.topics["t"].partition_ids
        assert there in ((0, 1), (1,), (1, 2))
        assert writer.partitions.replica("t", 1).log_end_offset == 40
        if 0 in there:
            assert writer.partitions.replica("t", 0).log_end_offset == 40
        wanted = topic(partitions=(0, 1, 2), **SMALL)
        assert writer.topic_admin.make(wanted) == wanted
        ends_now = [writer.partitions.replica("t", n).log_end_offset for n in (0, 1, 2)]
        assert ends_now == [40 if 0 in there else 0, 40, 0]
        writer.close()
        assert segstore.check(path) == []
        count += 1
    assert count > 10
