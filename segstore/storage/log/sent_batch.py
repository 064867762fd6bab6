"""`SentBatch`: a batch that is checked by the rules of Kafka's LogValidator, and appended in the bytes that
the producer sent, without decoding.

Nothing is on disk. The bytes stay in the receive buffer, and an append changes them in place. If the topic's
`compression.type` names another codec, the records are compressed anew, into other memory. Threads: a batch
belongs to one thread.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from segstore._native import ffi, held, lib
from segstore.arrays import np
from segstore.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTypeError,
    RecordBatchTooLargeError,
    RecordError,
    RecordTooLargeError,
    SegstoreError,
    UnsupportedCompressionTypeError,
)
from segstore.records import CODECS, HEADER_SIZE, Encoded, Records, Template, batch_type, decode
from segstore.records.codecs import MAX_PLAIN, Buffer, DecompressError, compress, decompress
from segstore.records.header import APPEND_TIME_FLAG, CODEC_MASK
from segstore.storage.log.validator import LogValidator

Received = memoryview | bytearray
_ZSTD = CODECS.index("zstd")
_ATTRIBUTES_AT = 22  # the position of the byte with the codec in a batch
_MOST_ERRORS = 100  # one error names at most this many records
_NEW_HEADER = ffi.typeof("seg_batch *")

_INVALID = {
    lib.SEG_CHECK_MAGIC: "it is not of magic 2",
    lib.SEG_CHECK_MORE: "bytes are left behind it: exactly one batch is allowed",
    lib.SEG_CHECK_BASE: "its base offset must be 0",
    lib.SEG_CHECK_COUNT: "its record count and its last offset delta disagree, or it has no records",
    lib.SEG_CHECK_CONTROL: "clients must not write control batches",
    lib.SEG_CHECK_HORIZON: "clients must not set a delete horizon",
    lib.SEG_CHECK_CODEC: "its codec is unknown",
    lib.SEG_CHECK_PRODUCER: "its producer id, epoch, base sequence and flags do not belong together",
    lib.SEG_CHECK_RECORD: "its records do not fill it, or one is damaged",
    lib.SEG_CHECK_OFFSETS: "the offset deltas of its records do not count from 0",
}


class SentBatch(NamedTuple):
    """A checked batch: its bytes as an `Encoded` for the log's writer, its producer fields, and the number of
    its records.
    """

    encoded: Encoded
    template: Template
    records: int


def check_received(batch: Any, allow_zstd: bool) -> None:
    """Raise InvalidTypeError if the batch is not a writable buffer of bytes, and
    UnsupportedCompressionTypeError if it is compressed with zstd and `allow_zstd` is False.
    """
    if type(batch) is memoryview:
        plain = batch.ndim == 1 and batch.itemsize == 1 and batch.contiguous and not batch.readonly
    else:
        plain = type(batch) is bytearray
    if not plain:
        raise InvalidTypeError(
            f"batch must be a bytearray or a writable memoryview of bytes, not {type(batch).__name__}"
        )
    if not allow_zstd and len(batch) > _ATTRIBUTES_AT and batch[_ATTRIBUTES_AT] & CODEC_MASK == _ZSTD:
        raise UnsupportedCompressionTypeError("zstd needs a produce request of version 7 or later")


def check_batch(batch: Received, validator: LogValidator, now: int, where: str) -> SentBatch:
    """Check a batch. Return it in the topic's codec, with the largest timestamp of its records in its header.
    `now` is the clock in ms; `where` names the partition.

    Raises CorruptRecordError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError.
    """
    header, found = ffi.new(_NEW_HEADER), ffi.new("seg_checked *")
    status = lib.seg_check_batch(
        ffi.from_buffer("uint8_t[]", batch), len(batch), validator.rules, now, header, found
    )
    plain: Buffer = b""
    if status == lib.SEG_CHECK_PACKED:
        plain = _unpacked(batch, int(header.attributes) & CODEC_MASK, where)
        status = lib.seg_check_records(
            ffi.from_buffer("uint8_t[]", plain), len(plain), validator.rules, now, header, found
        )
    if status != lib.SEG_CHECKED:
        raise _refusal(status, batch, plain, header, found, validator, now, where)
    # As in Kafka, the header's largest timestamp is replaced by the records' largest.
    changed = header.max_timestamp != found.max_timestamp
    header.max_timestamp = found.max_timestamp
    return _as_topic_has_it(batch, plain, header, changed, validator)


def _unpacked(batch: Received, codec: int, where: str) -> Buffer:
    """Return the plain records of a compressed batch, at most MAX_PLAIN bytes."""
    try:
        with memoryview(batch) as whole, whole[HEADER_SIZE:] as payload:
            return decompress(codec, payload, MAX_PLAIN)
    except DecompressError as error:
        raise CorruptRecordError(f"a batch for {where}", 0, 0, str(error)) from None


def _as_topic_has_it(
    batch: Received, plain: Buffer, header: Any, changed: bool, validator: LogValidator
) -> SentBatch:
    codec = int(header.attributes) & CODEC_MASK
    data: Received = batch
    if not validator.keeps_codec and codec != validator.codec:
        data = _recompressed(batch, plain, header, validator)
    elif changed:
        lib.seg_seal(ffi.from_buffer("uint8_t[]", data), len(data), header)
    return of_header(data, header)


def of_header(data: Received, header: Any) -> SentBatch:
    """Return the SentBatch of checked bytes with a correct header (`seg_batch *`)."""
    batches = np.frombuffer(bytearray(ffi.buffer(header)), batch_type())
    template = Template(
        int(header.attributes) & ~CODEC_MASK,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    )
    return SentBatch(Encoded.of(data, batches), template, int(header.count))


def _recompressed(batch: Received, plain: Buffer, header: Any, validator: LogValidator) -> bytearray:
    """Return the batch with its records in the topic's codec, and change `header` accordingly. The records
    themselves do not change.
    """
    with memoryview(batch) as whole:
        records = plain if int(header.attributes) & CODEC_MASK else whole[HEADER_SIZE:]
        made = bytearray(HEADER_SIZE)
        made += compress(validator.codec, records, validator.level)
    if len(made) > validator.largest_batch:
        raise too_large(len(made), validator)
    header.size = len(made)
    header.attributes = (int(header.attributes) & ~CODEC_MASK) | validator.codec
    lib.seg_seal(held("uint8_t[]", made), len(made), header)
    return made


# --- refusals ----------------------------------------------------------------------------------


def too_large(size: int, validator: LogValidator) -> RecordTooLargeError:
    """Return the error for a batch of `size` bytes."""
    kind = RecordTooLargeError if validator.exceeds_message(size) else RecordBatchTooLargeError
    return kind(validator.too_large(size))


def _refusal(
    status: int,
    batch: Received,
    plain: Buffer,
    header: Any,
    found: Any,
    validator: LogValidator,
    now: int,
    where: str,
) -> SegstoreError:
    what = f"a batch for {where}"
    if status == lib.SEG_CHECK_SHORT:
        return CorruptRecordError(what, 0, 0, f"its length does not fit the {len(batch):,} bytes that came")
    if status == lib.SEG_CHECK_CRC:
        return CorruptRecordError(what, 0, 0, "its CRC is wrong")
    if status == lib.SEG_CHECK_LARGE:
        return too_large(len(batch), validator)
    if status in _INVALID:
        record = f" (record {found.record})" if status >= lib.SEG_CHECK_RECORD else ""
        return InvalidRecordError(f"{what} is refused: {_INVALID[status]}{record}")
    if status == lib.SEG_CHECK_APPEND_TIME:
        return InvalidTimestampError(f"{what} is refused: producers must not set LogAppendTime")
    return _of_records(_records(batch, plain, header), validator, now, what)


def _records(batch: Received, plain: Buffer, header: Any) -> Records:
    """Decode the records of a batch whose CRC and sizes are right."""
    with memoryview(batch) as whole:
        data = bytes(HEADER_SIZE) + bytes(plain) if plain else bytes(whole)
    headers = np.frombuffer(bytearray(ffi.buffer(header)), batch_type())
    headers["attributes"] &= ~(CODEC_MASK | APPEND_TIME_FLAG)
    headers["size"] = len(data)
    return decode(data, headers, "a batch")


def _of_records(records: Records, validator: LogValidator, now: int, what: str) -> InvalidRecordError:
    """Return the error that names the records without a key, or with a timestamp out of the topic's range."""
    config, stamps = validator.rules, records.timestamps
    errors: list[RecordError] = []
    if config.needs_key:
        keyless = [i for i, key in enumerate(records.keys) if key is None]
        errors += [RecordError(i, "the topic is compacted: a record must have a key") for i in keyless]
    far = np.zeros(len(stamps), bool)
    if config.create_time:
        far = (stamps < -1) | (stamps - now > config.after_ms)
        far |= (stamps >= 0) & (now - np.maximum(stamps, 0) > config.before_ms)
    told = (
        f"the topic allows {config.before_ms} ms before the clock ({now}) and {config.after_ms} ms behind it"
    )
    for i in np.flatnonzero(far)[:_MOST_ERRORS].tolist():
        errors.append(RecordError(i, f"timestamp {int(stamps[i])} is out of range: {told}"))
    errors = sorted(errors)[:_MOST_ERRORS]
    kind = InvalidTimestampError if far.any() else InvalidRecordError
    return kind(
        f"{what} is refused for its records, first {errors[0].batch_index}: {errors[0].message}", errors
    )
