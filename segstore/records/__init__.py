"""Encodes and decodes record batches (magic 2). Messages of magic 0 and 1 are converted to batches first.

This package handles the bytes of batches, and touches no files. Each module states its own thread contract.
"""

from __future__ import annotations

from segstore.records.bring_up import bring_up, is_old
from segstore.records.codecs import MAX_PLAIN
from segstore.records.column import Column, HeaderColumns
from segstore.records.columns import Columns, as_column, as_headers, as_timestamps
from segstore.records.decode import ScanEnd, decode, scan, scan_headers, stamped
from segstore.records.encode import check_sizes, encode, single
from segstore.records.encoded import CHUNK_BYTES, Encoded, Template
from segstore.records.header import (
    APPEND_TIME_FLAG,
    BATCH_SIZE,
    CODEC_MASK,
    CODECS,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE,
    LEAST_ENTRY,
    MAGIC,
    TRANSACTIONAL_FLAG,
    batch_ptr,
    batch_type,
)
from segstore.records.produced import columns_of, produced
from segstore.records.records import Record, Records, concat, empty_records

__all__ = [
    "APPEND_TIME_FLAG",
    "BATCH_SIZE",
    "CHUNK_BYTES",
    "CODECS",
    "CODEC_MASK",
    "CONTROL_FLAG",
    "DELETE_HORIZON_FLAG",
    "HEADER_SIZE",
    "LEAST_ENTRY",
    "MAGIC",
    "MAX_PLAIN",
    "TRANSACTIONAL_FLAG",
    "Column",
    "Columns",
    "Encoded",
    "HeaderColumns",
    "Record",
    "Records",
    "ScanEnd",
    "Template",
    "as_column",
    "as_headers",
    "as_timestamps",
    "batch_ptr",
    "batch_type",
    "bring_up",
    "check_sizes",
    "columns_of",
    "concat",
    "decode",
    "empty_records",
    "encode",
    "is_old",
    "produced",
    "scan",
    "scan_headers",
    "single",
    "stamped",
]
