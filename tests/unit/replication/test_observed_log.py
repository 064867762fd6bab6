"""Whether a replica's log has what lies below a position of another one's, by leader epochs (R4, R37)."""

from __future__ import annotations

from pathlib import Path

import pytest

import segstore
from segstore.errors import ReplicaOfflineError
from segstore.replication.core.registration import PartitionRegistration
from segstore.replication.observed_log import ObservedLog, OffsetAndEpoch
from segstore.replication.replicated_reader import in_sync

# A log with offsets 0 to 9, whose leader epochs 0, 2 and 5 begin at 0, 3 and 7.
AGREED: dict[str, tuple[OffsetAndEpoch, int]] = {
    "all of it": (OffsetAndEpoch(10, 5), 10),
    "within the latest epoch": (OffsetAndEpoch(8, 5), 8),
    "at the start of an epoch": (OffsetAndEpoch(7, 2), 7),
    "within an epoch": (OffsetAndEpoch(2, 0), 2),
    "longer in the latest epoch": (OffsetAndEpoch(12, 5), 10),
    "longer in an epoch": (OffsetAndEpoch(9, 2), 7),
    "longer in the first epoch": (OffsetAndEpoch(4, 0), 3),
    "an epoch that is not there": (OffsetAndEpoch(5, 1), 3),
    "an epoch that is not there, of a shorter log": (OffsetAndEpoch(2, 1), 1),
    "an epoch above the latest": (OffsetAndEpoch(8, 6), -1),
    "no epoch": (OffsetAndEpoch(6), 6),
    "no epoch, a longer log": (OffsetAndEpoch(14), 10),
    "nothing": (OffsetAndEpoch(0), 0),
}


@pytest.mark.parametrize("name", AGREED)
def test_r37_up_to_where_two_logs_agree(name: str, tmp_path: Path) -> None:
    position, expected = AGREED[name]
    with segstore.open(tmp_path) as store:
        store.create_topic("t")
        store.partition("t").append_batch([b"value"] * 10)
    (tmp_path / "t-0" / "leader-epoch-checkpoint").write_text("0\n3\n0 0\n2 3\n5 7\n")
    with segstore.open(tmp_path, "r") as reader:
        log = ObservedLog(reader, "t", 0)
        assert log.agreed(position) == expected
        assert log.holds(position) == (expected == position.offset)
        assert [log.position(offset).epoch for offset in (0, 1, 3, 4, 7, 8, 10, 11)] == [
            *(-1, 0, 0, 2, 2, 5, 5, -1)
        ]


def test_what_another_replica_has_shown_as_committed_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where this one shows less: its own last stable offset lies below the end that was planned."""
    with segstore.open(tmp_path) as store:
        store.create_topic("t")
        store.partition("t").append_batch([b"value"] * 10, batch_bytes=10)
        with segstore.open(tmp_path, "r") as reader:
            log = ObservedLog(reader, "t", 0)
            less = log._source.written()._replace(stable_offset=4)
            monkeypatch.setattr(log._source, "written", lambda: less)
            found = log.read_below(0, 1 << 20, log.position(10), isolation_level="read_committed")
            assert found.next_offset == 10
            with pytest.raises(ReplicaOfflineError, match="does not have the records up to offset 12"):
                log.read_below(11, 1 << 20, OffsetAndEpoch(12, 0))


IN_SYNC: dict[str, tuple[PartitionRegistration, tuple[int, ...]]] = {
    "the leader first": (PartitionRegistration((0, 1, 2), (0, 1, 2), 1), (1, 0, 2)),
    "who is not in sync is not among them": (PartitionRegistration((0, 1, 2), (2,), 2), (2,)),
    "eligible leaders are": (PartitionRegistration((0, 1, 2), (2,), 2, elr=(0,)), (2, 0)),
    "without a leader": (PartitionRegistration((0, 1), (), -1, elr=(1,)), (1,)),
    "nobody": (PartitionRegistration((0, 1), (), -1, last_known_elr=(1,)), ()),
}


@pytest.mark.parametrize("name", IN_SYNC)
def test_which_replicas_may_be_read(name: str) -> None:
    state, expected = IN_SYNC[name]
    assert in_sync(state) == expected
