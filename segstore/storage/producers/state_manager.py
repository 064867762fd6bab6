"""The producers of a partition that is written: their state, and the `<offset>.snapshot` files.

A snapshot is written at every roll and at a clean close, as Kafka does, so that opening replays only the
headers behind the newest one. A snapshot that can't be read is removed: the log is the authority. Threads:
the holder of the partition's append token.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from segstore import names
from segstore.errors import CorruptCheckpointError, SegstoreError
from segstore.files import Files
from segstore.index.txn_index import AbortedTxn
from segstore.logger import Logger
from segstore.records import Encoded
from segstore.records.control import Marker
from segstore.storage.meta.small_files import unreadable
from segstore.storage.producers.append_info import Claim, judge
from segstore.storage.producers.producer_state import ProducerState, Saved
from segstore.storage.producers.replay import mend
from segstore.storage.segment.segment import Segment

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
        taken = _drop_snapshots_above(files, directory, trusted)
        taken = _drop_damaged(files, directory, taken, every=recovery_point is not None)
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
        for stray in set(taken) - keep:
            files.unlink(_path(directory, stray))
        state.expire(clock(), expiration_ms)
        return cls(files, directory, state, clock, not taken and segments[0].base_offset > 0)

    # --- what an append does -------------------------------------------------------------

    def judge(self, claim: Claim, chunks: Sequence[Encoded]) -> int | None:
        """Do what `append_info.judge` does."""
        return judge(self.state, claim, chunks)

    def save(self, producer_id: int) -> Saved:
        """Return the state to give to `recall`, taken before an append of this producer."""
        return self.state.save(producer_id)

    def take(self, batches: NDArray[np.void], marker: Marker | None) -> list[AbortedTxn]:
        """Take in these batches of one producer, which were written, with `marker` in them; returns the
        transactions that they abort.
        """
        ended = (-1, -1) if marker is None else (marker.kind, marker.coordinator_epoch)
        aborted = self.state.update(batches, lambda _: ended)
        self.state.producers[int(batches["producer_id"][0])].appended_ms = self._clock()
        return aborted

    def recall(self, saved: Saved | None) -> None:
        """Go back to a saved state, since what was taken in since is not in the log. May be repeated."""
        if saved is not None:
            self.state.restore(saved)

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

    def snapshot(self, offset: int) -> None:
        """Write the state at `offset`. Raises OSError. The file is not synced: one that a power cut has
        damaged is ignored.
        """
        self._files.write_atomic(_path(self._directory, offset), self.state.dump(), sync=False)

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
