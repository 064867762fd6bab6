"""An archiver that dies at any call leaves an archive from which the next one goes on, with all that was
told.
"""

from __future__ import annotations

import pytest
from archive_oracle import check_archive, list_of, partition_logs, store_logs
from archivers import archiver_of, settled
from struck_objects import AFTER, BEFORE, HALF, KilledError, StruckObjects, refused

import segstore
from segstore.archiving import archiver as archiver_module
from segstore.archiving.chain import read_state
from segstore.archiving.remote import RemoteFiles
from segstore.errors import ArchiveError

pytestmark = pytest.mark.kind("faults")

STEPS = 9
PARTS = 16
"""Each test tries each sixteenth call."""


@pytest.fixture(autouse=True)
def many_states(monkeypatch):
    monkeypatch.setattr(archiver_module, "COMMITS_A_STATE", 2)


def change(store, number):
    """Make the changes of one step."""
    if number == 0:
        store.create_topic("rolling", config={"segment.bytes": 2048})
        store.create_topic("other", partitions=2)
    rolling = store.partition("rolling", 0)
    for each in range(6):
        rolling.append(value=bytes([number, each]) * 150)
    if number == 3:
        store.alter_topic("other", {"retention.ms": 5_000_000})
    if number == 4:
        rolling.delete_records(rolling.high_watermark - 4)
        store.sweep()
    if number == 5:
        store.delete_topic("other")
        store.create_topic("other")
    if number != 7:
        store.partition("other", 0).append(value=b"other %d" % number)


class Told:
    """What the archivers of a store have told as archived."""

    def __init__(self, base, path):
        self.base, self.path, self.logs = base, path, {}

    def take(self):
        check_archive(self.base, self.path)
        self.logs = store_logs(self.path)

    def check(self):
        """Check that what was told is in the archive, but for segments that are in the log no more."""
        if not self.logs:
            return
        state = read_state(self.base)
        for key, logs in self.logs.items():
            found = state.partitions[key]
            held = partition_logs(self.base, found)
            gone = {each.base for each in list_of(self.base, found).segments if each.until is not None}
            for base, data in logs.items():
                assert base in gone or held[base].startswith(data), f"{key} at {base}"


def run(root, objects_of, told):
    """Run all steps; an archiver that was killed is followed by a new one."""
    with segstore.open(root / "store") as store:
        objects = objects_of(0)
        number, changed = 0, -1
        while number < STEPS:
            try:
                with archiver_of(root / "store", objects, grace_ms=0) as archiver:
                    while number < STEPS:
                        if changed < number:
                            change(store, number)
                            changed = number
                        settled(archiver)
                        told.take()
                        number += 1
            except (KilledError, ArchiveError):
                told.check()
                objects = objects_of(1)
    return objects


def calls_of(tmp_path):
    base = RemoteFiles(str(tmp_path / "counted" / "archive"))
    (tmp_path / "counted").mkdir()
    told = Told(base, tmp_path / "counted" / "store")
    return run(tmp_path / "counted", lambda _: StruckObjects(base), told).calls


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(
    ("when", "error", "dead"),
    [
        (BEFORE, KilledError, True),
        (AFTER, KilledError, True),
        (HALF, KilledError, True),
        (BEFORE, refused, False),
        (AFTER, refused, False),
    ],
    ids=["killed before", "killed after", "killed within", "refused", "answer lost"],
)
def test_an_archiver_is_struck_at_each_call(tmp_path, part, when, error, dead):
    calls = calls_of(tmp_path)
    assert calls > 60
    for at in range(part, calls, PARTS):
        root = tmp_path / f"{at}"
        root.mkdir()
        base = RemoteFiles(str(root / "archive"))
        made = [StruckObjects(base, at, when, error, dead), StruckObjects(base)]
        run(root, made.__getitem__, Told(base, root / "store"))
