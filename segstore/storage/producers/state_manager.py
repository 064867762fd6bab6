"""`Producers` keeps the state of a partition's producers, in the process that writes the partition, and
writes the `<offset>.snapshot` files.

A snapshot is written at each roll and at a clean close, as in Kafka, so that an open replays only the batch
headers after the newest snapshot. An unreadable snapshot is removed, and the log is replayed instead.
Threads: the holder of the partition's append token (the lock for appends).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from segstore import names
from segstore.arrays import np
from segstore.errors import CorruptCheckpointError, SegstoreError
from segstore.files import Files
from segstore.index.txn_index import AbortedTxn
from segstore.logger import Logger
from segstore.records import Encoded, batch_type, decode
from segstore.records.control import Marker, parse_control
from segstore.storage.meta.small_files import unreadable
from segstore.storage.producers.append_info import ProducerAppendInfo, judge
from segstore.storage.producers.producer_state import CompletedTxn, ProducerState, Saved
from segstore.storage.producers.replay import mend, replay
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.native_tail import NativeTail
from segstore.storage.segment.segment import Segment

if TYPE_CHECKING:
    pass

log = Logger("segstore")


class Producers:
    """Keeps the producers of one partition. `state` is the state of the producers at the log's end. `take`
    applies batches that were written, and `recall` undoes `take` if these batches were removed from the log
    again. `begun_anew`: whether producers may have been lost, because there was no readable snapshot, and the
    log does not begin at offset 0.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        state: ProducerState,
        clock: Callable[[], int],
        begun_anew: bool = False,
    ) -> None:
        self._files, self._directory, self.state, self._clock = files, directory, state, clock
        self.begun_anew = begun_anew

    @classmethod
    def load(
        cls,
        files: Files,
        directory: str,
        segments: list[Segment],
        end_offset: int,
        recovery_point: int | None,
        clock: Callable[[], int],
        expiration_ms: int,
    ) -> Producers:
        """Return the producers with their state at the log's end, which is made from the newest readable
        snapshot and the batches after this snapshot. Expired producers are left out. `recovery_point` is None
        after a clean shutdown. If the `.txnindex` file of a replayed segment differs from the log, the file
        is rewritten. Raises OSError.
        """
        trusted = end_offset
        if recovery_point is not None:
            # A snapshot above the recovery point is not used, because a power cut may have removed batches
            # below the snapshot's offset from the log. The snapshot at the first segment's base offset is
            # used in any case, because no other file has the producers of removed segments.
            trusted = min(trusted, max(recovery_point, segments[0].base_offset))
        found = _drop_snapshots_above(files, directory, trusted)
        found = _drop_damaged(files, directory, found, every=recovery_point is not None)
        # A snapshot below the first segment is not used, because the batches between the snapshot and the
        # segment were removed, and can't be replayed.
        taken = [at for at in found if at >= segments[0].base_offset]
        if recovery_point is not None:
            _sync_from(files, directory, taken, recovery_point)
        state = _newest(files, directory, taken)
        mend(
            files,
            segments,
            end_offset,
            state,
            lambda base: _newest(files, directory, [t for t in taken if t <= base]),
            trusted,
        )
        keep = {s.base_offset for s in segments} | set(taken[-1:])
        for stray in set(found) - keep:
            files.unlink(_path(directory, stray))
        state.expire(clock(), expiration_ms)
        return cls(files, directory, state, clock, not taken and segments[0].base_offset > 0)

    # --- appends -------------------------------------------------------------------------

    def judge(self, claim: ProducerAppendInfo, chunks: Sequence[Encoded]) -> int | None:
        """Return the result of `append_info.judge` for the state of the producers."""
        return judge(self.state, claim, chunks)

    def save(self, producer_ids: Iterable[int]) -> tuple[Saved, ...]:
        """Return the state of these producers before an append, for `recall`."""
        return tuple(map(self.state.save, producer_ids))

    def take(self, batches: Any, marker: Marker | None = None) -> list[AbortedTxn]:
        """Apply written batches of one producer, and return the transactions that they abort. `batches` is
        the memory of an array of `seg_batch`; `marker` is the transaction marker in one of these batches, or
        None.
        """
        ended = (-1, -1) if marker is None else (marker.kind, marker.coordinator_epoch)
        return self.state.update(batches, lambda _: ended, self._clock())

    def take_as_follower(self, memory: Any, data: Any) -> list[AbortedTxn]:
        """Apply batches that were copied from a leader, and return the transactions that they abort. The
        batches may have different producers. Sequences and epochs are not checked (R35). `memory` is the
        memory of an array of `seg_batch`; the bytes of each batch are in `data`, at the batch's `position`.
        Raises CorruptRecordError if a transaction marker can't be read.
        """
        batches = np.frombuffer(memory, batch_type())

        def read_control(i: int) -> tuple[int, int]:
            at, size = int(batches["position"][i]), int(batches["size"][i])
            record = decode(bytes(data[at : at + size]), batches[i : i + 1], self._directory, at)[0]
            offset = record.offset
            return parse_control(record.key, record.value, file=self._directory, position=at, offset=offset)

        if (batches["producer_id"] < 0).all():
            return []  # the state is not changed, so `recall` has nothing to undo
        return self.state.update(batches, read_control, self._clock())

    def recall(self, saved: Sequence[Saved]) -> None:
        """Restore the `saved` states, because the batches that were applied after `save` are no longer in the
        log. May be repeated.
        """
        for each in saved:
            self.state.restore(each)

    def forget_all(self, offset: int) -> None:
        """Forget all producers, because the log begins anew at `offset`. Raises OSError."""
        _drop_snapshots_above(self._files, self._directory, -1)
        self.state = ProducerState(offset)
        self.state.ended = []

    def cut(self, segments: list[Segment], end_offset: int) -> None:
        """Set the state to the state at `end_offset`, after the log was cut at this offset. Snapshots above
        this offset are removed, and `.txnindex` files that differ from the log are rewritten. Raises OSError.
        """
        taken = _drop_snapshots_above(self._files, self._directory, end_offset)
        taken = _drop_damaged(self._files, self._directory, taken, every=True)

        def state_at(base: int) -> ProducerState:
            return _newest(self._files, self._directory, [offset for offset in taken if offset <= base])

        state = state_at(end_offset)
        mend(self._files, segments, end_offset, state, state_at, end_offset)
        if self.state.ended is not None:
            state.ended = [ended for ended in self.state.ended if ended.last_offset < end_offset]
        self.state = state

    def ended_above(self, view: LogView, high_watermark: int) -> list[CompletedTxn]:
        """Return the completed transactions of the log in `view` whose transaction markers are at or above
        the high watermark. Any thread may call this. Raises OSError.
        """
        taken = [at for at in snapshots(self._files, self._directory) if at <= high_watermark]
        state = _newest(self._files, self._directory, taken)
        state.ended = []
        for slot in range(view.slot(state.map_end_offset), len(view.segments)):
            replay(state, view.segments[slot], view.end_of(slot), {})
        return [ended for ended in state.ended if ended.last_offset >= high_watermark]

    # --- the native tail -----------------------------------------------------------------

    def bind(self, tail: NativeTail) -> None:
        """Store the table of producers in `tail`, the object by which C code appends to the log, so that C
        code checks and applies batches of known producers.
        """
        tail.c.producers = self.state.c
        tail.keep("producers", self.state.c)

    # --- expiry --------------------------------------------------------------------------

    def expire(self, after_ms: int) -> int:
        """Forget the producers that have written nothing for `after_ms`; return the number of forgotten
        producers.
        """
        return self.state.expire(self._clock(), after_ms)

    # --- snapshots -----------------------------------------------------------------------

    def last_records(self) -> dict[int, tuple[int, int]]:
        """Return {producer id: (last offset of the producer's last data batch, epoch)}; the offset is -1 if
        there is no batch (Kafka: UnifiedLog.lastRecordsOfActiveProducers).
        """
        entries = self.state.producers.items()
        return {i: (e.batches[-1].last_offset if e.batches else -1, e.producer_epoch) for i, e in entries}

    def snapshot(self, offset: int, *, sync: bool = False) -> None:
        """Write the present state as the snapshot at `offset`, the log's end. If `sync` is False, the next
        flush syncs the file; if a power cut damages the file before that, the next open ignores the file.
        Raises OSError.
        """
        self._files.write_atomic(_path(self._directory, offset), self.state.dump(), sync=sync)

    def forget_snapshot(self, offset: int) -> None:
        """Remove the snapshot at `offset`, because the segment with this base offset was removed."""
        with contextlib.suppress(FileNotFoundError):
            self._files.unlink(_path(self._directory, offset))


def snapshots(files: Files, directory: str) -> list[int]:
    """Return the offsets of the snapshots in a directory, in order."""
    found = names.segment_files(files.listdir(directory))
    return sorted([offset for offset, suffix in found if suffix == names.SNAPSHOT])


def state_at(files: Files, directory: str, offset: int) -> ProducerState:
    """Return the state in the snapshot at `offset`; an empty state if the file is missing or unreadable."""
    state = _newest(files, directory, [offset])
    return state if state.map_end_offset == offset else ProducerState(offset)


def _newest(files: Files, directory: str, taken: list[int]) -> ProducerState:
    """Return the state in the newest readable snapshot at one of the offsets `taken`; an empty state if none
    can be read.
    """
    for offset in reversed(taken):
        with contextlib.suppress(SegstoreError, FileNotFoundError):
            return _read(files, directory, offset)
    return ProducerState()


def _read(files: Files, directory: str, offset: int) -> ProducerState:
    path = _path(directory, offset)
    try:
        return ProducerState.load(files.read_file(path), offset, path)
    except (CorruptCheckpointError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise unreadable(error, path) from error


def _drop_damaged(files: Files, directory: str, taken: list[int], every: bool) -> list[int]:
    """Remove the snapshots that can't be read, and are newer than the newest readable snapshot, as Kafka
    does. If `every`, remove all snapshots that can't be read. Return the offsets of the snapshots that stay.
    """
    left: list[int] = []
    for offset in reversed(taken):
        try:
            if every or not left:
                _read(files, directory, offset)
            left.append(offset)
        except (SegstoreError, FileNotFoundError) as error:
            log.warning("%s", error)
            with contextlib.suppress(FileNotFoundError):
                files.unlink(_path(directory, offset))
    return left[::-1]


def _sync_from(files: Files, directory: str, taken: list[int], recovery_point: int) -> None:
    """Sync the snapshots at and above the recovery point."""
    # No flush has synced these snapshots after the rolls that wrote them, and no later flush will, because
    # recovery moves the recovery point past them.
    for offset in (offset for offset in taken if offset >= recovery_point):
        with files.open(_path(directory, offset), write=True) as handle:
            files.sync(handle)


def _drop_snapshots_above(files: Files, directory: str, offset: int) -> list[int]:
    """Remove the snapshots above `offset`, and return the offsets of the snapshots that stay."""
    taken = snapshots(files, directory)
    stray = [o for o in taken if o > offset]
    for gone in stray:
        files.unlink(_path(directory, gone))
    if stray:
        files.sync_dir(directory)
    return taken[: len(taken) - len(stray)]


def _path(directory: str, offset: int) -> str:
    return f"{directory}/{names.segment_file(offset, names.SNAPSHOT)}"
