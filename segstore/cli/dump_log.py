"""Makes the rows of `segstore dump` for batches and records. Decides by a file's name which rows the file
has. On disk: the files to print are only read. Threads: one.

No store is opened: single files, partition directories and whole log directories are read, even if they are
damaged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import click

from segstore import names
from segstore._native import lib
from segstore.cli.consume import as_text
from segstore.cli.dump_files import SMALL, DumpRow, dump_epochs, dump_offsets
from segstore.cli.dump_states import state_text, topic_of_states
from segstore.errors import CorruptRecordError
from segstore.files import Files
from segstore.index.sparse import MOST
from segstore.records import (
    APPEND_TIME_FLAG,
    CODECS,
    CONTROL_FLAG,
    MAGIC,
    TRANSACTIONAL_FLAG,
    bring_up,
    decode,
)
from segstore.records.control import ABORT, COMMIT, SNAPSHOT_FOOTER, SNAPSHOT_HEADER
from segstore.records.header import CODEC_MASK, DELETE_HORIZON_FLAG
from segstore.storage.segment.batch_scan import BAD, ScanStep, walk_past_damage

# --- dump log ----------------------------------------------------------------------------------

# The functions of this section make the rows of a `.log` file, or of a snapshot of the metadata.

FLAGS = {
    APPEND_TIME_FLAG: "append-time",
    TRANSACTIONAL_FLAG: "transactional",
    CONTROL_FLAG: "control",
    DELETE_HORIZON_FLAG: "delete-horizon",
}
_Text = tuple["str | None", "str | None"]
MARKERS = {
    ABORT: "abort",
    COMMIT: "commit",
    SNAPSHOT_HEADER: "snapshot header",
    SNAPSHOT_FOOTER: "snapshot footer",
}


def dump_log(files: Files, path: str, with_records: bool) -> Iterator[DumpRow]:
    """Yield a row for each batch, and for each position at which a batch should begin but does not."""
    with files.open(path) as handle:
        end = min(files.size(handle), MOST)
        for step in walk_past_damage(files, handle, end, check_crcs=True):
            for i in range(len(step.batches)):
                yield batch_row(_as_known(step, i, path))
                if with_records:
                    yield from _records(step, i, path)
            if _is_damage(step, end):
                reason = BAD[step.stop.status]
                yield DumpRow(
                    "damage", {"position": step.stop.position, "reason": reason}, f"no valid batch: {reason}"
                )


def _is_damage(step: ScanStep, end: int) -> bool:
    # If a batch does not end within this step's data, it is no damage: the next step reads the whole batch.
    more = step.position + len(step.data) < end
    cut = step.stop.status == lib.SEG_SHORT
    return step.stop.status in BAD and not (cut and more and step.stop.position + step.stop.need <= end)


def _as_known(step: ScanStep, i: int, path: str) -> Any:
    """Return the header of batch `i`. If the batch is a compressed message of magic 0 or 1, the header gets
    the base offset of the messages in it, and their number.
    """
    batch = step.batches[i]
    if batch["magic"] == MAGIC or not batch["attributes"] & CODEC_MASK:
        return batch
    batch = batch.copy()
    try:
        _, (made, *_rest) = bring_up(step.data, step.batches[i : i + 1], path, step.position)
    except CorruptRecordError:
        return batch  # The row of the damage follows.
    batch["base_offset"], batch["count"] = made["base_offset"], made["count"]
    return batch


def batch_row(batch: Any) -> DumpRow:
    """Return the row of a batch. `batch` is its header."""
    attributes = int(batch["attributes"])
    code = attributes & CODEC_MASK
    cells: dict[str, Any] = {
        "position": int(batch["position"]),
        "base_offset": int(batch["base_offset"]),
        "last_offset": int(batch["last_offset"]),
        "count": int(batch["count"]),
        "size": int(batch["size"]),
        "codec": CODECS[code] if code < len(CODECS) else f"unknown ({code})",
        "base_timestamp": int(batch["base_timestamp"]),
        "max_timestamp": int(batch["max_timestamp"]),
        "flags": " ".join(word for bit, word in FLAGS.items() if attributes & bit),
        "leader_epoch": int(batch["leader_epoch"]),
        "producer_id": int(batch["producer_id"]),
        "producer_epoch": int(batch["producer_epoch"]),
        "base_sequence": int(batch["base_sequence"]),
        "crc": f"{int(batch['crc']):08x}",
        "magic": int(batch["magic"]),
    }
    return DumpRow("batch", cells, brief=_brief(cells))


def _brief(cells: dict[str, Any]) -> dict[str, Any]:
    same = ("magic", "count", "size", "codec", "max_timestamp", "flags", "leader_epoch")
    producer = [cells[name] for name in ("producer_id", "producer_epoch", "base_sequence")]
    return {
        "position": cells["position"],
        "offsets": f"{cells['base_offset']}..{cells['last_offset']}",
        **{name.replace("leader_", ""): cells[name] for name in same},
        "producer": "" if producer[0] < 0 else "/".join(map(str, producer)),
        "crc": cells["crc"],
    }


def _records(step: ScanStep, i: int, path: str) -> Iterator[DumpRow]:
    batch = step.batches[i : i + 1]
    try:
        records = decode(step.data, batch, path, step.position)
    except CorruptRecordError as error:
        yield DumpRow("damage", {"position": error.position, "reason": error.reason}, error.reason)
        return
    control, states = bool(batch["attributes"][0] & CONTROL_FLAG), topic_of_states(path)
    for record in records:
        if control:
            yield DumpRow(
                "marker",
                {"offset": record.offset, "timestamp": record.timestamp, "marker": marker(record.key)},
            )
            continue
        key, value = _texts(record.key, record.value, states)
        cells: dict[str, Any] = {
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": key[0],
            "value": value[0],
            "headers": [
                [name, *(t for t in as_text(data) if t or not data)][:3] for name, data in record.headers
            ],
        }
        yield DumpRow("record", {**cells, "encoding": _encodings(key[1], value[1])})


def _texts(key: bytes | None, value: bytes | None, states: str | None) -> tuple[_Text, _Text]:
    """Return ((text, encoding) of the key, (text, encoding) of the value)."""
    state = state_text(states, key, value) if states else None
    return (as_text(key), as_text(value)) if state is None else ((state.key, None), (state.value, None))


def _encodings(key: str | None, value: str | None) -> str:
    return " ".join(f"{part}:{encoding}" for part, encoding in (("key", key), ("value", value)) if encoding)


def marker(key: bytes | None) -> str:
    """Return the type of a control record as text. `key` is the record's key: a version (int16) and a type
    (int16).
    """
    if key is None or len(key) < 4:
        return "not a control record"
    kind = int.from_bytes(key[2:4], "big")
    return MARKERS.get(kind, f"type {kind}")


# --- files -----------------------------------------------------------

BATCHES = (names.LOG, names.METADATA_SNAPSHOT)
"""The suffixes of files that have record batches."""
WHOLE_NAMES: dict[str, Callable[[Files, str], Iterator[DumpRow]]] = {
    names.LEADER_EPOCHS: dump_epochs,
    names.RECOVERY_POINTS: dump_offsets,
    names.HIGH_WATERMARKS: dump_offsets,
    names.LOG_STARTS: dump_offsets,
    names.CLEANER_OFFSETS: dump_offsets,
}


def rows_of(files: Files, path: str, records: bool) -> Iterator[DumpRow]:
    """Return the rows of one file. The file's name says its type. Raises UsageError if no file of a store has
    such a name.
    """
    name = os.path.basename(path)
    if name in WHOLE_NAMES:
        return WHOLE_NAMES[name](files, path)
    kind = kind_of(name)
    if kind in BATCHES:
        return dump_log(files, path, records)
    if kind in SMALL:
        return SMALL[kind](files, path)
    known = ", ".join([*BATCHES, *SMALL, *WHOLE_NAMES])
    raise click.UsageError(f"{path}: the name does not say what it is; known are {known}.")


def kind_of(name: str) -> str | None:
    """Return the suffix of a file's name that says the file's type, None if there is no such suffix. A
    .deleted, .cleaned, .swap or .part at the end of the name is ignored.
    """
    for more in (names.DELETED, names.CLEANED, names.SWAP, names.PART):
        name = name.removesuffix(more)
    suffix = os.path.splitext(name)[1]
    return suffix if suffix in (*BATCHES, *SMALL) else None


def below(files: Files, directory: str) -> Iterator[str]:
    """Yield the paths of the files that `dump` can print, ordered by name: those in the directory of a
    partition, or in all partitions of a store.
    """
    for name in sorted(files.listdir(directory)):
        path = os.path.join(directory, name)
        if os.path.isdir(path):
            ours = names.parse_partition_dir(name) is not None or names.is_deleted_dir(name)
            if ours and not files.is_symlink(path):
                yield from below(files, path)
        elif name in WHOLE_NAMES or (kind_of(name) and _is_named(name)):
            yield path


def _is_named(name: str) -> bool:
    return bool(names.parse_segment_file(name) or names.parse_metadata_snapshot(name))
