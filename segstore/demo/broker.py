"""The step that opens what an Apache Kafka broker wrote. On disk: reads only. Threads: one."""

from __future__ import annotations

import os

import segstore
from segstore.cli.disk import log_bytes
from segstore.cli.output import add_row, size_text, table, time_text
from segstore.demo.screen import Screen
from segstore.records import CODECS
from segstore.records.header import CODEC_MASK

WRITTEN = os.path.join("tests", "golden", "clean")


def show_broker(screen: Screen) -> None:
    """What is in a broker's log directory, opened in place; a word where it is not installed."""
    root = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(segstore.__file__))), WRITTEN)
    with screen.step("A broker's log directory", "written by Apache Kafka 4.1, opened in place, read-only"):
        if not os.path.isdir(root):
            screen.say(f"left out: {WRITTEN} is in the source tree only, and this is an installed package")
            return
        right = ("partition", "offsets", "records", "batches", "bytes")
        made = table("topic", *right, "codec", "last record (UTC)", right=right)
        with segstore.open(root, mode="r") as store:
            for info in store.topics().values():
                for partition in info.partition_ids:
                    add_row(made, info.name, *_partition_cells(store, info.name, partition))
        screen.table(made)


def _partition_cells(store: segstore.Store, topic: str, partition: int) -> list[str]:
    log = store.partition(topic, partition)
    offset, count, batches, last, codecs = log.start_offset, 0, 0, -1, set()
    while offset < log.end_offset:
        records = log.read(offset)
        count, batches = count + len(records), batches + len(records.batches)
        codecs |= {CODECS[code] for code in (records.batches["attributes"] & CODEC_MASK).tolist()}
        last = max([last, *records.timestamps[-1:].tolist()])
        offset = records.next_offset
    size = size_text(log_bytes(store.path, topic, partition))
    span = f"{log.start_offset} to {log.end_offset}"
    return [
        str(partition),
        span,
        f"{count:,}",
        str(batches),
        size,
        ", ".join(sorted(codecs)),
        time_text(last),
    ]
