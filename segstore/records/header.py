"""The 61-byte record batch header (magic 2), as numpy and C see it; messages of magic 0 and 1 get a header of
the same layout. Nothing is on disk.

The constants `AT_...` of `_native/bytes.h` are the positions of the fields in the bytes of a batch.

The data of this module never changes, and the functions have no state: both are safe from any thread.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from segstore._native import ffi, held
from segstore.arrays import np
from segstore.choices import CODECS as CODECS
from segstore.errors import CorruptRecordError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC = 2
"""The magic of record batches; old messages have 0 or 1 (org.apache.kafka.common.record.LegacyRecord)."""
HEADER_SIZE = 61
LEAST_ENTRY = 26
"""Size, in bytes, of the smallest entry of a log: a message of magic 0 without key and value."""
LEAST_RECORD = 7
"""Size, in bytes, of the smallest record: without key, value and headers, and with small deltas."""

BATCH_SIZE = ffi.sizeof("seg_batch")


@cache
def batch_type() -> np.dtype[np.void]:
    """Return the numpy type of a batch header: `seg_batch` of `_native/contract/batch.h`, in host order. A
    message of magic 0 or 1 has a header of this type too; batch.h says which of its fields are set.
    """
    return np.dtype(
        [
            ("position", np.int64),
            ("base_offset", np.int64),
            ("last_offset", np.int64),
            ("base_timestamp", np.int64),
            ("max_timestamp", np.int64),
            ("producer_id", np.int64),
            ("size", np.int32),
            ("leader_epoch", np.int32),
            ("base_sequence", np.int32),
            ("count", np.int32),
            ("crc", np.uint32),
            ("attributes", np.int16),
            ("producer_epoch", np.int16),
            ("magic", np.int64),
        ]
    )


NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_SEQUENCE = -1

CODEC_MASK = 0x07
APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40


def batch_ptr(batches: NDArray[np.void]) -> Any:
    """Return a `seg_batch *` to the first element of a contiguous array of `batch_type`; the pointer is valid
    while the array exists.
    """
    return held("seg_batch *", batches) if len(batches) else ffi.NULL


def corrupt(where: str, batch: np.void, reason: str) -> NoReturn:
    """Raise CorruptRecordError for a batch of file `where`."""
    raise CorruptRecordError(where, int(batch["position"]), int(batch["base_offset"]), reason)
