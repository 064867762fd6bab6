"""The producers of a partition that is written: their state, and the `<offset>.snapshot` files.

A snapshot is written at every roll and at a clean close, as Kafka does, so that opening replays only the
headers behind the newest one. A snapshot that can't be read is removed: the log is the authority. Threads:
the holder of the partition's append token.
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
    """`state` is what the log says of producers up to its end: batches go through `take` when they are
    written, and `recall` takes them out where they are cut off again. `begun_anew`: there was no snapshot,
    and the log does not begin at offset 0, so that producers without a batch in the log are not known.
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
        """Return the state at the log's end: the newest readable snapshot and the batches behind it, without
        producers that have expired. `recovery_point` is None after a clean shutdown. Where the log was
        replayed, `.txnindex` files are made to agree with it. Raises OSError.
        """
        trusted = end_offset
        if recovery_point is not None:
            # Behind the recovery point snapshots may be older, or newer, than the log. What was before the
            # first segment is known by its snapshot alone.
            trusted = min(trusted, max(recovery_point, segments[0].base_offset))
        found = _drop_snapshots_above(files, directory, trusted)
        found = _drop_damaged(files, directory, found, every=recovery_point is not None)
        # What lay between an older one and the first segment is gone, and was seen by no state that is left.
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

    # --- what an append does -------------------------------------------------------------

    def judge(self, claim: ProducerAppendInfo, chunks: Sequence[Encoded]) -> int | None:
        """Do what `append_info.judge` does."""
        return judge(self.state, claim, chunks)

    def save(self, producer_ids: Iterable[int]) -> tuple[Saved, ...]:
        """Return the state to give to `recall`, taken before an append of these producers."""
        return tuple(map(self.state.save, producer_ids))

    def take(self, batches: Any, marker: Marker | None = None) -> list[AbortedTxn]:
        """Take in these batches (the memory of `seg_batch`) of one producer, which were written, with
        `marker` in them; returns the transactions that they abort.
        """
        ended = (-1, -1) if marker is None else (marker.kind, marker.coordinator_epoch)
        return self.state.update(batches, lambda _: ended, self._clock())

    def take_as_follower(self, memory: Any, data: Any) -> list[AbortedTxn]:
        """Take in batches of any producers as a leader wrote them, of which nothing is judged (R35); `data`
        has their bytes, at their positions. Returns the transactions that they abort. Raises
        CorruptRecordError where a marker can't be read.
        """
        batches = np.frombuffer(memory, batch_type())

        def read_control(i: int) -> tuple[int, int]:
            at, size = int(batches["position"][i]), int(batches["size"][i])
            record = decode(bytes(data[at : at + size]), batches[i : i + 1], self._directory, at)[0]
            offset = record.offset
            return parse_control(record.key, record.value, file=self._directory, position=at, offset=offset)

        if (batches["producer_id"] < 0).all():
            return []  # nothing to `recall`, either
        return self.state.update(batches, read_control, self._clock())

    def recall(self, saved: Sequence[Saved]) -> None:
        """Go back to a saved state, since what was taken in since is not in the log. May be repeated."""
        for each in saved:
            self.state.restore(each)

    def forget_all(self, offset: int) -> None:
        """Forget all producers, since the log begins anew at `offset`. Raises OSError."""
        _drop_snapshots_above(self._files, self._directory, -1)
        self.state = ProducerState(offset)
        self.state.ended = []

    def cut(self, segments: list[Segment], end_offset: int) -> None:
        """Go back to the state at `end_offset`, where the log ends since it was cut; snapshots above are
        removed, and `.txnindex` files made to agree. Raises OSError.
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

    def ended_behind(self, view: LogView, high_watermark: int) -> list[CompletedTxn]:
        """Return the transactions whose markers are in `view`, and not below the high watermark, by the log.
        Any thread may call this. Raises OSError.
        """
        taken = [at for at in snapshots(self._files, self._directory) if at <= high_watermark]
        state = _newest(self._files, self._directory, taken)
        state.ended = []
        for slot in range(view.slot(state.map_end_offset), len(view.segments)):
            replay(state, view.segments[slot], view.end_of(slot), {})
        return [ended for ended in state.ended if ended.last_offset >= high_watermark]

    # --- the native tail -----------------------------------------------------------------

    def bind(self, tail: NativeTail) -> None:
        """Give a tail the table of producers: C judges the next batches of those that are known, and takes
        them in.
        """
        tail.c.producers = self.state.c
        tail.keep("producers", self.state.c)

    # --- what is known -------------------------------------------------------------------

    def expire(self, after_ms: int) -> int:
        """Forget producers that wrote nothing for `after_ms` (producer.id.expiration.ms); returns how
        many.
        """
        return self.state.expire(self._clock(), after_ms)

    # --- snapshots -----------------------------------------------------------------------

    def last_records(self) -> dict[int, tuple[int, int]]:
        """Return by producer id the last offset of the producer's last data batch, -1 for none, and its epoch
        (Kafka: UnifiedLog.lastRecordsOfActiveProducers).
        """
        entries = self.state.producers.items()
        return {i: (e.batches[-1].last_offset if e.batches else -1, e.producer_epoch) for i, e in entries}

    def snapshot(self, offset: int, *, sync: bool = False) -> None:
        """Write the state at `offset`. Raises OSError. Without `sync` the next flush syncs the file: one that
        a power cut has damaged before is ignored.
        """
        self._files.write_atomic(_path(self._directory, offset), self.state.dump(), sync=sync)

    def forget_snapshot(self, offset: int) -> None:
        """Remove the snapshot at `offset`, since the segment that begins there was removed."""
        with contextlib.suppress(FileNotFoundError):
            self._files.unlink(_path(self._directory, offset))


def snapshots(files: Files, directory: str) -> list[int]:
    """Return the offsets of the snapshots in a directory, in order."""
    found = names.segment_files(files.listdir(directory))
    return sorted([offset for offset, suffix in found if suffix == names.SNAPSHOT])


def state_at(files: Files, directory: str, offset: int) -> ProducerState:
    """Return the state in the snapshot at `offset`; an empty one where there is none that can be read."""
    state = _newest(files, directory, [offset])
    return state if state.map_end_offset == offset else ProducerState(offset)


def _newest(files: Files, directory: str, taken: list[int]) -> ProducerState:
    """Return the state of the newest of these snapshots that can be read."""
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
    """Remove the newest snapshots as long as they can't be read, as Kafka does, or `every` unreadable one;
    returns those that stay.
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
    """Sync the snapshots from the recovery point on, whose roll no flush has followed: recovery moves the
    recovery point past them.
    """
    for offset in (offset for offset in taken if offset >= recovery_point):
        with files.open(_path(directory, offset), write=True) as handle:
            files.sync(handle)


def _drop_snapshots_above(files: Files, directory: str, offset: int) -> list[int]:
    """Remove snapshots above an offset; returns those that stay."""
    taken = snapshots(files, directory)
    stray = [o for o in taken if o > offset]
    for gone in stray:
        files.unlink(_path(directory, gone))
    if stray:
        files.sync_dir(directory)
    return taken[: len(taken) - len(stray)]


def _path(directory: str, offset: int) -> str:
    return f"{directory}/{names.segment_file(offset, names.SNAPSHOT)}"
