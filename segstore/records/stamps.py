"""Which batches may hold records of a span of time, without decoding them; nothing on disk.

Functions without state over bytes that were read already: safe from any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from segstore._native import ffi, lib
from segstore.records.header import CODEC_MASK, HEADER_SIZE

if TYPE_CHECKING:
    from numpy.typing import NDArray


def stamped(buf: Any, batches: NDArray[np.void], position: int, least: int, most: int) -> NDArray[np.bool_]:
    """One per batch of `buf`, which was read at `position`: whether it may hold a record stamped from `least`
    to `most` ms, both included. Compressed ones are judged by their headers, plain ones by each record.
    """
    found: NDArray[np.bool_] = batches["max_timestamp"] >= least
    plain = np.flatnonzero(found & ((batches["attributes"] & CODEC_MASK) == 0))
    if len(plain):
        found[plain] = _looked_at(buf, batches[plain], position - HEADER_SIZE, least, most)
    return found


def _looked_at(
    buf: Any, batches: NDArray[np.void], position: int, least: int, most: int
) -> NDArray[np.uint8]:
    starts = batches["position"] - position
    sizes = np.subtract(batches["size"], HEADER_SIZE, dtype=np.int64)
    hits = np.empty(len(batches), np.uint8)
    done = lib.seg_stamped(
        ffi.from_buffer("uint8_t[]", buf), len(buf),
        ffi.from_buffer("seg_batch *", batches), ffi.from_buffer("int64_t *", starts),
        ffi.from_buffer("int64_t *", sizes), len(batches), least, most, ffi.from_buffer("uint8_t *", hits),
    )  # fmt: skip
    if done < 0:
        raise AssertionError(f"batches do not lie in the bytes that they were scanned in: {done}")
    return hits
