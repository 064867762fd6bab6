"""Promise: replicas that differ where readers see them are found, and those that differ below are not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from simulation.model import Wrong
from stores import Clock

import segstore

from .judge import equal

pytestmark = pytest.mark.kind("simulation of replicas")


def replica(root: Path, values: Sequence[bytes]) -> Path:
    """A partition's directory, with a batch of each value."""
    with segstore.open(root, clock=Clock()) as store:
        store.create_topic("t", partitions=1)
        log = store.partition("t", 0)
        for value in values:
            log.append(value)
    return root / "t-0"


SAME = [b"a", b"b", b"c", b"d"]
OTHER_START = [b"x", b"b", b"c", b"d"]
CASES = {
    "the same": ([(SAME, 0), (SAME, 0)], True),
    "other records below both log starts": ([(SAME, 1), (OTHER_START, 1)], True),
    "other records below the later log start": ([(SAME, 1), (OTHER_START, 0)], True),
    "another record at the later log start": ([(SAME, 0), (OTHER_START, 0)], False),
    "another record above the log starts": ([(SAME, 1), ([b"a", b"b", b"x", b"d"], 1)], False),
    "another last record": ([(SAME, 3), ([b"a", b"b", b"c", b"x"], 3)], False),
    "one lacks the last record": ([(SAME, 1), (SAME[:3], 1)], False),
    "one lacks all records that were not deleted": ([(SAME, 3), (SAME[:3], 3)], False),
    "all was deleted": ([(SAME, 4), (OTHER_START, 4)], True),
    "two of three differ, and the third one begins above": (
        [(SAME, 0), (OTHER_START, 0), (SAME, 1)], False),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_p9_replicas_are_compared_from_the_later_log_start_on(name: str, tmp_path: Path) -> None:
    logs, same = CASES[name]
    starts = {replica(tmp_path / str(at), values): start for at, (values, start) in enumerate(logs)}
    if same:
        equal(starts)
        return
    with pytest.raises(Wrong, match="differ from"):
        equal(starts)
