"""Steps of the demo that write, and those that prove. On disk: the demo's store, by the engine.

Threads: one.
"""

from __future__ import annotations

import time

import segstore
from segstore import names
from segstore.cli.disk import partition_bytes
from segstore.cli.maintenance import run_check
from segstore.cli.output import add_row, rate_text, size_text, table
from segstore.demo.flights import PARTITIONS, TOPIC, Flights
from segstore.demo.screen import Screen
from segstore.errors import StorageError

READ_BYTES = 8 << 20
CONFIG = {"compression.type": "zstd", "segment.ms": 31 * 24 * 3600 * 1000}


def create_topic(screen: Screen, path: str) -> None:
    """The store and its topic."""
    with screen.step(
        "Topic", f"{PARTITIONS} partitions, " + ", ".join(f"{k}={v}" for k, v in CONFIG.items())
    ):
        with segstore.open(path) as store:
            info = store.create_topic(TOPIC, partitions=PARTITIONS, config=CONFIG)
        screen.say(f"{info.name}, id {info.topic_id}, in {path}")


def verify(screen: Screen, path: str, held: Flights, acknowledged: list[int]) -> None:
    """Reopen after the kill: all that was acknowledged is there, byte for byte."""
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
                raise StorageError(f"partition {p} lost records: {acknowledged[p]} to {log.end_offset}")
            compare(log, held.parts[p])
        screen.table(made)
        found = sum(store.partition(TOPIC, p).end_offset for p in range(PARTITIONS))
        screen.good(
            f"all {sum(acknowledged):,} acknowledged records are there; {found:,} found, each as it was sent"
        )


def compare(log: segstore.PartitionLog, sent: Flights) -> None:
    """Every record of a partition against what was sent. StorageError."""
    import pyarrow

    offset = 0
    while offset < log.end_offset:
        records = log.read(offset, READ_BYTES)
        columns = records.to_arrow()
        part = sent.slice(offset, records.next_offset)
        same = (columns["timestamp"].to_numpy() == part.timestamps).all()
        for name, expected in (("key", part.keys), ("value", part.values)):
            same = same and columns[name].equals(pyarrow.chunked_array([expected]))
        if not same:
            raise StorageError(f"{log!r} differs from what was sent, from offset {offset} on")
        offset = records.next_offset


def append_rest(screen: Screen, path: str, held: Flights) -> None:
    """Append what the child had no time for, a column a partition."""
    with (
        screen.step("The rest", "a column of keys, values and times per partition"),
        segstore.open(path) as store,
    ):
        count = size = 0
        started = time.perf_counter()
        for p in range(PARTITIONS):
            log = store.partition(TOPIC, p)
            part = held.parts[p].slice(log.end_offset, len(held.parts[p]))
            if len(part):
                log.append_batch(part.values, keys=part.keys, timestamps=part.timestamps)
            count, size = count + len(part), size + part.raw_bytes
        seconds = time.perf_counter() - started
        screen.say(f"appended {rate_text(count, size, seconds)} of JSON, compressed with zstd")


def check_store(screen: Screen, path: str, held: Flights) -> None:
    """`segstore check`, and what it all takes on disk."""
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
            f"{size_text(held.raw_bytes)} of JSON, {held.raw_bytes / log:.1f} to 1"
        )
