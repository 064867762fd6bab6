"""Bytes of records that the decoder must refuse, by the name of its error, or must just accept."""

from __future__ import annotations

import oracle
from native_batches import INT31, INT63
from oracle import Batch

V = oracle.encode_varint


def rec(body: bytes) -> bytes:
    return V(len(body)) + body


PLAIN = rec(b"\0" + V(0) + V(0) + V(-1) + V(-1) + V(0))


BAD_RECORDS = {
    "no bytes": (b"", 1, "SEG_E_FEW"),
    "one record of two": (PLAIN, 2, "SEG_E_FEW"),
    "a byte behind": (PLAIN + b"\0", 1, "SEG_E_TRAILING"),
    "records behind": (PLAIN + PLAIN, 1, "SEG_E_TRAILING"),
    "bytes of none": (b"\0", 0, "SEG_E_TRAILING"),
    "length cut": (b"\x80", 1, "SEG_E_VARINT"),
    "length of six bytes": (b"\x8e\x80\x80\x80\x80\0" + PLAIN[1:], 1, "SEG_E_VARINT"),
    "timestamp of eleven bytes": (
        rec(b"\0" + b"\x80" * 10 + b"\0" + V(0) + V(-1) * 2 + V(0)),
        1,
        "SEG_E_VARINT",
    ),
    "offset of six bytes": (rec(b"\0\0" + b"\x80" * 5 + b"\0" + V(-1) * 2 + V(0)), 1, "SEG_E_VARINT"),
    "key length of six bytes": (rec(b"\0\0\0" + b"\x80" * 5 + b"\0" + V(-1) + V(0)), 1, "SEG_E_VARINT"),
    "length negative": (V(-1) + PLAIN[1:], 1, "SEG_E_RECORD"),
    "length 0": (V(0), 1, "SEG_E_RECORD"),
    "length below the least": (V(5) + PLAIN[1:], 1, "SEG_E_RECORD"),
    "length beyond the bytes": (V(7) + PLAIN[1:], 1, "SEG_E_RECORD"),
    "length near 2^31": (V(INT31) + PLAIN[1:], 1, "SEG_E_RECORD"),
    "longer than its content": (rec(PLAIN[1:] + b"\0"), 1, "SEG_E_RECORD"),
    "key null as -2": (rec(b"\0\0\0" + V(-2) + V(-1) + V(0)), 1, "SEG_E_RECORD"),
    "key beyond the record": (rec(b"\0\0\0" + V(3) + V(-1) + V(0)), 1, "SEG_E_RECORD"),
    "key of 2^31 - 1": (rec(b"\0\0\0" + V(INT31) + V(-1) + V(0)), 1, "SEG_E_RECORD"),
    "key of -2^31": (rec(b"\0\0\0" + V(-(1 << 31)) + V(-1) + V(0)), 1, "SEG_E_RECORD"),
    "value as long as the rest": (rec(b"\0\0\0" + V(-1) + V(1) + V(0)), 1, "SEG_E_RECORD"),
    "value of 2^31 - 1": (rec(b"\0\0\0" + V(-1) + V(INT31) + V(0)), 1, "SEG_E_RECORD"),
    "value null as -2": (rec(b"\0\0\0" + V(-1) + V(-2) + V(0)), 1, "SEG_E_RECORD"),
    "headers negative": (rec(b"\0\0\0" + V(-1) * 2 + V(-1)), 1, "SEG_E_RECORD"),
    "headers beyond the record": (rec(b"\0\0\0" + V(-1) * 2 + V(1)), 1, "SEG_E_RECORD"),
    "headers of 2^31 - 1": (rec(b"\0\0\0" + V(-1) * 2 + V(INT31)), 1, "SEG_E_RECORD"),
    "header without a name": (rec(b"\0\0\0" + V(-1) * 2 + V(1) + V(-1) + V(-1)), 1, "SEG_E_RECORD"),
    "header value null as -2": (rec(b"\0\0\0" + V(-1) * 2 + V(1) + V(0) + V(-2)), 1, "SEG_E_RECORD"),
    "bytes behind the headers": (rec(b"\0\0\0" + V(-1) * 2 + V(0) + b"\0"), 1, "SEG_E_RECORD"),
    "offset negative": (rec(b"\0\0" + V(-1) + V(-1) * 2 + V(0)), 1, "SEG_E_RECORD"),
    "offset above the batch's last": (rec(b"\0\0" + V(10) + V(-1) * 2 + V(0)), 1, "SEG_E_RECORD"),
    "the same offset twice": (PLAIN + PLAIN, 2, "SEG_E_RECORD"),
}


TEN = Batch(100, last_offset_delta=9)


LONG_VARINTS = {
    "length": b"\x8c\x80\x80\x80\0" + PLAIN[1:],
    "timestamp of ten bytes": rec(b"\0" + b"\xff" * 9 + b"\x01" + V(0) + V(-1) * 2 + V(0)),
    "timestamp with bits beyond": rec(b"\0" + b"\x80" * 9 + b"\x7e" + V(0) + V(-1) * 2 + V(0)),
    "offset": rec(b"\0\0" + b"\x82\x80\x80\x80\0" + V(-1) * 2 + V(0)),
    "null key": rec(b"\0\0\0" + b"\x81\x80\x80\x80\0" + V(-1) + V(0)),
    "null key with bits beyond": rec(b"\0\0\0" + b"\x81\x80\x80\x80\x70" + V(-1) + V(0)),
    "value": rec(b"\0\0\0" + V(-1) + b"\x82\x80\0x" + V(0)),
    "no headers": rec(b"\0\0\0" + V(-1) * 2 + b"\x80\x80\0"),
}


SPANS = {
    "at negative": (-1, 5),
    "length negative": (0, -1),
    "beyond the arena": (1, len(PLAIN)),
    "at beyond the arena": (len(PLAIN) + 1, 0),
    "length near 2^63": (1, INT63),
    "at near 2^63": (INT63, 1),
}
