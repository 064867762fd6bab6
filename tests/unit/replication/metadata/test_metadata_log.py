"""Promise: what `append` returned for is there after the next open with any majority, and no epoch is given
twice.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import MUTATING, FailingFiles, HookedFiles
from metadata_logs import ALL, Quorum, assert_sound, log_bytes, numbered, numbers, quorum, voter_of
from refused_threads import refused
from stores import as_the_same
from waiting import until

import segstore
from segstore.errors import (
    ForkedError,
    IllegalStateError,
    InvalidArgumentError,
    QuorumLostError,
    StaleDirectoryError,
    StorageError,
)
from segstore.records import scan
from segstore.replication.metadata.metadata_log import MetadataLog
from segstore.replication.metadata.quorum_state import QuorumState
from segstore.replication.metadata.records import NoOpRecord
from segstore.replication.metadata.voter_log import VoterLog

PAIRS = list(itertools.combinations(ALL, 2))


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    assert_sound(tmp_path)


class HangingFiles(HookedFiles):
    """Files whose syncs hang while `hangs` is set; `entered` says that one does."""

    def __init__(self) -> None:
        self.hangs, self.entered, self.free = False, threading.Event(), threading.Event()

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.hangs and name == "sync":
            self.entered.set()
            assert self.free.wait(60)


def epoch_file(root: Path, voter: int) -> Path:
    return root / str(voter) / "__cluster_metadata-0" / "quorum-state"


def batch_epochs(root: Path, voter: int) -> list[int]:
    return [int(epoch) for epoch in scan(log_bytes(root, voter))[0]["leader_epoch"]]


# --- one majority after the other ----------------------------------------------------------------


def test_r31_any_majority_has_what_was_appended(root: Path) -> None:
    expected: list[int] = []
    epochs: list[int] = []
    for number, ids in enumerate([ALL, *PAIRS, *PAIRS[::-1], ALL]):
        with quorum(root, ids) as opened:
            assert numbers(opened.log) == expected
            first = opened.log.append([numbered(number), NoOpRecord()])
            assert first == opened.log.next_offset - 2
            expected.append(number)
            assert numbers(opened.log) == expected
            assert [offset for offset, _ in opened.log.replay()] == list(range(opened.log.next_offset))
            epochs.append(opened.log.epoch)
    assert epochs == sorted(set(epochs))
    assert log_bytes(root, 0) == log_bytes(root, 1) == log_bytes(root, 2)
    assert sorted(set(batch_epochs(root, 0))) == epochs


def test_records_of_one_append_are_one_batch(root: Path) -> None:
    with quorum(root) as opened:
        records = [numbered(number % 1000) for number in range(5000)]
        opened.log.append(records)
        assert numbers(opened.log) == [record.feature_level for record in records]
    assert scan(log_bytes(root, 0))[0]["count"].tolist() == [1, 5000]


def test_a_stale_voter_is_caught_up(root: Path) -> None:
    with quorum(root) as opened:
        opened.log.append([numbered(1)])
    shutil.copytree(root / "2", root / "old")
    with quorum(root, (0, 1)) as opened:
        opened.log.append([numbered(2)])
    with quorum(root) as opened:
        assert numbers(opened.log) == [1, 2]
    shutil.rmtree(root / "2")
    (root / "old").rename(root / "2")
    with quorum(root, (1, 2)) as opened:
        assert numbers(opened.log) == [1, 2]
    assert log_bytes(root, 1) == log_bytes(root, 2)


def test_one_voter_of_one_is_a_majority(root: Path) -> None:
    with quorum(root, (0,), total=1) as opened:
        opened.log.append([numbered(1)])
    with quorum(root, (0,), total=1) as opened:
        assert numbers(opened.log) == [1]


def tail_of_one(root: Path, voter: int, number: int) -> None:
    """Leave a record that only one voter has: the others fail before they write it."""
    files = {id_: FailingFiles(MUTATING, OSError(5, "injected"), nth=0) for id_ in ALL if id_ != voter}
    opened = Quorum(root, files=files)
    for each in files.values():
        each.arm(1, 1 << 30)
    with pytest.raises(QuorumLostError):
        opened.log.append([numbered(number)])
    opened.close()


@pytest.mark.parametrize("pair", PAIRS)
def test_tails_that_no_majority_has_go_or_stay_and_all_agree(root: Path, pair: tuple[int, ...]) -> None:
    with quorum(root) as opened:
        opened.log.append([numbered(1)])
    tail_of_one(root, 2, 2)
    with quorum(root, (0, 1)) as opened:
        assert numbers(opened.log) == [1]
        opened.log.append([numbered(3)])
    with quorum(root, pair) as opened:
        assert numbers(opened.log) == [1, 3]
    with quorum(root) as opened:
        assert numbers(opened.log) == [1, 3]
    assert log_bytes(root, 0) == log_bytes(root, 1) == log_bytes(root, 2)


def test_two_diverging_tails_become_one_log(root: Path) -> None:
    with quorum(root) as opened:
        opened.log.append([numbered(1)])
    for id_ in (0, 1):
        shutil.copytree(root / str(id_), root / f"before-{id_}")
    tail_of_one(root, 0, 2)
    shutil.copytree(root / "0", root / "tail-0")
    with quorum(root, (1, 2)) as opened:
        opened.log.append([numbered(3), numbered(4)])
    with quorum(root, (0, 2)) as opened:
        assert numbers(opened.log) == [1, 3, 4]
    with quorum(root) as opened:
        assert numbers(opened.log) == [1, 3, 4]
    assert log_bytes(root, 0) == log_bytes(root, 1) == log_bytes(root, 2)


# --- epochs --------------------------------------------------------------------------------------


def test_r2_an_epoch_that_one_voter_wrote_under_is_not_given_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Voter 2 alone gets the first batch of an epoch, at another offset than that where the next opening
    begins, which knows nothing of that batch.
    """
    with quorum(root) as opened:
        opened.log.append([numbered(1)])
    tail_of_one(root, 0, 2)
    files = FailingFiles({"pwrite"}, OSError(5, "injected"), nth=0)
    original = VoterLog.begin_epoch

    def begun(voter: VoterLog, state: QuorumState) -> None:
        original(voter, state)
        if voter.id == 1:
            files.arm(1, 1 << 30)  # the epoch is durable, and no batch gets there

    monkeypatch.setattr(VoterLog, "begin_epoch", begun)
    with pytest.raises(QuorumLostError):
        Quorum(root, (1, 2), files={1: files})
    monkeypatch.undo()
    alone = batch_epochs(root, 2)[-1]
    assert alone > max(batch_epochs(root, 0) + batch_epochs(root, 1))
    with quorum(root, (0, 1)) as opened:
        assert opened.log.epoch > alone
        for number in (3, 4, 5):
            opened.log.append([numbered(number)])
    with quorum(root) as opened:
        assert (opened.lost, numbers(opened.log)) == ([], [1, 2, 3, 4, 5])
    assert log_bytes(root, 0) == log_bytes(root, 1) == log_bytes(root, 2)


def test_an_epoch_without_batches_does_not_make_a_log_the_largest(root: Path) -> None:
    with quorum(root) as opened:
        opened.log.append([numbered(1)])
    with quorum(root, (1, 2)) as opened:
        opened.log.append([numbered(2)])
    stale = epoch_file(root, 0)
    stale.write_text(json.dumps({**json.loads(stale.read_text()), "leaderEpoch": 50}))
    with quorum(root, (0, 1)) as opened:
        assert numbers(opened.log) == [1, 2]
        assert opened.log.epoch == 51


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"data_version":1}',
        '{"data_version":0,"leaderEpoch":1}',
        '{"data_version":1,"leaderEpoch":-2}',
        '{"data_version":0,"leaderEpoch":1,"currentVoters":[{"voterId":-1}]}',
        '{"data_version":0,"leaderEpoch":1,"currentVoters":[7]}',
    ],
)
def test_a_voter_whose_epoch_is_damaged_is_left_out(root: Path, text: str) -> None:
    with quorum(root) as opened:
        opened.log.append([numbered(1)])
    epoch_file(root, 1).write_text(text)
    with quorum(root) as opened:
        assert opened.lost == [1]
        assert opened.log.voters == (0, 2)
        assert numbers(opened.log) == [1]
    epoch_file(root, 2).write_text(text)
    with pytest.raises(QuorumLostError, match=r"voter 1: .*quorum-state"):
        Quorum(root)


# --- majorities ----------------------------------------------------------------------------------


def test_r31_below_a_majority_nothing_is_opened(root: Path) -> None:
    with quorum(root) as opened:
        opened.log.append([numbered(1)])
    with pytest.raises(QuorumLostError, match="2 of the 3 voters"):
        Quorum(root, (1,))
    with quorum(root, (0, 1)) as opened:
        assert numbers(opened.log) == [1]


def test_voters_that_are_there_twice_are_refused(root: Path) -> None:
    with quorum(root, (0, 1)) as opened:
        for voters in ([*opened.voters(), opened.voters()[0]], [*opened.voters(), *opened.voters()]):
            with pytest.raises(InvalidArgumentError, match="different"):
                MetadataLog.open(voters, 3)


def test_r31_nobody_waits_for_a_voter_that_was_lost_by_the_new_epoch(root: Path) -> None:
    """The log counted it as live: if another one failed, an append waited for ever for its answer."""
    files = {id_: FailingFiles({"pwrite"}, OSError(5, "injected"), nth=0) for id_ in (1, 2)}
    with quorum(root):
        pass
    begin_epoch = VoterLog.begin_epoch

    def failing(self: VoterLog, state: QuorumState) -> None:
        if self.id == 1:
            raise StorageError(5, "injected")
        begin_epoch(self, state)

    with pytest.MonkeyPatch.context() as planted:
        planted.setattr(VoterLog, "begin_epoch", failing)
        opened = Quorum(root, files=files)
    assert opened.lost == [1]
    assert opened.log.voters == (0, 2)
    files[2].arm()
    with pytest.raises(QuorumLostError, match=r"voter 2: .*injected"):
        opened.log.append([numbered(1)])
    opened.close()


def test_r31_a_lost_majority_is_lost_for_good(root: Path) -> None:
    files = {id_: FailingFiles({"sync"}, OSError(5, "injected"), nth=0) for id_ in (1, 2)}
    opened = Quorum(root, files=files)
    opened.log.append([numbered(1)])
    files[1].arm()
    opened.log.append([numbered(2)])
    files[2].arm()
    with pytest.raises(QuorumLostError, match=r"voter 1: .*injected.*voter 2: .*injected"):
        opened.log.append([numbered(3)])
    files[2].arm(0)
    with pytest.raises(QuorumLostError):
        opened.log.append([numbered(4)])
    opened.close()
    assert sorted(opened.lost) == [1, 2]
    with quorum(root) as again:
        assert numbers(again.log) in ([1, 2], [1, 2, 3])


def test_an_append_of_nothing_is_refused(root: Path) -> None:
    with quorum(root) as opened:
        with pytest.raises(InvalidArgumentError, match="at least one"):
            opened.log.append([])
        opened.log.append([numbered(1)])
        assert numbers(opened.log) == [1]


def test_nothing_is_appended_once_closed(root: Path) -> None:
    with quorum(root) as opened:
        opened.log.close()
        with pytest.raises(QuorumLostError, match="closed"):
            opened.log.append([numbered(1)])


# --- disks that hang -----------------------------------------------------------------------------


def test_a_voter_that_hangs_delays_nobody(root: Path) -> None:
    files = HangingFiles()
    with quorum(root, files={1: files}) as opened:
        files.hangs = True
        for number in range(20):
            opened.log.append([numbered(number)])
        assert files.entered.wait(60)
        assert numbers(opened.log) == list(range(20))
        files.hangs = False
        files.free.set()
    assert opened.lost == []
    assert log_bytes(root, 0) == log_bytes(root, 1) == log_bytes(root, 2)  # in order, all of it


def test_an_append_goes_on_without_a_voter_that_is_given_up(root: Path) -> None:
    files = {1: HangingFiles(), 2: HangingFiles()}
    with quorum(root, files=files) as opened:
        files[1].hangs = files[2].hangs = True
        raised: list[BaseException] = []

        def append() -> None:
            try:
                opened.log.append([numbered(1)])
            except QuorumLostError as error:
                raised.append(error)

        thread = threading.Thread(target=append)
        thread.start()
        assert files[1].entered.wait(60)
        assert files[2].entered.wait(60)
        opened.log.lose(1)
        opened.log.lose(2)
        thread.join(60)
        assert len(raised) == 1
        for each in files.values():
            each.hangs = False
            each.free.set()
    assert opened.lost == []


# --- voters that come and go ---------------------------------------------------------------------


def test_a_voter_that_came_back_counts_again(root: Path) -> None:
    with quorum(root) as opened:
        opened.log.append([numbered(1)])
    with quorum(root, (0, 1)) as opened:
        opened.log.append([numbered(2)])
        opened.stores[2] = segstore.open(root / "2")
        opened.log.add(voter_of(2, opened.stores[2]))
        assert opened.log.voters == ALL
        opened.log.lose(0)
        opened.log.append([numbered(3)])
    with quorum(root, (0, 2)) as opened:
        assert numbers(opened.log) == [1, 2, 3]


def test_an_empty_directory_takes_the_place_of_a_lost_one(root: Path) -> None:
    with quorum(root) as opened:
        opened.log.append([numbered(1)])
        opened.log.lose(2)
        opened.stores[2].close()
        shutil.rmtree(root / "2")
        opened.stores[2] = segstore.open(root / "2")
        opened.log.add(voter_of(2, opened.stores[2]))
        opened.log.append([numbered(2)])
    assert log_bytes(root, 2) == log_bytes(root, 0)


def test_a_voter_that_was_given_up_may_be_closed(root: Path) -> None:
    with quorum(root) as opened:
        opened.log.lose(0)
        opened.stores[0].close()
        opened.log.append([numbered(1)])
        assert numbers(opened.log) == [1]
        assert opened.log.voters == (1, 2)


def test_no_thread_is_left(root: Path) -> None:
    before = {*threading.enumerate()}
    with quorum(root) as opened:
        opened.log.lose(2)
        opened.stores[2].close()
        opened.stores[2] = segstore.open(root / "2")
        opened.log.add(voter_of(2, opened.stores[2]))
        opened.log.append([numbered(1)])
    until(lambda: not any(t.name.startswith("segstore-metadata") for t in {*threading.enumerate()} - before))


def test_r31_an_open_that_gets_no_thread_waits_for_none(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with refused("segstore-metadata-1"), pytest.raises(IllegalStateError, match="no more threads"):
        Quorum(root)
    assert "still writes" not in caplog.text
    with quorum(root) as opened:
        opened.log.append([numbered(1)])


def test_who_counts_already_is_not_added(root: Path) -> None:
    with quorum(root) as opened:
        for id_ in (1, 3):
            with pytest.raises(InvalidArgumentError, match="does not count"):
                opened.log.add(voter_of(id_, opened.stores[1]))
        opened.log.append([numbered(1)])


def test_a_directory_with_a_later_log_is_stale(root: Path) -> None:
    with quorum(root) as opened:
        opened.log.append([numbered(1)])
    as_the_same(Path(shutil.copytree(root / "0", root / "0-old")))
    as_the_same(Path(shutil.copytree(root / "1", root / "1-old")))
    for _ in range(2):
        with quorum(root) as opened:
            opened.log.append([numbered(2)])
    for id_ in (0, 1):
        shutil.rmtree(root / str(id_))
        (root / f"{id_}-old").rename(root / str(id_))
    before = log_bytes(root, 2)
    with quorum(root, (0, 1)) as opened:
        opened.stores[2] = segstore.open(root / "2")
        with pytest.raises(StaleDirectoryError, match="not this store's"):
            opened.log.add(voter_of(2, opened.stores[2]))
        opened.log.append([numbered(3)])
        assert opened.log.voters == (0, 1)
    assert log_bytes(root, 2) == before


# --- forks and interrupts ------------------------------------------------------------------------


@pytest.mark.kind("programs")
def test_a_fork_does_not_hang(root: Path) -> None:
    with quorum(root) as opened:
        opened.log.append([numbered(1)])
        child = os.fork()
        if not child:
            code = 1
            try:
                opened.log.append([numbered(2)])
            except ForkedError:
                opened.log.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        opened.log.append([numbered(3)])
        assert numbers(opened.log) == [1, 3]


def test_after_an_interrupt_nothing_is_appended_any_more(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one voter was asked: what is appended next would leave a hole in the others."""
    with quorum(root) as opened:
        opened.log.append([numbered(1)])

        def interrupted(voter: VoterLog, *args: Any) -> None:
            if voter.id == 1:
                raise KeyboardInterrupt
            original(voter, *args)

        original = VoterLog.post
        monkeypatch.setattr(VoterLog, "post", interrupted)
        with pytest.raises(KeyboardInterrupt):
            opened.log.append([numbered(2)])
        monkeypatch.undo()
        with pytest.raises(QuorumLostError, match="interrupted"):
            opened.log.append([numbered(3)])
    with quorum(root) as opened:
        assert numbers(opened.log) in ([1], [1, 2])
