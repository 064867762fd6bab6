"""`ArchivedLogs` follows an archive: it reads the commits since, and takes another claim's state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_archive import CLAIM, make_archive

import segstore
from segstore.archiving.archived_logs import ArchivedLogs
from segstore.archiving.chain import newer_state, read_state
from segstore.archiving.commit_format import pack_header
from segstore.archiving.object_names import COMMIT, STATE, ArchiverClaim, CommitName, claim_object
from segstore.archiving.remote import RemoteFiles
from segstore.archiving.state import ArchiveState, header_of


@pytest.fixture
def remote(tmp_path: Path) -> RemoteFiles:
    with segstore.open(tmp_path / "store") as store:
        store.create_topic("t", config={"segment.bytes": 1000})
        append(store, 20)
    return make_archive(tmp_path / "store", tmp_path / "archive")


def append(store: segstore.Store, n: int) -> None:
    for number in range(n):
        store.partition("t").append(b"%03d" % number * 20)


def commit(remote: RemoteFiles, name: CommitName, time: int) -> None:
    remote.write(str(name), [pack_header(header_of(name, time, [], [], {}))])


def state(remote: RemoteFiles, name: CommitName, time: int) -> None:
    """The newest state again, whole."""
    now = read_state(remote)
    entries = [each.to_json(each.pieces, 0) for each in now.partitions.values()]
    remote.write(str(name), [pack_header(header_of(name, time, now.topics.values(), entries, {}))])


def told(state: ArchiveState) -> tuple[str, int, int]:
    return str(state.name), state.time, sum(each.end for each in state.partitions.values())


def test_the_commits_since_are_read(remote: RemoteFiles) -> None:
    known = read_state(remote)
    assert newer_state(remote, known) is known
    for number in (3, 4):
        commit(remote, CommitName(CLAIM, number, COMMIT), 2_000 + number)
    known = newer_state(remote, known)
    assert told(known) == told(read_state(remote)) == (str(CommitName(CLAIM, 4, COMMIT)), 2_004, 20)


def test_a_state_in_place_of_a_commit_is_found(remote: RemoteFiles) -> None:
    known = read_state(remote)
    state(remote, CommitName(CLAIM, 3, STATE), 2_003)
    commit(remote, CommitName(CLAIM, 4, COMMIT), 2_004)
    assert told(newer_state(remote, known)) == told(read_state(remote))
    assert newer_state(remote, known).time == 2_004


def test_commits_that_were_deleted_are_not_needed(remote: RemoteFiles) -> None:
    known = read_state(remote)
    for number in (3, 4):
        commit(remote, CommitName(CLAIM, number, COMMIT), 2_000 + number)
    state(remote, CommitName(CLAIM, 5, STATE), 2_005)
    remote.delete([str(CommitName(CLAIM, number, COMMIT)) for number in (3, 4)])
    assert newer_state(remote, known).time == 2_005


def test_a_higher_claim_counts_once_it_has_a_state(remote: RemoteFiles, tmp_path: Path) -> None:
    higher = ArchiverClaim(2, "00000000000000bb")
    with ArchivedLogs(str(tmp_path / "archive")) as logs:
        remote.write(claim_object(higher), [b"{}"])
        logs.refresh()
        assert logs.log("t", 0).end_offset == 20
        with segstore.open(tmp_path / "store") as store:
            append(store, 5)
        make_archive(tmp_path / "store", tmp_path / "archive", claim=higher)
        log: Any = logs.log("t", 0)
        assert log.end_offset == 20
        logs.refresh()
        assert logs.log("t", 0) is log
        assert log.end_offset == 25
        found, at = [], 18
        while at < 25:
            records = log.read(at, 1 << 20)
            found += [each.offset for each in records]
            at = records.next_offset
        assert found == list(range(18, 25))
