"""How long after the death of a shared store's host another one answers.

Two processes may be the store's host, and this one is a guest. The host is killed (SIGKILL), and at once this
process appends a record for which there is no room in the segment: a host must come, take the partition over,
and make the next segment before the append returns. Then another process comes in place of the dead one. All
partitions were open in the first host.

On disk: a store in the given directory. Threads: one, and those of stores; hosts are processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import segstore
from segstore.errors import StorageError

MS = "new host ms"
TOPIC, VALUE = "events", b"x" * 600
SEGMENT = 1024
"""Bytes of a segment, which has room for one record."""
LONGEST = 120.0
_processes = multiprocessing.get_context("spawn")


def member(path: str, partitions: int, pipe: Any) -> None:
    """Share the store, as its host or as the one that comes next, until the parent ends or says so."""
    with segstore.open(path, shared=True) as store:
        if store.role == "host":
            store.ensure_topic(TOPIC, partitions, config={"segment.bytes": SEGMENT})
            for partition in range(partitions):
                store.partition(TOPIC, partition).append(VALUE)
        pipe.send(store.role)
        pipe.recv()


class Succession:
    """A store with two processes that may be its host."""

    def __init__(self, path: str, partitions: int) -> None:
        self._path, self._partitions = path, partitions
        self._members: dict[int, tuple[Any, Any]] = {}
        self._come()
        self._store = segstore.open(path, shared="guest", timeout=LONGEST)
        self._turns = count()
        self._acknowledged = [1] * partitions
        self._come()

    def _come(self) -> None:
        ours, theirs = _processes.Pipe()
        process = _processes.Process(target=member, args=(self._path, self._partitions, theirs), daemon=True)
        process.start()
        theirs.close()
        if not ours.poll(LONGEST):
            raise RuntimeError(f"{self._path}: no member came")
        ours.recv()
        self._members[process.pid or 0] = process, ours

    def change(self) -> dict[str, float]:
        """Kill the host; return how long an append then took that needs one."""
        partition = next(self._turns) * 7 % self._partitions
        log = self._store.partition(TOPIC, partition)
        log.append(VALUE)  # what it opens here is no part of it
        process, _ = self._members.pop(host := self._store.host_pid)
        os.kill(host, signal.SIGKILL)
        began = time.perf_counter()
        log.append(VALUE)
        took = time.perf_counter() - began
        self._acknowledged[partition] += 2
        process.join()
        self._come()
        return {MS: took * 1000}

    def close(self) -> None:
        """Close all members. RuntimeError if a log lacks what was acknowledged."""
        for process, pipe in self._members.values():
            pipe.send(None)
            process.join(LONGEST)
        self._store.close()
        with segstore.open(self._path) as store:
            ends = [store.partition(TOPIC, each).end_offset for each in range(self._partitions)]
        if ends != self._acknowledged:
            raise StorageError(f"{self._path}: logs end at {ends}, and not at {self._acknowledged}")


@contextmanager
def succession(path: str, partitions: int) -> Iterator[Succession]:
    """A store with so many partitions, whose host can be changed."""
    made = Succession(path, partitions)
    yield made
    made.close()
