"""`ReplicatedStore.heal`: repairs replicas whose files are damaged, by copying records from undamaged
replicas.

On disk the log of a damaged replica is truncated at the offset of the damage, and copies of the removed
segments are put into the quarantine. The replica then fetches the removed records again. Before the
truncation the replica is durably removed from ISR and ELR. So the replica can't be elected, and the high
watermark does not wait for it, until it has all records again. If the damaged replica was the leader, an
undamaged replica is elected. If the process crashes, the replica is an ordinary follower outside of the ISR.
Threads: any, but one `heal` of a partition at a time.

Damage is counted in whole segments. Replica A, although damaged, may be the source of replica B if the damage
of A ends at or below the offset from which B must be copied. So if two replicas are damaged at different
offsets, the replica whose damage has the higher offset is healed first, and can then be the source of the
other replica.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from segstore import names
from segstore.errors import KafkaTimeoutError, NoSoundReplicaError, ReplicaOfflineError
from segstore.integers import INT64_MAX
from segstore.replication.core.controller import Controller
from segstore.replication.metadata.image import PartitionKey
from segstore.replication.quorum_controller import Decision
from segstore.storage.check.check import CheckedPartition, check_partition
from segstore.storage.finding import Finding

if TYPE_CHECKING:
    from segstore.replication.data_directory import DataDirectory
    from segstore.replication.local_replica import LocalReplica
    from segstore.replication.replica_manager import ReplicaManager
    from segstore.replication.replicated_writer import ReplicatedWriter
    from segstore.storage.log.replica import Truncated

Progress = Callable[[int], None]
_PARTS = (names.LOG, names.INDEX, names.TIME_INDEX, names.TXN_INDEX, names.SNAPSHOT)


class Healed(NamedTuple):
    """A replica that was damaged, and is in sync again. Its log was truncated to `offset`, and the records up
    to `end_offset` were copied again: `cut_bytes` bytes were removed, and `bytes` bytes were copied. `kept`
    are the paths of copies of the removed segments in the directory's quarantine. `reason` describes the
    first damage.
    """

    topic: str
    partition: int
    replica: int
    directory: str
    offset: int
    end_offset: int
    cut_bytes: int
    bytes: int
    kept: tuple[str, ...]
    reason: str


class ReplicaDamage(NamedTuple):
    """The damage of one replica: all damaged segments are between the offsets `offset` and `end` (exclusive).
    `log_end` is the log end offset before the check of the files.
    """

    offset: int
    end: int
    log_end: int
    reason: str


class Healing(NamedTuple):
    """A replica to heal: its id, its damage, and the ids of the replicas that may be its leader and
    source.
    """

    replica: int
    damage: ReplicaDamage
    sources: tuple[int, ...]


def heal(
    side: ReplicatedWriter, keys: Iterable[PartitionKey], timeout_ms: float, progress: Progress
) -> list[Healed]:
    """Heal the damaged replicas of the partitions `keys`, and return the healed replicas. Raises the errors
    of `_Patient.heal`. If a damaged replica has no undamaged source, the other partitions are healed, and
    then NoSoundReplicaError is raised.
    """
    healed: list[Healed] = []
    lost: dict[tuple[str, int], dict[int, int]] = {}
    for key in keys:
        damages = find_damage(side.manager, key, progress)
        side.context.check_open()
        plan = _plan(side.manager, key, damages)
        if plan is None:
            lost[key.topic, key.partition] = {replica: each.offset for replica, each in damages.items()}
            continue
        healed.extend(_Patient(side, key, one).heal(timeout_ms) for one in plan)
    if lost:
        raise NoSoundReplicaError(_describe_lost(lost), lost, healed)
    return healed


def _describe_lost(lost: Mapping[tuple[str, int], Mapping[int, int]]) -> str:
    described = [
        f"{topic}-{number}, damaged from offset "
        + ", ".join(f"{offset} on in replica {replica}" for replica, offset in sorted(offsets.items()))
        for (topic, number), offsets in lost.items()
    ]
    return f"no other in-sync replica has the same records whole: {'; '.join(described)}"


# --- finding -----------------------------------------------------------------------------------


def find_damage(manager: ReplicaManager, key: PartitionKey, progress: Progress) -> dict[int, ReplicaDamage]:
    """Return the damage of each damaged replica that is online, by the id of its directory. Raises
    StorageError.
    """
    found = {}
    for directory in manager.online:
        replica = _replica(directory, key)
        if replica is None or replica.core.role is None:
            continue
        end = replica.replica.log_end_offset
        checked = check_partition(directory.path, *key, directory.writer.context.files, progress)
        damage = None if checked is None else _damage(replica, checked, end)
        if damage is not None:
            found[directory.broker] = damage
    return found


def _replica(directory: DataDirectory, key: PartitionKey) -> LocalReplica | None:
    """Return a directory's replica of a partition. Return None if the directory has no replica of it or is
    offline.
    """
    # When a store is opened, the directory's thread first makes the replicas. So this call waits until they
    # exist.
    with suppress(ReplicaOfflineError):
        return directory.call(lambda: directory.replicas.get(key))
    return None


def _damage(replica: LocalReplica, checked: CheckedPartition, log_end: int) -> ReplicaDamage | None:
    """Return the damage of one replica, None if it is undamaged. `log_end` is the replica's log end offset
    before the check of its files.
    """
    pieces = [piece for each in checked.findings if (piece := _of_finding(each, checked.bases)) is not None]
    first = checked.bases[0] if checked.bases else log_end
    if checked.bases and first > (start := replica.replica.start_offset):
        pieces.append((start, first, f"offsets {start} to {first - 1} are missing"))
    if checked.bases and checked.end_offset < log_end:
        end = checked.end_offset
        pieces.append((end, log_end, f"offsets {end} to {log_end - 1} are missing"))
    if not pieces:
        return None
    offset, reason = min((offset, reason) for offset, _, reason in pieces)
    if "compact" in replica.partition.config.cleanup_policy:
        # A compacted log is copied from offset 0. If this replica kept its records below the damage, a
        # deleted key could come back: this replica may have a record of the key below the damage, while the
        # source has removed all records of the key, and its tombstone.
        offset = 0
    return ReplicaDamage(offset, max(end for _, end, _ in pieces), log_end, reason)


def _of_finding(finding: Finding, bases: list[int]) -> tuple[int, int, str] | None:
    """Return (first damaged offset, offset after the damage, text) of a finding, None if copying records
    would not repair the file.
    """
    name = os.path.basename(finding.path)
    parsed = names.parse_segment_file(name)
    if parsed is not None and parsed[1] in _PARTS:
        base = parsed[0]
        end = next((each for each in bases if each > base), INT64_MAX)
        return min(base, base if finding.offset is None else finding.offset), end, str(finding)
    if not bases or name == names.LEADER_EPOCHS:
        return 0, INT64_MAX, str(finding)
    return None


def _plan(
    manager: ReplicaManager, key: PartitionKey, damages: Mapping[int, ReplicaDamage]
) -> list[Healing] | None:
    """Return the replicas to heal, in the order in which they are healed, or None if one of them has no
    source.
    """
    state, left = manager.partitions[key], dict(damages)
    online = {directory.broker for directory in manager.online}
    plan = []
    for replica, damage in sorted(damages.items(), key=lambda item: -item[1].offset):
        others = [each for each in state.isr if each != replica and each in online]
        sources = [each for each in others if each not in left or left[each].end <= damage.offset]
        if not sources:
            return None
        plan.append(Healing(replica, damage, tuple(sources)))
        del left[replica]
    return plan


# --- healing -----------------------------------------------------------------------------------


class _Patient:
    """A replica that is being healed."""

    def __init__(self, side: ReplicatedWriter, key: PartitionKey, healing: Healing) -> None:
        self._manager, self._controller, self._key = side.manager, side.controller, key
        self._number, self._damage, self._sources = healing
        self._directory = side.manager.directories[self._number]
        self._replica = self._directory.replicas[key]
        self._check_open, self._bytes_after_cut = side.context.check_open, 0

    def heal(self, timeout_ms: float) -> Healed:
        """Truncate the replica's log at its damage, wait until the replica is in sync again, and return a
        report. Raises KafkaTimeoutError, EligibleLeadersNotAvailableError, QuorumLostError, StorageError.
        """
        try:
            self._directory.call(partial(self._pause, True))
            self._controller.call(self._expel)
            cut = self._directory.call(self._cut)
        finally:
            self._directory.post(partial(self._pause, False))
        self._await_in_sync(timeout_ms)
        return self._report(cut)

    def _pause(self, paused: bool) -> None:
        """Stop the replica's fetching, or resume it. Called in the directory's thread, which also makes the
        fetches: so no fetch is in flight.
        """
        self._replica.paused = paused
        if not paused:
            self._directory.ask(self._replica)

    def _expel(self, core: Controller, now: int) -> Decision:
        return Decision(effects=core.expel(self._key, self._number, self._sources))

    def _cut(self) -> Truncated:
        done = self._replica.cut_damaged(self._damage.offset)
        self._bytes_after_cut = _log_bytes(self._replica)
        self._directory.writer.forget_cleaned(*self._key)
        return done

    def _await_in_sync(self, timeout_ms: float) -> None:
        def in_sync() -> bool:
            self._check_open()
            state = self._manager.partitions.get(self._key)
            return state is None or self._number in state.isr

        if not self._manager.news.until(in_sync, timeout_ms / 1000, 0.05):
            raise KafkaTimeoutError(
                f"{self._key}: replica {self._number} was cut, and is not in sync again after {timeout_ms} ms"
                "; it goes on fetching"
            )

    def _report(self, cut: Truncated) -> Healed:
        end = self._replica.replica.log_end_offset
        return Healed(
            *self._key,
            self._number,
            self._directory.path,
            cut.end_offset,
            end,
            cut.cut_bytes,
            max(_log_bytes(self._replica) - self._bytes_after_cut, 0),
            cut.kept,
            self._damage.reason,
        )


def _log_bytes(replica: LocalReplica) -> int:
    view = replica.replica.written
    return sum(map(view.end_of, range(len(view.segments))))
