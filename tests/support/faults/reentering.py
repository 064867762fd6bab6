"""A program that makes calls of segstore within other calls of segstore, in the same thread, at counted
places.

    reentering.py calls DIR SEED POINTS OUTER,OUTER...    each of INNER in the midst of each OUTER
    reentering.py threads DIR SEED POINTS                 in the midst of what the store's own threads do
    reentering.py close DIR SEED POINTS                   closing the store in the midst of what it does

A profile function is called at each call and return of Python and C functions, where a signal handler or a
finalizer might run. It makes the inner call at POINTS of these places, drawn by SEED (0: at all of them).
Every acknowledged record must be in the log once, at its offset, and nothing else. The program ends with
status 0 and prints counts, or prints what is wrong. When it hangs, it prints all stacks and ends.
"""

from __future__ import annotations

import faulthandler
import logging
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import segstore
from segstore.errors import ReentrantCallError

WATCHDOG = 100.0  # seconds; a run takes only a few
_CALLS = ("call", "return", "c_call", "c_return")


class At:
    """Calls `inner` at the `n`th event of a block, in this thread, and counts the events."""

    def __init__(self, n: int, inner: Callable[[], object]) -> None:
        self.n, self.inner, self.count = n, inner, 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event in _CALLS and "contextlib" not in frame.f_code.co_filename:
            self.count += 1
            if self.count == self.n:
                self.inner()

    def run(self, outer: Callable[[], object]) -> None:
        sys.setprofile(self)
        try:
            outer()
        finally:
            sys.setprofile(None)


class Bench:
    """A store with clients, and the records that its log must have."""

    def __init__(self, directory: Path) -> None:
        self.store = segstore.open(directory)
        self.store.create_topic(
            "t", partitions=3, config={"segment.bytes": 20_000, "file.delete.delay.ms": 0}
        )
        self.store.create_topic("c", config={"cleanup.policy": "compact", "segment.bytes": 2_000})
        self.logs = [self.store.partition("t", n) for n in range(3)]
        self.fixed = [b"fixed %d" % n for n in range(100)]
        self.logs[1].append_batch(self.fixed)
        for n in range(100):
            self.store.partition("c").append(b"%d" % n, key=b"%d" % (n % 7))
        self.producer = segstore.Producer(self.store, linger_ms=1)
        self.consumer = segstore.Consumer(self.store, group_id="g", auto_offset_reset="earliest")
        self.consumer.assign([segstore.TopicPartition("t", 1)])
        self.acked: dict[tuple[int, int], bytes] = {}
        self.sent: list[tuple[bytes, Any]] = []
        self.wrong: list[str] = []
        self.told: Counter[str] = Counter()
        self.doomed: list[str] = []
        self._n = 0
        self.commit()

    def new(self, size: int = 20) -> bytes:
        self._n += 1
        return b"%d " % self._n + b"v" * size

    # --- what is called ---------------------------------------------------------------------

    def append(self) -> None:
        value = self.new()
        self.acked[0, self.logs[0].append(value)] = value

    def batch(self, size: int = 20, n: int = 30) -> None:
        values = [self.new(size) for _ in range(n)]
        for offset, value in zip(self.logs[0].append_batch(values), values, strict=True):
            self.acked[0, offset] = value

    def flush(self) -> None:
        self.append()
        self.logs[0].flush()

    def read(self) -> None:
        values = [record.value for record in self.logs[1].read(0)]
        if values[:100] != self.fixed:
            self.wrong.append(f"read gave {values[:3]}")

    def send(self) -> None:
        value = self.new()
        self.sent.append((value, self.producer.send("t", value, partition=2)))

    def send_and_get(self) -> None:
        value = self.new()
        future = self.producer.send("t", value, partition=2)
        self.sent.append((value, future))
        future.get(timeout=60)

    def send_and_flush(self) -> None:
        self.send()
        self.producer.flush()

    def poll(self) -> None:
        self.consumer.seek(segstore.TopicPartition("t", 1), 0)
        for records in self.consumer.poll(0).values():
            values = [record.value for record in records]
            if values[:100] != self.fixed[: len(values)]:
                self.wrong.append(f"poll gave {values[:3]}")

    def commit(self) -> None:
        self.consumer.commit({segstore.TopicPartition("t", 1): segstore.OffsetAndMetadata(5, "")})

    def sweep(self) -> None:
        self.store.sweep()

    def stats(self) -> None:
        self.store.stats()

    def create(self) -> None:
        self._n += 1
        name = f"made-{self._n}"
        self.store.create_topic(name)
        self.doomed.append(name)

    def delete(self) -> None:
        if self.doomed:
            self.store.delete_topic(self.doomed.pop())

    def keep_few(self) -> None:
        """Keep one topic that may be deleted, and few others, since calls take longer with many topics."""
        self.create()
        while len(self.doomed) > 1:
            self.delete()

    # --- the judge ----------------------------------------------------------------------------

    def quietly(self, call: Callable[[], object], where: str) -> None:
        """Make a call from within another one, which may be refused with an error that names it."""
        try:
            call()
        except ReentrantCallError:
            self.told["refused"] += 1
        except segstore.errors.ConcurrentModificationError:  # another thread uses the consumer now
            self.told["refused"] += 1
        except BaseException as error:
            self.wrong.append(f"{where}: {error!r:.300}")
        else:
            self.told["done"] += 1

    def judge(self) -> None:
        """Check that the log has all acknowledged records, at their offsets, and nothing else."""
        self.producer.flush()
        for value, future in self.sent:
            self.acked[2, future.get(timeout=60).offset] = value
        for log in self.logs:
            said = {offset: value for (n, offset), value in self.acked.items() if n == log.partition}
            if log.partition == 1:
                said |= dict(enumerate(self.fixed))
            found = contents(log)
            for offset in sorted(said.keys() | found.keys()):
                if said.get(offset) != found.get(offset):
                    self.wrong.append(
                        f"{log!r}, offset {offset}: acknowledged {said.get(offset)!r:.40}, found "
                        f"{found.get(offset)!r:.40}"
                    )

    def end(self) -> None:
        """Print the result, and end the program."""
        self.judge()
        self.consumer.close()
        self.producer.close()
        self.store.close()
        report(self.wrong, self.told)


def contents(log: segstore.PartitionLog) -> dict[int, bytes | None]:
    """Return the values of a log by offset."""
    found: dict[int, bytes | None] = {}
    offset = log.start_offset
    while offset < log.end_offset:
        records = log.read(offset)
        for record in records:
            found[record.offset] = record.value
        offset = records.next_offset
    return found


def report(wrong: list[str], told: Counter[str]) -> None:
    """Print the counts and what is wrong, and end the program."""
    print(dict(told))
    for line in wrong[:20]:
        print(line)
    sys.exit(bool(wrong))


OPS = (
    *("append", "batch", "flush", "read", "send", "send_and_get", "send_and_flush"),
    *("poll", "commit", "sweep", "stats", "create", "delete"),
)


def places(outer: Callable[[], object], points: int, rng: random.Random) -> list[int]:
    """Return the numbers of the events of `outer` at which the other call is made."""
    counting = At(-1, lambda: None)
    counting.run(outer)
    every = range(1, counting.count + 1)
    return list(every) if not points else sorted(rng.sample(every, min(points, len(every))))


def calls(directory: Path, rng: random.Random, points: int, outers: list[str]) -> None:
    bench = Bench(directory)
    for name in outers:
        outer = getattr(bench, name)
        for other in OPS:
            inner = getattr(bench, other)
            bench.keep_few()
            for n in places(outer, points, rng):
                where = f"{other} at event {n} of {name}"
                before = len(bench.wrong)
                try:
                    At(n, lambda inner=inner, where=where: bench.quietly(inner, where)).run(outer)  # type: ignore[misc]
                except BaseException as error:
                    bench.wrong.append(f"{where}: the outer call raised {error!r:.300}")
                bench.told["calls"] += 1
                if len(bench.wrong) > before:
                    bench.wrong[before] += f"   ({where})"
                if name == "delete" or other == "delete":
                    bench.create()
    bench.end()


# --- in the threads of the store ---------------------------------------------------------------------


def threads(directory: Path, rng: random.Random, points: int) -> None:
    """Let each thread but this one make a call at drawn events, as finalizers there would."""
    mine = threading.local()
    main = threading.get_ident()
    left = [25 * points or 5000]
    bench: Bench | None = None

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if bench is None or threading.get_ident() == main or getattr(mine, "within", False) or left[0] <= 0:
            return
        if event in _CALLS and rng.random() < 0.01:
            left[0] -= 1
            mine.within = True
            name = rng.choice(
                ("append", "batch", "flush", "read", "send", "send_and_get", "send_and_flush", "sweep")
            )
            bench.quietly(getattr(bench, name), f"{name} in {threading.current_thread().name}")
            mine.within = False

    threading.setprofile(profile)
    bench = Bench(directory)
    bench.store.alter_topic("t", {"flush.ms": 1})
    for _ in range(100_000):
        if left[0] <= 0:
            break
        bench.send()
        bench.batch()
        bench.send_and_flush()
        if rng.random() < 0.05:
            bench.sweep()
    left[0] = 0
    bench.end()


# --- closing -------------------------------------------------------------------------------------------


def close(directory: Path, rng: random.Random, points: int) -> None:
    """Close the store within a call, which may be refused. All acknowledged records must be in the log."""
    told: Counter[str] = Counter()
    wrong: list[str] = []
    directory.mkdir()
    for name in ("append", "batch", "flush", "send", "send_and_flush", "poll", "commit", "stats"):
        for n in places_of(directory / f"{name}-0", name, points, rng):
            bench = Bench(directory / f"{name}-{n}")
            where = f"close at event {n} of {name}"
            try:
                At(n, lambda b=bench, w=where: b.quietly(b.store.close, w)).run(getattr(bench, name))  # type: ignore[misc]
            except segstore.SegstoreError:
                told["ended"] += 1
            bench.store.close()
            wrong += bench.wrong
            told += bench.told
            with segstore.open(directory / f"{name}-{n}", mode="r") as store:
                found = [contents(store.partition("t", part)) for part in range(3)]
            for (part, offset), value in bench.acked.items():
                if found[part].get(offset) != value:
                    wrong.append(
                        f"{where}: {part}/{offset} is {found[part].get(offset)!r:.40}, not {value!r:.40}"
                    )
            for value, future in bench.sent:
                if future.succeeded() and found[2].get(future.value.offset) != value:
                    wrong.append(f"{where}: what was sent to offset {future.value.offset} is not there")
            wrong += [f"{where}: {finding}" for finding in segstore.check(directory / f"{name}-{n}")]
    report(wrong, told)


def places_of(directory: Path, name: str, points: int, rng: random.Random) -> list[int]:
    bench = Bench(directory)
    found = places(getattr(bench, name), points, rng)
    bench.store.close()
    return found


def main() -> None:
    faulthandler.dump_traceback_later(WATCHDOG, exit=True)
    logging.disable(logging.CRITICAL)
    mode, directory, seed, points = sys.argv[1:5]
    given = Path(directory), random.Random(seed), int(points)
    if mode == "calls":
        calls(*given, sys.argv[5].split(","))
    elif mode == "threads":
        threads(*given)
    else:
        close(*given)


if __name__ == "__main__":
    main()
