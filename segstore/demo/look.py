"""Steps of the demo that read. On disk: reads only. Threads: one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import numpy as np

import segstore
from segstore.cli.options import parse_time
from segstore.cli.output import add_row, rate_text, table, time_text
from segstore.client.producer.partitioner import partition_for_key
from segstore.demo.flights import PARTITIONS, TOPIC, Flights
from segstore.demo.screen import Screen
from segstore.demo.steps import READ_BYTES

FLIGHT = b"UA-15"
"""A flight that went daily, all the year."""


def look(screen: Screen, path: str, held: Flights) -> None:
    """Reads, in a process that need not be the writer's."""
    with segstore.open(path, mode="r") as store:
        logs = [store.partition(TOPIC, p) for p in range(PARTITIONS)]
        from_offset(screen, logs[1], held)
        from_date(screen, logs, held)
        by_key(screen, logs[partition_for_key(FLIGHT, PARTITIONS)])
        all_of_it(screen, logs)


def from_offset(screen: Screen, log: segstore.PartitionLog, held: Flights) -> None:
    """A few records from an offset in the middle."""
    offset = log.end_offset // 2
    with screen.step("From an offset", f"{log.topic}-{log.partition}, {offset}"):
        started = time.perf_counter()
        records = log.read(offset, 1)[:3]
        taken = time.perf_counter() - started
        show(screen, [(log.partition, record) for record in records])
        screen.say(f"read in {taken * 1e6:,.0f} microseconds")


def from_date(screen: Screen, logs: list[segstore.PartitionLog], held: Flights) -> None:
    """The first record of each partition from a date on."""
    date = (
        "2013-07-04"
        if held.timestamps[-1] > parse_time("2013-07-04")
        else time_text(int(np.median(held.timestamps)))
    )
    with screen.step("From a date", f"the first flight of each partition from {date} on (UTC)"):
        started = time.perf_counter()
        offsets = [log.offset_for_time(parse_time(date)) for log in logs]
        taken = time.perf_counter() - started
        found = zip(logs, offsets, strict=True)
        show(screen, [(log.partition, log.read(offset)[0]) for log, offset in found if offset is not None])
        screen.say(f"offsets {', '.join(map(str, offsets))}, found in {taken * 1e3:.1f} ms")


def by_key(screen: Screen, log: segstore.PartitionLog) -> None:
    """The last ten delays of one flight: a scan of the one partition that has its key."""
    import pyarrow
    import pyarrow.compute as pc

    with screen.step(
        "Of one flight", f"the last ten delays of {FLIGHT.decode()}, all in {log.topic}-{log.partition}"
    ):
        scanned, delays = 0, []
        for records in batches(log):
            scanned += len(records)
            keys = records.to_arrow(["key"])["key"]
            for i in np.flatnonzero(pc.equal(keys, pyarrow.scalar(FLIGHT)).to_numpy()).tolist():
                flight = json.loads(records.values[i] or b"{}")
                delays.append((time_text(int(records.timestamps[i])), flight["dest"], flight["arr_delay"]))
        made = table("scheduled (UTC)", "to", "arrival delay, minutes", right=("arrival delay, minutes",))
        for when, to, delay in delays[-10:]:
            add_row(made, when, to, "cancelled" if delay is None else str(delay))
        screen.table(made)
        screen.say(f"{len(delays):,} flights of {scanned:,} records scanned")


def all_of_it(screen: Screen, logs: list[segstore.PartitionLog]) -> None:
    """Every record into columns, every CRC checked."""
    with screen.step("All of it", "into columns, every CRC checked"):
        started, count, size = time.perf_counter(), 0, 0
        for log in logs:
            for records in batches(log):
                count, size = count + len(records), size + int(records.values.lengths.sum())
        screen.say(f"read {rate_text(count, size, time.perf_counter() - started)}")


def batches(log: segstore.PartitionLog) -> Iterator[segstore.Records]:
    """All records of a partition, some megabytes at a time."""
    offset = log.start_offset
    while offset < log.end_offset:
        records = log.read(offset, READ_BYTES)
        yield records
        offset = records.next_offset


def show(screen: Screen, found: list[tuple[int, segstore.Record]]) -> None:
    """A table of flights."""
    made = table(
        "partition",
        "offset",
        "scheduled (UTC)",
        "flight",
        "from",
        "to",
        "delay",
        right=("partition", "offset", "delay"),
    )
    for partition, record in found:
        flight = json.loads(record.value or b"{}")
        key = (record.key or b"").decode()
        cells = (time_text(record.timestamp), key, flight["origin"], flight["dest"], flight["dep_delay"])
        add_row(made, partition, str(record.offset), *cells)
    screen.table(made)
