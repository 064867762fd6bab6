"""Converts messages of magic 0 and 1 to record batches of magic 2 (Kafka: AbstractLegacyRecordBatch); nothing
is on disk.

All other code gets magic 2 only, because `decode` and the senders of batches convert older messages first. A
conversion does not change offsets, keys, values, timestamps or the timestamp type; a record of magic 0 has
the timestamp -1. Converted batches have no leader epoch and no producer. Adjacent uncompressed messages with
the same attributes share a batch; each wrapper (a message that contains compressed messages) becomes one
uncompressed batch.

The functions have no state, and are safe from any thread. C does the work per record; this module
decompresses a wrapper, with the same size limit as batches of magic 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from segstore._native import ffi, held, lib
from segstore.arrays import np
from segstore.integers import INT64_MAX
from segstore.records.codecs import MAX_PLAIN, DecompressError, decompress, lz4_of_magic_0
from segstore.records.header import CODEC_MASK, CODECS, HEADER_SIZE, MAGIC, batch_ptr, batch_type, corrupt

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segstore.records.codecs import Buffer

BATCH_BYTES = 64 << 10
"""Largest size of a batch that is made of several plain messages; `PartitionLog.append_batch` has the same
limit.
"""

_BATCHES, _PLAIN, _WRAPPER = range(3)
_KEY_AT = (18, 26)
"""Position of the key's length in a message of magic 0, and of magic 1."""
_LZ4 = CODECS.index("lz4")
_CODECS = _LZ4 + 1
"""Number of codecs that magic 0 and 1 know; zstd came with magic 2 (KIP-110)."""

_REASONS = {
    lib.SEG_E_RECORD: "the lengths within a message don't fill it",
    lib.SEG_E_OFFSETS: "the offsets of its messages don't rise up to its own",
    lib.SEG_E_NESTED: "a message in it is compressed itself, or has another magic",
    lib.SEG_E_CRC: "CRC mismatch of a message in it",
    lib.SEG_E_FEW: "there is no message in it",
}


def is_old(batches: NDArray[np.void]) -> bool:
    """Return whether any of these headers belongs to a message of magic 0 or 1. There must be at least one
    header.
    """
    return bool(np.minimum.reduce(batches["magic"]) != MAGIC)


def bring_up(
    buf: Any,
    batches: NDArray[np.void],
    where: str = "what was read",
    position: int = 0,
    limit: int = MAX_PLAIN,
    most: int = INT64_MAX,
    least: int = -1,
) -> tuple[bytes, NDArray[np.void]]:
    """Convert the batches of `buf` to magic 2. Return (bytes of the batches; headers of the batches, with
    their positions in these bytes). There may be unused bytes after the last batch.

    `buf` was read at `position` of file `where`. `batches` are headers of a `scan`, or some of them; batches
    of magic 2 are copied unchanged. If the first batch is a wrapper (a message that contains compressed
    messages), no offset in the wrapper may be below `least`, which is -1 if the bound is unknown. When the
    result has `most` bytes or more, the conversion ends. Raises CorruptRecordError if a message is damaged,
    or a wrapper has more than `limit` decompressed bytes.
    """
    made = _Made(memoryview(buf), where, position, limit)
    for kind, first, last in _runs(batches):
        run = batches[first:last]
        if kind == _WRAPPER:
            made.add_nested(run, int(batches["last_offset"][first - 1]) + 1 if first else least)
        elif kind == _PLAIN:
            made.add_plain(run)
        else:
            made.add_batches(run)
        if made.size >= most:
            break
    return made.whole()


def _runs(batches: NDArray[np.void]) -> list[tuple[int, int, int]]:
    """Return (kind, begin, end) of each run of headers of the same kind; each wrapper is a run of its own."""
    if not len(batches):
        return []
    kinds = np.where((batches["attributes"] & CODEC_MASK) == 0, _PLAIN, _WRAPPER)
    kinds[batches["magic"] == MAGIC] = _BATCHES
    starts = np.flatnonzero((kinds[1:] != kinds[:-1]) | (kinds[1:] == _WRAPPER)) + 1
    bounds = [0, *starts.tolist(), len(batches)]
    return list(zip(kinds[bounds[:-1]].tolist(), bounds[:-1], bounds[1:], strict=True))


class _Made:
    """Collects the converted batches: consecutive pieces of bytes, and the headers of each piece."""

    def __init__(self, view: memoryview, where: str, position: int, limit: int) -> None:
        self._view, self._where, self._position, self._limit = view, where, position, limit
        self._pieces: list[memoryview] = []
        self._last = b""  # the buffer of the last converted piece, perhaps with unused bytes at its end
        self._headers: list[NDArray[np.void]] = []
        self.size = 0

    def add_batches(self, run: NDArray[np.void]) -> None:
        """Add batches of magic 2, unchanged."""
        sizes = run["size"].astype(np.int64)
        starts = run["position"] - self._position
        self._last = b""
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            self._pieces.append(self._view[start : start + size])
        headers = run.copy()
        headers["position"] = self.size + np.cumsum(sizes) - sizes
        self._headers.append(headers)
        self.size += int(sizes.sum())

    def add_plain(self, run: NDArray[np.void]) -> None:
        """Convert and add messages that are not compressed."""
        n, total = len(run), int(run["size"].sum(dtype=np.int64))
        few = 2 + 2 * total // BATCH_BYTES
        headers, counts = np.empty(n, batch_type()), ffi.new("int64_t[2]")
        for batches in (few, n):  # `n` batches are needed if the messages have `n` different log append times
            room = total + HEADER_SIZE * batches
            out = bytes(room)
            done = lib.seg_bring_up(
                ffi.from_buffer("uint8_t[]", self._view), len(self._view), self._position,
                batch_ptr(run), n, BATCH_BYTES, held("uint8_t *", out), room, batch_ptr(headers),
                counts, counts + 1,
            )  # fmt: skip
            if done != lib.SEG_E_ROOM:
                break
        if done < 0:
            self._fail(run[counts[1]], done)
        self._add(out, done, headers[: counts[0]])

    def add_nested(self, wrapper: NDArray[np.void], least: int) -> None:
        """Decompress, convert and add the messages in a wrapper. Their offsets must be at least `least`."""
        plain = self._decompressed(wrapper[0])
        room = HEADER_SIZE + len(plain)
        out, header, fault = bytes(room), np.empty(1, batch_type()), ffi.new("int64_t *")
        done = lib.seg_bring_up_nested(
            ffi.from_buffer("uint8_t[]", plain), len(plain), batch_ptr(wrapper), least,
            held("uint8_t *", out), room, batch_ptr(header), fault,
        )  # fmt: skip
        if done < 0:
            self._fail(wrapper[0], done, f" (message {fault[0]})")
        self._add(out, done, header)

    def _decompressed(self, wrapper: np.void) -> Buffer:
        codec, magic = int(wrapper["attributes"]) & CODEC_MASK, int(wrapper["magic"])
        if codec >= _CODECS:
            corrupt(self._where, wrapper, f"magic {magic} knows no codec {codec}")
        start = int(wrapper["position"]) - self._position
        value = _value(self._view[start : start + int(wrapper["size"])], magic)
        if value is None:
            corrupt(self._where, wrapper, "a wrapper without a value")
        try:
            return decompress(
                codec, lz4_of_magic_0(value) if codec == _LZ4 and magic == 0 else value, self._limit
            )
        except DecompressError as error:
            corrupt(self._where, wrapper, str(error))

    def _fail(self, batch: np.void, code: int, more: str = "") -> None:
        corrupt(self._where, batch, _REASONS.get(code, f"its messages can't be read ({code})") + more)

    def _add(self, out: bytes, size: int, headers: NDArray[np.void]) -> None:
        self._last = out
        self._pieces.append(memoryview(out)[:size])
        headers["position"] += self.size
        self._headers.append(headers)
        self.size += size

    def whole(self) -> tuple[bytes, NDArray[np.void]]:
        """Return (bytes, headers) of all batches. There may be unused bytes after the last batch."""
        if not self._headers:
            return b"", np.empty(0, batch_type())
        headers = np.concatenate(self._headers)
        # Usually a quarter of the buffer is unused: a copy of the used bytes would not be worth its time.
        alone = len(self._pieces) == 1 and 0 < len(self._last) <= self.size + self.size // 2
        return (self._last if alone else b"".join(self._pieces)), headers


def _value(message: memoryview, magic: int) -> memoryview | None:
    """Return the value of a whole message, or None if the value is null or does not end where the message
    ends.
    """
    at = _KEY_AT[magic]
    key = int.from_bytes(message[at : at + 4], "big", signed=True)
    at += 4 + max(key, 0)
    size = int.from_bytes(message[at : at + 4], "big", signed=True)
    return message[at + 4 :] if key >= -1 and 0 <= size == len(message) - at - 4 else None
