"""How soon a consumer that waits has a record: another thread's, and another process's.

A record of 100 bytes every ms, seen when `Consumer.poll` returns it. It is appended by the sending thread,
or sent with linger_ms=0: then the producer's thread appends it, between the two. The other process opened
the store with mode "r". Clocks are CLOCK_MONOTONIC, which all processes of a machine share. Beside each way
is the bare one (`hand_offs`), by turns: a pipe, one hand-over between threads, or two, one after the other.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hand_offs import SIZE, Times, by_pipe, by_threads, paced
from harness import Results, keep_ratios

import segstore

RECORDS, WARM, ROUNDS = 500, 50, 7
VALUE = bytes(SIZE)
TP = segstore.TopicPartition("t", 0)


def follow(store: segstore.Store, n: int, ready: Callable[[], Any]) -> Times:
    """When each of the next `n` records came, ns."""
    seen, count = np.zeros(n, np.int64), 0
    with segstore.Consumer(store) as consumer:
        consumer.assign([TP])
        consumer.seek_to_end(TP)
        consumer.position(TP)
        consumer.poll()
        ready()
        while count < n:
            for records in consumer.poll(timeout_ms=10_000).values():
                seen[count : count + len(records)] = time.monotonic_ns()
                count += len(records)
    return seen


def by_thread(store: segstore.Store, send: Callable[[], Any]) -> Times:
    seen: list[Times] = []
    ready = threading.Event()
    follower = threading.Thread(target=lambda: seen.append(follow(store, RECORDS, ready.set)))
    follower.start()
    ready.wait()
    sent = paced(RECORDS, send)
    follower.join()
    return seen[0] - sent


def by_process(store: segstore.Store, send: Callable[[], Any]) -> Times:
    command = [sys.executable, __file__, store.path, str(RECORDS)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        sent = paced(RECORDS, send)
        seen = np.frombuffer(child.stdout.read(), np.int64)
    return seen - sent


Way = Callable[[segstore.Store, Callable[[], Any]], Times]
WAYS: dict[str, tuple[bool, Way, Callable[[int], Times], float]] = {
    "append to poll, another process": (False, by_process, by_pipe, 3),
    "append to poll, another thread": (False, by_thread, lambda n: by_threads(n, 1), 2),
    "send to poll, another thread": (True, by_thread, lambda n: by_threads(n, 2), 3),
}
"""Whether a producer sends; the way; the bare way; and how many times as long the median may take."""


@pytest.mark.parametrize("name", WAYS)
def test_latency(benchmark: Any, results: Results, store: segstore.Store, name: str) -> None:
    by_producer, run, bare, most = WAYS[name]
    store.create_topic("t")
    log = store.partition("t", 0)
    took: list[Times] = []
    beside: list[Times] = []
    with segstore.Producer(store, linger_ms=0) as producer:
        send = (lambda: producer.send("t", VALUE)) if by_producer else (lambda: log.append(VALUE))

        def both() -> None:
            beside.append(bare(RECORDS)[WARM:] / 1e3)
            took.append(run(store, send)[WARM:] / 1e3)

        benchmark.pedantic(both, rounds=ROUNDS)
    assert log.end_offset == RECORDS * ROUNDS
    ratios = [float(np.median(bare) / np.median(ours)) for bare, ours in zip(beside, took, strict=True)]
    keep_ratios(benchmark, ratios)
    ours, theirs = np.concatenate(took), np.concatenate(beside)
    note = f"p50 {np.median(ours):.0f} us, p99 {np.percentile(ours, 99):.0f}; bare {np.median(theirs):.0f}"
    results.add(
        benchmark, f"{name}, times the bare way", float(1 / np.median(ratios)), most, "x", False, note
    )


if __name__ == "__main__":
    with segstore.open(sys.argv[1], mode="r") as store:
        seen = follow(store, int(sys.argv[2]), lambda: print("ready", flush=True))
        sys.stdout.buffer.write(seen.tobytes())
