"""R1, R5, R6, R10 to R13, R41: the effects of the core that change a log are carried out on the engine's log,
and noted in the core's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from replica_logs import closed, opened, replica_of
from stores import raw_batches

from segstore.errors import StorageError
from segstore.leader_epochs import EpochEnd
from segstore.mutex import Mutex
from segstore.replication.core.effects import AssignEpoch, Effects
from segstore.replication.core.follower import Follower
from segstore.replication.core.messages import FetchAnswer
from segstore.replication.fetched import brought
from segstore.replication.follower_log import FollowerLog, log_of
from segstore.storage.log.replica import Replica, Truncated

NEXT, LATER = raw_batches(range(10, 15), epoch=5), raw_batches(range(15, 20), epoch=9)


class Held(NamedTuple):
    """A replica with the offsets 0 to 9 of epoch 3, all shown, which follows in epoch 5."""

    replica: Replica
    role: Follower
    log: FollowerLog
    lock: Mutex
    cuts: list[tuple[int, int, EpochEnd | None]]

    def take(self, high_watermark: int, data: bytes = b"", start: int = 0, **fields: Any) -> bool:
        answer = FetchAnswer(None, high_watermark, start, 60)._replace(**fields)
        return self.log.take(self.role, self.role.fetch(-1), answer, brought(data) if data else None)

    def go_on(self, end: int) -> bool:
        return self.log.go_on(self.role, self.role.fetch(-1), FetchAnswer(None, 12, 0, end))

    def out_of_range(self, start: int, end: int) -> bool:
        request = self.role.fetch(-1)
        return self.log.apply(self.role.log, lambda: self.role.on_out_of_range(request, start, end))

    def lead(self) -> bool:
        def decide() -> Effects:
            self.role.log.epochs.assign(5, 10)
            return (AssignEpoch(5, 10),)

        return self.log.apply(self.role.log, decide)

    def begins_within_a_batch(self) -> bool:
        self.out_of_range(22, 60)
        return self.take(25, raw_batches(range(20, 25), epoch=5))


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    plain = opened(tmp_path / "store")
    replica = replica_of(plain)
    replica.append_as_follower(raw_batches(range(10), epoch=3), 10)
    lock, cuts = Mutex(), []

    def truncated(before: int, cut: Truncated, diverging: EpochEnd | None) -> None:
        cuts.append((before, cut.end_offset, diverging))

    log = FollowerLog(replica, lock, None, truncated)
    yield Held(replica, Follower(1, log_of(replica), 0, 5, 0), log, lock, cuts)
    closed(plain)


class After(NamedTuple):
    changes: bool
    start: int
    high_watermark: int
    end: int
    epochs: tuple[tuple[int, int], ...] = ((3, 0),)
    cuts: tuple[tuple[int, int, EpochEnd | None], ...] = ()


CASES: dict[str, tuple[Callable[[Held], bool], After]] = {
    "append": (lambda it: it.take(12, NEXT), After(True, 0, 12, 15, ((3, 0), (5, 10)))),
    "not of a later epoch": (
        lambda it: it.take(20, NEXT + LATER), After(True, 0, 15, 15, ((3, 0), (5, 10)))),
    "all of a later epoch, after a gap": (lambda it: it.take(12, LATER), After(False, 0, 10, 10)),
    "append, and the log start follows": (
        lambda it: it.take(12, NEXT, start=11), After(True, 11, 12, 15, ((5, 11),))),
    "append to an empty log that begins within the batch": (
        Held.begins_within_a_batch, After(True, 20, 25, 25, ((5, 20),))),
    "set the high watermark": (lambda it: it.take(4), After(False, 0, 4, 10)),
    "set the log start offset": (lambda it: it.take(10, start=5), After(True, 5, 10, 10, ((3, 5),))),
    "truncate, since epochs diverge": (
        lambda it: it.take(10, diverging=EpochEnd(3, 5)),
        After(True, 0, 5, 5, cuts=((10, 5, EpochEnd(3, 5)),))),
    "truncate, since the leader's log is shorter": (
        lambda it: it.out_of_range(0, 5), After(True, 0, 5, 5, cuts=((10, 5, None),))),
    "truncate fully, since the leader's log begins later": (
        lambda it: it.out_of_range(40, 60), After(True, 40, 40, 40, ())),
    "go on at the leader's end": (lambda it: it.go_on(60), After(True, 0, 12, 60, ((3, 0), (5, 60)))),
    "go on, which is there already": (lambda it: it.go_on(10), After(False, 0, 10, 10)),
    "assign an epoch": (Held.lead, After(True, 0, 10, 10, ((3, 0), (5, 10)))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_effect_changes_the_log_and_is_noted_in_the_core(name: str, held: Held) -> None:
    act, after = CASES[name]
    assert act(held) == after.changes
    replica, noted = held.replica, held.role.log
    ends = (replica.start_offset, replica.high_watermark, replica.log_end_offset)
    assert ends == (after.start, after.high_watermark, after.end)
    assert ends == (noted.start_offset, noted.high_watermark, noted.end_offset)
    assert replica.epochs == noted.epochs.entries == after.epochs
    assert held.cuts == [*after.cuts]


CHANGES: dict[str, tuple[str, Callable[[Held], bool]]] = {
    "append_checked": ("append_checked", lambda it: it.take(12, NEXT)),
    "set_start_offset": ("set_start_offset", lambda it: it.take(10, start=5)),
    "truncate_to": ("truncate_to", lambda it: it.out_of_range(0, 5)),
    "truncate_fully_and_start_at": ("truncate_fully_and_start_at", lambda it: it.out_of_range(40, 60)),
    "go_on_at": ("go_on_at", lambda it: it.go_on(60)),
    "lead": ("lead", Held.lead),
}


@pytest.mark.parametrize("name", CHANGES)
def test_no_disk_is_waited_for_under_the_lock(name: str, held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    call, act = CHANGES[name]
    change, locked = getattr(Replica, call), []

    def watched(replica: Replica, *given: Any) -> Any:
        locked.append(held.lock.owned)
        return change(replica, *given)

    monkeypatch.setattr(Replica, call, watched)
    act(held)
    assert locked == [False]


@pytest.mark.parametrize("name", [name for name in CHANGES if name not in ("set_start_offset", "lead")])
def test_the_core_does_not_hear_of_an_effect_that_failed(
    name: str, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, act = CHANGES[name]

    def fail(*given: Any) -> Any:
        raise StorageError(5, "the disk")

    monkeypatch.setattr(Replica, call, fail)
    with pytest.raises(StorageError):
        act(held)
    noted = held.role.log
    assert (noted.start_offset, noted.high_watermark, noted.end_offset) == (0, 10, 10)
    assert (noted.epochs.entries, held.cuts) == (((3, 0),), [])


def test_effects_in_memory_are_carried_out_under_the_lock(held: Held) -> None:
    locked = []

    def carry_out(effects: Effects) -> list[Any]:
        locked.append(held.lock.owned)
        return [effect for effect in effects if not held.log.shows(effect)]

    log = FollowerLog(held.replica, held.lock, carry_out)
    log.take(held.role, held.role.fetch(-1), FetchAnswer(None, 4, 0, 10), None)
    assert (locked, held.replica.high_watermark) == ([True], 4)
