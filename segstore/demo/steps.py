"""The steps of the demo that write, read, and verify the demo's store.

On disk: the demo's store, through the engine. Threads: one.
"""

from __future__ import annotations

import json
import os
import time

import numpy as np

import segstore
from segstore import names
from segstore.cli.maintenance import run_check
from segstore.cli.options import parse_time
from segstore.cli.output import add_row, rate_text, size_text, table, time_text
from segstore.cli.places.disk_use import log_bytes, partition_bytes
from segstore.client.producer.partitioner import partition_for_key
from segstore.demo.flights import PARTITIONS, TOPIC, Flights
from segstore.demo.screen import Screen
from segstore.errors import StorageError
from segstore.records import CODECS
from segstore.records.header import CODEC_MASK

READ_BYTES = 8 << 20
CONFIG = {"compression.type": "zstd", "segment.ms": 31 * 24 * 3600 * 1000}


def create_topic(screen: Screen, path: str) -> None:
    """Create the store and its topic."""
    with screen.step(
        "Topic", f"{PARTITIONS} partitions, " + ", ".join(f"{k}={v}" for k, v in CONFIG.items())
    ):
        with segstore.open(path) as store:
            info = store.create_topic(TOPIC, partitions=PARTITIONS, config=CONFIG)
        screen.say(f"{info.name}, id {info.topic_id}, in {path}")


def verify(screen: Screen, path: str, flights: Flights, acknowledged: list[int]) -> None:
    """Reopen the store after the kill. Check that it has all acknowledged records, and that each record is
    the one that was sent. Raises StorageError.
    """
    with (
        screen.step("Reopened", "recovery, then every record against its flight"),
        segstore.open(path) as store,
    ):
        recovered = {done.partition: done for done in store.recovered}
        right = ("partition", "acknowledged", "found", "recovered from", "dropped bytes")
        made = table(*right, right=right)
        for p in range(PARTITIONS):
            log, done = store.partition(TOPIC, p), recovered.get(names.partition_dir(TOPIC, p))
            point, cut = (done.recovery_point, done.cut_bytes) if done else ("clean", 0)
            add_row(made, p, acknowledged[p], log.end_offset, point, cut)
            if log.end_offset < acknowledged[p]:
                raise StorageError(
                    f"partition {p} lost records: {acknowledged[p]} acknowledged, {log.end_offset} found"
                )
            compare(log, flights.parts[p])
        screen.table(made)
        found = sum(store.partition(TOPIC, p).end_offset for p in range(PARTITIONS))
        screen.good(
            f"all {sum(acknowledged):,} acknowledged records are there; {found:,} found, each as it was sent"
        )


def compare(log: segstore.PartitionLog, sent: Flights) -> None:
    """Compare every record of a partition with the record that was sent. Raises StorageError."""
    import pyarrow

    offset = 0
    for records in log.scan(offset).reads(READ_BYTES):
        columns = records.to_arrow()
        part = sent.slice(offset, records.next_offset)
        same = (columns["timestamp"].to_numpy() == part.timestamps).all()
        for name, expected in (("key", part.keys), ("value", part.values)):
            same = same and columns[name].equals(pyarrow.chunked_array([expected]))
        if not same:
            raise StorageError(f"{log!r} differs from what was sent, from offset {offset} on")
        offset = records.next_offset


def append_rest(screen: Screen, path: str, flights: Flights) -> None:
    """Append the flights that the killed process did not append: one call for each partition, with columns of
    keys, values and times.
    """
    with (
        screen.step("The rest", "a column of keys, values and times per partition"),
        segstore.open(path) as store,
    ):
        count = size = 0
        started = time.perf_counter()
        for p in range(PARTITIONS):
            log = store.partition(TOPIC, p)
            part = flights.parts[p].slice(log.end_offset, len(flights.parts[p]))
            if len(part):
                log.append_batch(part.values, keys=part.keys, timestamps=part.timestamps)
            count, size = count + len(part), size + part.raw_bytes
        seconds = time.perf_counter() - started
        screen.say(f"appended {rate_text(count, size, seconds)} of JSON, compressed with zstd")


def check_store(screen: Screen, path: str, flights: Flights) -> None:
    """Check the store as `segstore check` does, and show the store's size on disk. Raises StorageError if the
    store is damaged.
    """
    with screen.step("Check", "every invariant of bytes, indexes, checkpoints and names"):
        checked, findings = run_check(path)
        if findings:
            raise StorageError("check found: " + "; ".join(map(str, findings)))
        screen.good(f"sound: {size_text(checked)} of log checked")
        sizes = [partition_bytes(path, TOPIC, p) for p in range(PARTITIONS)]
        log = sum(s[names.LOG] for s in sizes)
        index = sum(s[names.INDEX] + s[names.TIME_INDEX] for s in sizes)
        screen.say(
            f"on disk: {size_text(log)} of log and {size_text(index)} of indexes for "
            f"{size_text(flights.raw_bytes)} of JSON, {flights.raw_bytes / log:.1f} to 1"
        )


# --- look --------------------------------------------------------------------------------------

# The steps below only read the store.

FLIGHT = b"UA-15"
"""The key of a flight that leaves every day."""


def look(screen: Screen, path: str, flights: Flights) -> None:
    """Open the store for reading, and show several kinds of reads."""
    with segstore.open(path, mode="r") as store:
        logs = [store.partition(TOPIC, p) for p in range(PARTITIONS)]
        from_offset(screen, logs[1], flights)
        from_date(screen, logs, flights)
        by_key(screen, logs[partition_for_key(FLIGHT, PARTITIONS)])
        all_of_it(screen, logs)


def from_offset(screen: Screen, log: segstore.PartitionLog, flights: Flights) -> None:
    """Show a few records, from an offset in the middle of the log on."""
    offset = log.end_offset // 2
    with screen.step("From an offset", f"{log.topic}-{log.partition}, {offset}"):
        started = time.perf_counter()
        records = log.read(offset, 1)[:3]
        taken = time.perf_counter() - started
        show(screen, [(log.partition, record) for record in records])
        screen.say(f"read in {taken * 1e6:,.0f} microseconds")


def from_date(screen: Screen, logs: list[segstore.PartitionLog], flights: Flights) -> None:
    """Show the first record of each partition at or after a date."""
    date = (
        "2013-07-04"
        if flights.timestamps[-1] > parse_time("2013-07-04")
        else time_text(int(np.median(flights.timestamps)))
    )
    with screen.step("From a date", f"the first flight of each partition from {date} on (UTC)"):
        started = time.perf_counter()
        offsets = [log.offset_for_time(parse_time(date)) for log in logs]
        taken = time.perf_counter() - started
        found = zip(logs, offsets, strict=True)
        show(screen, [(log.partition, log.read(offset)[0]) for log, offset in found if offset is not None])
        screen.say(f"offsets {', '.join(map(str, offsets))}, found in {taken * 1e3:.1f} ms")


def by_key(screen: Screen, log: segstore.PartitionLog) -> None:
    """Scan the partition of the key FLIGHT, and show the last ten delays of the flight with this key."""
    import pyarrow
    import pyarrow.compute as pc

    with screen.step(
        "Of one flight", f"the last ten delays of {FLIGHT.decode()}, all in {log.topic}-{log.partition}"
    ):
        scanned, delays = 0, []
        for records in log.scan().reads():
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
    """Read all records into columns, and check the CRC of each batch."""
    with screen.step("All of it", "into columns, every CRC checked"):
        started, count, size = time.perf_counter(), 0, 0
        for log in logs:
            for records in log.scan().reads():
                count, size = count + len(records), size + int(records.values.lengths.sum())
        screen.say(f"read {rate_text(count, size, time.perf_counter() - started)}")


def show(screen: Screen, found: list[tuple[int, segstore.Record]]) -> None:
    """Show a table of flights."""
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


# --- broker ------------------------------------------------------------------------------------

# The step below opens a log directory of an Apache Kafka broker for reading.

WRITTEN = os.path.join("tests", "golden", "clean")


def show_broker(screen: Screen) -> None:
    """Open a broker's log directory for reading, without copying it, and show its topics. If this
    installation has no such directory, print a note.
    """
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
    count, batches, last, codecs = 0, 0, -1, set()
    for records in log.scan().reads():
        count, batches = count + len(records), batches + len(records.batches)
        codecs |= {CODECS[code] for code in (records.batches["attributes"] & CODEC_MASK).tolist()}
        last = max([last, *records.timestamps[-1:].tolist()])
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
