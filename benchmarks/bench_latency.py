"""How soon a record that was sent is in a consumer's hands: another thread's, and another process's.

linger_ms=0, a record of 100 bytes every ms, seen when `Consumer.poll` returns it. The other process opened
the store with mode "r". Clocks are CLOCK_MONOTONIC, which all processes of a machine share. Two bare
hand-offs between threads stand beside it: a record makes two, from `send` to the sender, from there to the
consumer.
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
from harness import Results, keep_ratios
from numpy.typing import NDArray

import segstore

RECORDS, WARM, PAUSE, PARTS = 3_000, 100, 0.001, 9
VALUE = b"x" * 100
clock = time.monotonic_ns
Times = NDArray[np.int64]


def follow(store: segstore.Store, ready: Callable[[], Any]) -> Times:
    """When each record came, ns; all of topic "t"."""
    seen, count = np.zeros(RECORDS, np.int64), 0
    with segstore.Consumer(store, "t", auto_offset_reset="earliest") as consumer:
        consumer.poll()
        ready()
        while count < RECORDS:
            for records in consumer.poll(timeout_ms=10_000).values():
                seen[count : count + len(records)] = clock()
                count += len(records)
    return seen


def send(store: segstore.Store) -> Times:
    """When each record was handed over, ns."""
    sent = np.zeros(RECORDS, np.int64)
    with segstore.Producer(store) as producer:
        for i in range(RECORDS):
            time.sleep(PAUSE)
            sent[i] = clock()
            producer.send("t", VALUE)
    return sent


def by_thread(store: segstore.Store) -> tuple[Times, Times]:
    seen: list[Times] = []
    ready = threading.Event()
    follower = threading.Thread(target=lambda: seen.append(follow(store, ready.set)))
    follower.start()
    ready.wait()
    sent = send(store)
    follower.join()
    return sent, seen[0]


def by_process(store: segstore.Store) -> tuple[Times, Times]:
    command = [sys.executable, __file__, store.path]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        sent = send(store)
        seen = np.frombuffer(child.stdout.read(), np.int64)
    return sent, seen


def hand_offs() -> float:
    """Microseconds of two, one after the other: the median of many, a ms apart."""
    gates = threading.Semaphore(0), threading.Semaphore(0)
    began, ended = np.zeros(WARM, np.int64), np.zeros(WARM, np.int64)

    def first() -> None:
        for _ in range(WARM):
            gates[0].acquire()
            gates[1].release()

    def second() -> None:
        for i in range(WARM):
            gates[1].acquire()
            ended[i] = clock()

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    for i in range(WARM):
        time.sleep(PAUSE)
        began[i] = clock()
        gates[0].release()
    for thread in threads:
        thread.join()
    return float(np.median(ended - began)) / 1e3


@pytest.mark.parametrize(
    ("name", "run", "p50", "p99"),
    [("thread", by_thread, 100, 1_000), ("process", by_process, 10_000, 10_000)],
    ids=["thread", "process"],
)
def test_latency(
    benchmark: Any, results: Results, store: segstore.Store, name: str, run: Any, p50: int, p99: int
) -> None:
    store.create_topic("t")
    sent, seen = benchmark.pedantic(lambda: run(store), rounds=1)
    assert len(seen) == RECORDS == store.partition("t").end_offset
    took = (seen - sent)[WARM:] / 1e3
    bare = [hand_offs() for _ in range(PARTS)]
    parts = np.array_split(took, PARTS)
    keep_ratios(benchmark, [b / float(np.median(part)) for b, part in zip(bare, parts, strict=True)])
    assert took.min() > 0
    middle, most = np.percentile(took, [50, 99])
    note = f"least {took.min():.0f}; two bare hand-offs between threads {bare[0]:.0f}"
    results.add(benchmark, f"send to poll, another {name}, p50", middle, p50, "us", False, note)
    results.add(benchmark, f"send to poll, another {name}, p99", most, p99, "us", False, "")


if __name__ == "__main__":
    with segstore.open(sys.argv[1], mode="r") as store:
        seen = follow(store, lambda: print("ready", flush=True))
        sys.stdout.buffer.write(seen.tobytes())
