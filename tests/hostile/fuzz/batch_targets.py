"""Parsers of record batches: scan, decode, resync, seek, restamp, the codecs. On disk: files in memory."""

from __future__ import annotations

import errno
import os
import struct

import message_sets
from native_batches import decode_both
from oracle import HEADER, Batch, Malformed, encode_records, split_batch

from fuzz import batches, differ, messages
from fuzz.target import Target
from segstore._native import ffi, lib
from segstore.files import Files, Handle
from segstore.records.codecs import DecompressError, compress, decompress
from segstore.records.header import LEAST_ENTRY

_MOST_OFFSET = (1 << 63) - 1
_LIMIT = 1 << 22


def _buffer(data: bytes) -> object:
    """Exactly as large, so that the sanitizer sees a step beyond it."""
    return ffi.new(f"uint8_t[{len(data)}]", data) if data else ffi.NULL


def _holds(data: bytes) -> bool:
    try:
        if differ.is_old(data):
            message_sets.parse(message_sets.split(data))
        else:
            split_batch(data)
    except (Malformed, message_sets.Malformed):
        return False
    return True


def resync(data: bytes) -> str:
    """The first place where the oracle, too, finds a whole batch."""
    found = int(lib.seg_resync(_buffer(data), len(data), 0, 0, _MOST_OFFSET))
    last = len(data) - LEAST_ENTRY
    likely = (at for at in range(last + 1) if data[at + 16] <= 2)
    assert found == next((at for at in likely if _holds(data[at:])), -1)
    return "none" if found < 0 else "at the start" if found == 0 else "later"


def _in_memory(data: bytes) -> Handle:
    memory = os.memfd_create("input")
    try:
        os.write(memory, data)
        return Handle(f"/proc/self/fd/{memory}", os.O_RDWR)
    finally:
        os.close(memory)


def _sizes(data: bytes) -> list[tuple[int, int, int]]:
    """(position, base offset, last offset) of the batches, by their headers alone, up to what is none."""
    found, at, previous = [], 0, -1
    while len(data) - at >= LEAST_ENTRY:
        message = _message(data[at:], previous)
        if message:
            base, size = message
            if size > len(data) - at:
                break
            found.append((at, base, base))
            at, previous = at + size, base
            continue
        if len(data) - at < HEADER.size:
            break
        base, length, _, magic, *rest = HEADER.unpack_from(data, at)
        last = base + rest[2]
        good = length >= HEADER.size - 12 and length <= (1 << 31) - 13 and magic == 2
        if not good or rest[2] < 0 or base <= previous or last > _MOST_OFFSET or length + 12 > len(data) - at:
            break
        found.append((at, base, last))
        at, previous = at + length + 12, last
    return found


def _message(data: bytes, previous: int) -> tuple[int, int] | None:
    """Return offset and size of the message of magic 0 or 1 at the front, as far as its header tells."""
    offset, length = struct.unpack_from(">qi", data)
    if data[16] > 1:
        return None
    key_at = (18, 26)[data[16]]
    most = length + 12 - key_at - 8
    if most < 0 or length > (1 << 31) - 13 or not previous < offset < _MOST_OFFSET:
        return None
    key = int.from_bytes(data[key_at : key_at + 4], "big", signed=True) if len(data) >= key_at + 4 else -1
    return (offset, length + 12) if -1 <= key <= most else None


def seek(data: bytes) -> str:
    """The batch that holds an offset, found by headers."""
    there, out = _sizes(data), ffi.new("seg_batch *")
    verdicts = set()
    with _in_memory(data) as handle:
        for target in {0, 11, 35, _MOST_OFFSET, *(last for _, _, last in there)}:
            code = Files().seek_batch(handle, 0, len(data), target, out)
            wanted = next((at for at, _, last in there if last >= target), None)
            assert code in (0, 1) or -10200 < code <= -10100, code
            assert (code == 1) == (wanted is not None), (code, wanted, target)
            assert code != 1 or out.position == wanted
            verdicts.add(code)
    return f"{sorted(verdicts)}"


def restamp(data: bytes) -> str:
    """Batches that were given their offsets are in order, and the same but for those."""
    with _in_memory(data) as handle:
        try:
            end = Files().restamp(handle, len(data), 1000, 7)
        except OSError as error:
            if error.errno != errno.EBADMSG:
                raise
            return "refused"
        after = Files().pread(handle, len(data), 0)
    assert len(after) == len(data)
    places = [(base, last) for _, base, last in _sizes(after)]
    assert not places or (places[0][0], places[-1][1] + 1) == (1000, end), places
    return f"{min(len(places), 3)} batches"


_HEADER = Batch(10, 4, 0, 100, 1000, 2000)


def records(data: bytes) -> str:
    """First byte: how many records the rest is said to be. The oracle finds the same ones, or damage too."""
    count, payload = (data[:1] or b"\0")[0], data[1:]
    found, wanted = decode_both(_HEADER, count, payload)
    assert (type(found), type(wanted)) in ((list, list), (str, type(None))), (found, wanted)
    assert isinstance(found, str) or found == wanted
    return found if isinstance(found, str) else f"{min(len(found), 3)} records"


def _record_seeds() -> list[bytes]:
    held = [batch for batch in batches.PLAIN_ONES if batch.base_offset == _HEADER.base_offset]
    return [bytes([len(batch.records)]) + encode_records(batch) for batch in held]


def codec(data: bytes) -> str:
    """First byte: the codec. What becomes of the rest is at most what was allowed."""
    kind = (data[:1] or b"\0")[0] % 5
    try:
        plain = bytes(decompress(kind, data[1:], _LIMIT))
    except DecompressError:
        return f"codec {kind} refuses"
    assert len(plain) <= _LIMIT
    assert bytes(decompress(kind, bytes(compress(kind, plain)), _LIMIT)) == plain
    return f"codec {kind}"


def _codec_seeds() -> list[bytes]:
    texts = [b"", b"a", b"abc" * 50_000, bytes(range(256)) * 20]
    frames = [bytes([kind]) + bytes(compress(kind, text)) for kind in range(1, 5) for text in texts]
    declared = struct.pack("<IBBQB", 0x184D2204, 0x68, 0x40, 1 << 62, 0)  # lz4 that says 4 EiB
    return [*frames, b"\2\xff\xff\xff\xff\x0f" + b"a" * 20, b"\3" + declared]


TARGETS = {
    "batches": Target(differ.compare, batches.seeds, batches.MUTATORS, batches.with_crcs),
    "messages": Target(differ.compare, messages.seeds, messages.MUTATORS, messages.with_crcs),
    "records": Target(records, _record_seeds),
    "resync": Target(resync, batches.made, batches.MUTATORS, batches.with_crcs),
    "resync among messages": Target(resync, messages.seeds, messages.MUTATORS, messages.with_crcs),
    "seek": Target(seek, batches.made, batches.MUTATORS, batches.with_crcs),
    "seek among messages": Target(seek, messages.seeds, messages.MUTATORS, messages.with_crcs),
    "restamp": Target(restamp, batches.made, batches.MUTATORS, batches.with_crcs),
    "codecs": Target(codec, _codec_seeds),
}
