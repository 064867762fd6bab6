"""Verifies a staged file before the store adopts (appends) it: every CRC, every offset, and the numbers in
its manifest.

If the file was not changed since its sync, and the machine was not restarted since then, only the headers are
read, because the stager has computed the CRCs of these bytes, and the bytes are on disk. Keys are checked if
the topic has become compacted since the file was staged.

If an undone adoption has left offsets in the file that are not contiguous, they are made contiguous. Threads:
any; the thread holds no append token (the lock of a partition's appends).
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from segstore._native import lib
from segstore.arrays import np
from segstore.config import TopicConfig
from segstore.errors import CorruptRecordError, RecordTooLargeError, StagedFilesError
from segstore.files import Files, Handle
from segstore.files.locks import boot_id
from segstore.index import IndexBuilder
from segstore.records import CHUNK_BYTES, decode, scan
from segstore.records.header import CODEC_MASK, MAGIC
from segstore.storage.inbox.staged_file import StagedFile
from segstore.storage.log.validator import LogValidator
from segstore.storage.meta.small_files import NOT_A_FILE
from segstore.storage.meta.topic_info import INTERNAL
from segstore.storage.segment.batch_scan import CHUNK, LARGE, walk

if TYPE_CHECKING:
    from numpy.typing import NDArray

_OFFSET_ENTRY, _TIME_ENTRY = 8, 12
_SPARSE = 1 << 16  # bytes per read of a file with large batches


class VerifiedFile(NamedTuple):
    """A valid staged file.

    `place`: its base offset and its leader epoch (-1 if its batches have several). `stamps`: the timestamp of
    its first batch, and the largest timestamp, in ms. `indexes`: its index entries if it may become a
    segment, None if it must be copied. `durable`: its present bytes are on disk. A file that was changed
    after its sync is not durable, and is copied: a later sync may have failed, and then the disk has other
    bytes than the page cache.
    """

    file: StagedFile
    path: str
    place: tuple[int, int]
    stamps: tuple[int, int]
    indexes: tuple[bytes, bytes] | None
    durable: bool


class _MovedError(Exception):
    """Raised if the batches' offsets are not contiguous."""


def chunks_of(
    files: Files, handle: Handle, size: int, *, check_crcs: bool
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.void], int]]:
    """Yield (buffer, headers, number of bytes) for chunks of about CHUNK_BYTES with whole batches. Each chunk
    is read into the same buffer as the chunk before. The iteration ends before bytes that are no batch.
    """
    buffer, at = np.empty(CHUNK_BYTES, np.uint8), 0
    while at < size:
        got = files.pread_into(handle, buffer.data[: min(len(buffer), size - at)], at)
        batches, stop = scan(buffer[:got], at, check_crcs=check_crcs)
        if len(batches):
            yield buffer, batches, stop.position - at
            at = stop.position
        elif stop.status == lib.SEG_SHORT and len(buffer) < stop.need <= size - at:
            buffer = np.empty(stop.need, np.uint8)
        elif stop.status == lib.SEG_BAD_OFFSETS:
            raise _MovedError
        else:
            return


def verify(
    files: Files, path: str, file: StagedFile, config: TopicConfig, segment_bytes: int
) -> VerifiedFile:
    """Check a staged file, and return its description for the adoption. A file of at least `segment_bytes`
    may become a segment if the limits of its topic allow that.

    Raises StagedFilesError, RecordTooLargeError, InvalidRecordError; OSError if the disk can't be read.
    """
    if file.topic in INTERNAL:
        raise StagedFilesError(
            f"{path} is for the internal topic {file.topic!r}, which takes no staged files"
        )
    _take_own(files, path)
    with open_staged(files, path) as handle:
        _check_size(files, handle, path, file)
        try:
            return _Look(path, file, config, segment_bytes).run(files, handle)
        except _MovedError:
            _move_back(files, path, file)
        try:
            return _Look(path, file, config, segment_bytes).run(files, handle)
        except _MovedError:
            raise StagedFilesError(f"{path}: its offsets are not side by side") from None


def examine(files: Files, path: str, file: StagedFile, config: TopicConfig) -> None:
    """Check a staged file as `verify` does, but never change it. Raises the errors of `verify`. Offsets that
    are not contiguous are no error, because `verify` repairs them.
    """
    with open_staged(files, path) as handle, contextlib.suppress(_MovedError):
        _check_size(files, handle, path, file)
        _Look(path, file, config, file.size + 1).run(files, handle)


def check_bytes(files: Files, path: str, file: StagedFile) -> None:
    """Check that an adopted file has only whole batches with valid CRCs. Raises StagedFilesError, OSError."""
    with open_staged(files, path) as handle:
        _check_size(files, handle, path, file)
        try:
            good = sum(size for _, _, size in chunks_of(files, handle, file.size, check_crcs=True))
        except _MovedError:
            good = 0
        if good != file.size:
            raise StagedFilesError(f"{path}: the batch at byte {good} is damaged, or none")


def _take_own(files: Files, path: str) -> None:
    """Replace a file with several hard links by a copy, because `verify` may change the file in place."""
    try:
        files.take_own(path)
    except OSError as error:
        # If the path is missing, or is no regular file, `open_staged` raises the error.
        if error.errno not in NOT_A_FILE | {errno.ENOENT}:
            raise


def _check_size(files: Files, handle: Handle, path: str, file: StagedFile) -> None:
    if files.size(handle) != file.size:
        raise StagedFilesError(f"{path} has {files.size(handle):,} bytes, not {file.size:,}")


def open_staged(files: Files, path: str) -> Handle:
    """Open a staged file. Raises OSError, and StagedFilesError if the file is missing or not regular."""
    try:
        return files.open(path)
    except FileNotFoundError:
        raise StagedFilesError(f"{path} is missing") from None
    except OSError as error:
        if error.errno in NOT_A_FILE:
            raise StagedFilesError(f"{path} is no staged file: {error.strerror}") from error
        raise


def _move_back(files: Files, path: str, file: StagedFile) -> None:
    try:
        with files.open(path, write=True) as handle:
            files.restamp(handle, file.size, 0, 0)
    except OSError as error:
        if error.errno != errno.EBADMSG:
            raise
        raise StagedFilesError(f"{path}: there is no whole batch where one must be") from None


class _Look:
    def __init__(self, path: str, file: StagedFile, config: TopicConfig, segment_bytes: int) -> None:
        self._path, self._file, self._config = path, file, config
        self._validator = LogValidator(config)
        self._segment = segment_bytes <= file.size <= config.segment_bytes
        self._segment &= config.message_timestamp_type == "CreateTime"
        self._builder: IndexBuilder | None = None
        self._entries: list[tuple[bytes, bytes]] = []
        self._first_ms = self._latest_ms = -1
        self._base = self._offset = self._epoch = -1
        self._at = self._batches = 0

    def run(self, files: Files, handle: Handle) -> VerifiedFile:
        file, keys = self._file, self._validator.needs_keys and not self._file.keyed
        durable = 0 < file.changed == files.changed(handle) and file.boot == boot_id() != ""
        if durable and not keys:
            large = file.size > file.batches * LARGE
            walked = partial(walk, files, handle, 0, file.size, check_crcs=False, sparse=True, large=large)
            for step in walked(chunk=_SPARSE if large else CHUNK):
                if len(step.batches):
                    self._take(step.batches, step.stop.position - self._at)
        else:
            for buffer, batches, size in chunks_of(files, handle, file.size, check_crcs=not durable):
                if keys:
                    self._look_for_keys(buffer, batches, size)
                self._take(batches, size)
        totals = self._at, self._offset - self._base, self._batches
        if totals[0] != file.size:
            raise StagedFilesError(f"{self._path}: the batch at byte {self._at} is damaged, or none")
        if totals[1:] != (file.records, file.batches):
            raise StagedFilesError(
                f"{self._path} has {totals[1]:,} records in {totals[2]:,} batches, "
                f"not {file.records:,} in {file.batches:,}"
            )
        place, stamps = (self._base, self._epoch), (self._first_ms, self._latest_ms)
        return VerifiedFile(file, self._path, place, stamps, self._indexes() if durable else None, durable)

    def _look_for_keys(self, buffer: NDArray[np.uint8], batches: NDArray[np.void], size: int) -> None:
        for batch in range(len(batches)):  # one batch at a time, because a decompressed batch may be large
            one = batches[batch : batch + 1]
            try:
                keys = decode(buffer[:size], one, self._path, self._at).keys
            except CorruptRecordError as error:
                raise StagedFilesError(str(error)) from error
            self._validator.check_keys(any(key is None for key in keys))

    def _take(self, batches: NDArray[np.void], size: int) -> None:
        after, epochs = batches["last_offset"] + 1, batches["leader_epoch"]
        if not self._batches:
            self._base = self._offset = int(batches["base_offset"][0])
            self._epoch = int(epochs[0])
            self._builder = IndexBuilder(self._base, self._config.index_interval_bytes)
            self._first_ms = int(batches["max_timestamp"][0])
        self._latest_ms = max(self._latest_ms, int(batches["max_timestamp"].max()))
        self._epoch = self._epoch if (epochs == self._epoch).all() else -1
        if batches["base_offset"][0] != self._offset or (batches["base_offset"][1:] != after[:-1]).any():
            raise _MovedError
        if (batches["magic"] != MAGIC).any():
            raise StagedFilesError(f"{self._path}: only batches of magic {MAGIC} are taken")
        if (batches["attributes"] & ~CODEC_MASK).any() or (batches["producer_id"] != -1).any():
            raise StagedFilesError(
                f"{self._path}: only batches without producer, transaction and flags are taken"
            )
        if (batches["count"] != after - batches["base_offset"]).any():
            raise StagedFilesError(f"{self._path}: there are gaps within a batch")
        if int(batches["size"].max()) > self._validator.largest_batch:
            raise RecordTooLargeError(
                f"{self._path} has a batch of {int(batches['size'].max()):,} bytes: allowed are "
                f"{self._validator.largest_batch:,} (max.message.bytes, segment.bytes)"
            )
        if self._segment:
            self._index(batches)
        self._at, self._offset, self._batches = self._at + size, int(after[-1]), self._batches + len(batches)

    def _index(self, batches: NDArray[np.void]) -> None:
        self._segment = self._first_ms < 0 or self._latest_ms - self._first_ms <= self._config.max_segment_ms
        if self._segment and self._builder is not None:
            self._entries.append(self._builder.add(batches))

    def _indexes(self) -> tuple[bytes, bytes] | None:
        """Return the entries of the offset index and of the time index, relative to the base offset of the
        file. Return None if the file can't become a segment.
        """
        if not self._segment or self._builder is None:
            return None
        offsets = b"".join(entry for entry, _ in self._entries)
        times = b"".join(entry for _, entry in self._entries) + self._builder.last_time_entry()
        fits = max(len(offsets) + _OFFSET_ENTRY, len(times) + _TIME_ENTRY) <= self._config.segment_index_bytes
        return (offsets, times) if fits else None
