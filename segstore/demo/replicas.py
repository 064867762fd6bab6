"""The replicated part of the demo: a producer writes with acks=all into a store on three disks; during the
writes one disk is taken away and brought back, and a byte on another disk is changed.

On disk: three directories, one of which is renamed for a while. Threads: one that sends records, and the
calling thread, which takes the disk away, shows the state, and at the end checks that no acknowledged record
is lost.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

import segstore
from segstore.client.producer import RecordMetadata
from segstore.demo.replica_board import Board, board
from segstore.demo.screen import Screen
from segstore.errors import SegstoreError, StorageError

TOPIC, PARTITIONS, DISKS = "departures", 3, 3
SETTINGS = {
    "auto.leader.rebalance.enable": False,
    "broker.heartbeat.interval.ms": 100,
    "broker.session.timeout.ms": 3000,
    "min.insync.replicas": 2,
    "replica.fetch.backoff.ms": 50,
    "replica.lag.time.max.ms": 2000,
}
LOST, ROTTEN = 1, 2
"""The numbers of the disk that is taken away, and of the disk on which a byte is changed."""
_FRAME = 0.125  # time between two frames, in seconds
_LONGEST = 120.0  # longest time of a step on a busy machine, in seconds
_MORE = 100  # minimum number of records that are acknowledged in a step
_BEAT = 0.002  # time between two sends, in seconds


class NumberedWriter(threading.Thread):
    """A thread that sends numbered records during its `with` block. `acknowledged` is (partition, offset) ->
    value, for each acknowledged record.
    """

    def __init__(self, store: segstore.ReplicatedStore) -> None:
        super().__init__(name="demo-replicas", daemon=True)
        self._store, self._over = store, threading.Event()
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.refused: list[str] = []
        self.error: Exception | None = None

    def __enter__(self) -> NumberedWriter:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        try:
            with segstore.Producer(self._store, acks="all", enable_idempotence=True, linger_ms=2) as producer:
                self._send_all(producer)
        except Exception as error:
            self.error = error

    def _send_all(self, producer: segstore.Producer) -> None:
        number = 0
        while not self._over.wait(_BEAT):
            for partition in range(PARTITIONS):
                value = b"departure %d" % number
                future = producer.send(TOPIC, value, partition=partition)
                future.add_callback(self._acknowledge, value)
                future.add_errback(self._refuse)
                number += 1

    def _acknowledge(self, value: bytes, metadata: RecordMetadata) -> None:
        self.acknowledged[metadata.partition, metadata.offset] = value

    def _refuse(self, error: BaseException) -> None:
        self.refused.append(str(error))


class Play:
    """The steps of the replicated part. `show(state)` displays the state."""

    def __init__(
        self, store: segstore.ReplicatedStore, writer: NumberedWriter, paths: list[str], dwell: float
    ) -> None:
        self._store, self._writer, self._paths, self._dwell = store, writer, paths, dwell
        self._began, self.events = time.monotonic(), list[str]()
        self._logs = [store.partition(TOPIC, number) for number in range(PARTITIONS)]
        self.show: Callable[[Board], None] = lambda board: None

    def say(self, text: str) -> None:
        self.events.append(f"{time.monotonic() - self._began:5.1f} s  {text}")

    def run(self) -> None:
        """Run all steps. Raises StorageError if a step takes more than `_LONGEST` seconds, or the producer
        fails.
        """
        self.say(f"a producer writes with acks=all; two of {DISKS} disks are needed")
        self._until(lambda: True)
        self._lose()
        self._bring_back()
        self._rot()

    def _lose(self) -> None:
        path = self._paths[LOST]
        self.say(f"disk {LOST} is taken away: its directory is renamed")
        os.rename(path, away(path))
        self._until(lambda: all(LOST not in s.isr and s.leader not in (LOST, -1) for s in self._states()))
        self.say(f"others lead its partitions; {len(self._writer.acknowledged):,} records are acknowledged")
        self._until(lambda: True)

    def _bring_back(self) -> None:
        path = self._paths[LOST]
        os.rename(away(path), path)
        self._store.replace_directory(LOST, path)
        self.say(f"disk {LOST} is back: its replicas fetch what they lack")
        self._until(self._all_in_sync)
        self._store.elect_leaders("preferred")
        self.say("all replicas are in sync, and the preferred leaders are elected")
        self._until(lambda: all(s.leader == s.replicas[0] for s in self._states()))

    def _rot(self) -> None:
        partition = os.path.join(self._paths[ROTTEN], f"{TOPIC}-0")
        flip(os.path.join(partition, min(n for n in os.listdir(partition) if n.endswith(".log"))))
        self.say(f"a byte of partition 0 rots on disk {ROTTEN}")
        for done in self._store.heal((TOPIC, 0)):
            copied = f"{done.end_offset - done.offset:,} records, {done.bytes:,} bytes"
            self.say(f"healed: replica {done.replica} has copied {copied} from a sound one")
        self._until(self._all_in_sync)

    def _states(self) -> list[segstore.PartitionState]:
        return [self._store.describe_partition(TOPIC, number) for number in range(PARTITIONS)]

    def _all_in_sync(self) -> bool:
        return all({*state.isr} == {*state.replicas} for state in self._states())

    def _until(self, done: Callable[[], bool]) -> None:
        """Show the state again and again until three conditions are met: `done()` is True, the minimum time
        of a step has passed, and `_MORE` records were acknowledged since the call. Raises StorageError if the
        producer fails, or if the wait takes more than `_LONGEST` seconds.
        """
        began, wanted = time.monotonic(), len(self._writer.acknowledged) + _MORE
        while True:
            self.show(self.board())
            took = time.monotonic() - began
            if self._writer.error is not None:
                raise StorageError(f"the producer failed: {self._writer.error}")
            if took >= self._dwell and len(self._writer.acknowledged) >= wanted and done():
                return
            if took > _LONGEST:
                raise StorageError(f"after {took:.0f} s this was not over: {self.events[-1]}")
            time.sleep(_FRAME)

    def board(self) -> Board:
        """Return the values to display."""
        watermarks = []
        for log in self._logs:
            with suppress(SegstoreError):  # the partition has no leader at this moment
                watermarks.append(log.high_watermark)
                continue
            watermarks.append(-1)
        acknowledged = len(self._writer.acknowledged)
        return Board(self._states(), watermarks, acknowledged, list(self.events))


def away(path: str) -> str:
    """Return the path to which a directory is renamed when it is taken away."""
    return f"{path}-away"


def flip(path: str) -> None:
    """Change a byte in the payload of a log's first batch."""
    with open(path, "r+b") as file:
        file.seek(70)
        byte = file.read(1)
        file.seek(70)
        file.write(bytes([byte[0] ^ 0x55]))


def replicas(screen: Screen, base: str, dwell: float) -> None:
    """Run this part in directories below `base`, which is created; each step takes at least `dwell` seconds.
    Raises StorageError if an acknowledged record is lost, or a directory is damaged.
    """
    paths = [os.path.join(base, f"disk{number}") for number in range(DISKS)]
    os.makedirs(base, exist_ok=True)
    with screen.step("Replicas", f"{PARTITIONS} partitions on {DISKS} disks, acks=all; a disk is taken away"):
        try:
            with quiet():
                _run(screen, paths, dwell)
        except KeyboardInterrupt:
            screen.say("Ctrl-C: the producer has ended, the store is closed")
            raise
        finally:
            if os.path.exists(away(paths[LOST])):
                os.rename(away(paths[LOST]), paths[LOST])
        for path in paths:
            if findings := segstore.check(path):
                raise StorageError(f"{path} is not sound: {findings[0]}")
        screen.good(f"all {DISKS} directories are sound")


def _run(screen: Screen, paths: list[str], dwell: float) -> None:
    with segstore.open_replicated(paths, config=SETTINGS) as store:
        order = {n: [(n + each) % DISKS for each in range(DISKS)] for n in range(PARTITIONS)}
        store.create_topic(TOPIC, assignments=order)
        writer = NumberedWriter(store)
        play = Play(store, writer, paths, dwell)
        with writer, _shown(screen, play):
            play.run()
        _prove(screen, store, writer)


@contextmanager
def _shown(screen: Screen, play: Play) -> Iterator[None]:
    """Show the state during the `with` block: as frames if the output is a terminal, else each event as a
    line.
    """
    if screen.interactive:
        with screen.frames() as update:
            play.show = lambda state: update(board(state))
            yield
            play.show(play.board())
        return
    said = 0

    def lines(state: Board) -> None:
        nonlocal said
        for event in state.events[said:]:
            screen.say(event)
        said = len(state.events)

    play.show = lines
    yield
    lines(play.board())


def _prove(screen: Screen, store: segstore.ReplicatedStore, writer: NumberedWriter) -> None:
    """Check that each acknowledged record is in the logs exactly once. Raises StorageError."""
    if writer.error is not None:
        raise StorageError(f"the producer failed: {writer.error}")
    values = read_all(store)
    lost = sum(values.get(place) != value for place, value in writer.acknowledged.items())
    twice = len(values) - len({*values.values()})
    if lost or twice:
        count = len(writer.acknowledged)
        raise StorageError(f"of {count:,} acknowledged records {lost:,} are lost; {twice:,} are there twice")
    refused = f"; {len(writer.refused):,} were refused" if writer.refused else ""
    count = len(writer.acknowledged)
    screen.good(f"all {count:,} acknowledged records are there, each once, none lost{refused}")


def read_all(store: segstore.ReplicatedStore) -> dict[tuple[int, int], bytes | None]:
    """Return (partition, offset) -> value, for all records of the topic."""
    values: dict[tuple[int, int], bytes | None] = {}
    for number in range(PARTITIONS):
        values |= {(number, record.offset): record.value for record in store.partition(TOPIC, number)}
    return values


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the log messages of segstore during the `with` block, such as those about the lost disk. The
    added handler does nothing, but Python prints messages only if there is no handler.
    """
    handler, logger = logging.NullHandler(), logging.getLogger("segstore")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
