"""Batches and records of a `.log` file. On disk: reads only. Threads: one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from segstore._native import lib
from segstore.cli.dump_rows import Row
from segstore.cli.formats import as_text
from segstore.errors import CorruptRecordError
from segstore.files import Files
from segstore.index.sparse import MOST
from segstore.records import APPEND_TIME_FLAG, CODECS, CONTROL_FLAG, TRANSACTIONAL_FLAG, decode
from segstore.records.header import CODEC_MASK, DELETE_HORIZON_FLAG
from segstore.storage.segment.batch_scan import BAD, Step, walk_past_damage

FLAGS = {
    APPEND_TIME_FLAG: "append-time",
    TRANSACTIONAL_FLAG: "transactional",
    CONTROL_FLAG: "control",
    DELETE_HORIZON_FLAG: "delete-horizon",
}
MARKERS = {0: "abort", 1: "commit"}


def dump_log(files: Files, path: str, with_records: bool) -> Iterator[Row]:
    """A row a batch, and a row for each place where there is none but should be."""
    with files.open(path) as handle:
        end = min(files.size(handle), MOST)
        for step in walk_past_damage(files, handle, end, check_crcs=True):
            for i, batch in enumerate(step.batches):
                yield batch_row(batch)
                if with_records:
                    yield from _records(step, i, path)
            if _is_damage(step, end):
                reason = BAD[step.stop.status]
                yield Row(
                    "damage", {"position": step.stop.position, "reason": reason}, f"no valid batch: {reason}"
                )


def _is_damage(step: Step, end: int) -> bool:
    # A batch that reaches over the edge of what was read comes whole in the next step.
    more = step.position + len(step.data) < end
    cut = step.stop.status == lib.SEG_SHORT
    return step.stop.status in BAD and not (cut and more and step.stop.position + step.stop.need <= end)


def batch_row(batch: Any) -> Row:
    """A batch's header as cells."""
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
    }
    return Row("batch", cells, brief=_brief(cells))


def _brief(cells: dict[str, Any]) -> dict[str, Any]:
    same = ("count", "size", "codec", "max_timestamp", "flags", "leader_epoch")
    producer = [cells[name] for name in ("producer_id", "producer_epoch", "base_sequence")]
    return {
        "position": cells["position"],
        "offsets": f"{cells['base_offset']}..{cells['last_offset']}",
        **{name.replace("leader_", ""): cells[name] for name in same},
        "producer": "" if producer[0] < 0 else "/".join(map(str, producer)),
        "crc": cells["crc"],
    }


def _records(step: Step, i: int, path: str) -> Iterator[Row]:
    batch = step.batches[i : i + 1]
    try:
        records = decode(step.data, batch, path, step.position)
    except CorruptRecordError as error:
        yield Row("damage", {"position": error.position, "reason": error.reason}, error.reason)
        return
    control = bool(batch["attributes"][0] & CONTROL_FLAG)
    for record in records:
        if control:
            yield Row(
                "marker",
                {"offset": record.offset, "timestamp": record.timestamp, "marker": marker(record.key)},
            )
            continue
        key, value = as_text(record.key), as_text(record.value)
        cells: dict[str, Any] = {
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": key[0],
            "value": value[0],
            "headers": [
                [name, *(t for t in as_text(data) if t or not data)][:3] for name, data in record.headers
            ],
        }
        yield Row("record", {**cells, "encoding": _encodings(key[1], value[1])})


def _encodings(key: str | None, value: str | None) -> str:
    return " ".join(f"{part}:{held}" for part, held in (("key", key), ("value", value)) if held)


def marker(key: bytes | None) -> str:
    """What a control record says (its key: version int16, type int16)."""
    if key is None or len(key) < 4:
        return "not a control record"
    kind = int.from_bytes(key[2:4], "big")
    return MARKERS.get(kind, f"type {kind}")
