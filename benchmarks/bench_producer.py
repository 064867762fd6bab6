"""How fast a producer sends, against one os.write a record.

Page cache, no sync on either side; a fresh topic and a fresh file for every round. A round of sending ends
with flush: every record is in the log and its future done. The time of the calls of `send` alone, with all
futures kept, is measured besides, in the same rounds: the sender's thread works meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from harness import SEED, Results, by_turns, new_log

import segstore

RECORDS = {100: 300_000, 1000: 60_000}
KEYS = [b"%04d" % i for i in range(1000)]
Send = Callable[..., Any]


def dropped(send: Send, values: list[bytes]) -> list[Any]:
    for value in values[:-1]:
        send("t", value)
    return [send("t", values[-1])]


def kept(send: Send, values: list[bytes]) -> list[Any]:
    return [send("t", value) for value in values]


def with_keys(send: Send, values: list[bytes]) -> list[Any]:
    return [send("t", value, key) for value, key in zip(values, cycle(KEYS), strict=False)]


def with_callbacks(send: Send, values: list[bytes]) -> list[Any]:
    return [send("t", value).add_callback(ignore) for value in values]


def ignore(_metadata: Any) -> None:
    """Do with an outcome what this application does: nothing."""


WAYS = {
    "dropped": (dropped, 0.8),
    "kept": (kept, 1.0),
    "keys": (with_keys, 0.6),
    "callbacks": (with_callbacks, 0.2),
}


@pytest.mark.parametrize("size", RECORDS)
@pytest.mark.parametrize("name", WAYS)
def test_send(
    benchmark: Any, results: Results, store: segstore.Store, tmp_path: Path, name: str, size: int
) -> None:
    count, path = RECORDS[size], tmp_path / "raw"
    data = np.random.default_rng(SEED).bytes(count * size)
    values = [data[at : at + size] for at in range(0, len(data), size)]
    send_all, least = WAYS[name]
    alone, raw = list[float](), list[float]()

    def prepare() -> None:
        path.unlink(missing_ok=True)
        new_log(store, "t")

    def ours() -> None:
        with segstore.Producer(store, linger_ms=5, buffer_memory=256 << 20) as producer:
            began = time.perf_counter()
            futures = send_all(producer.send, values)
            alone.append(time.perf_counter() - began)
        assert futures[-1].get().offset == count - 1

    def bare() -> None:
        with open(path, "wb", buffering=0) as file:
            fd, write = file.fileno(), os.write
            began = time.perf_counter()
            for value in values:
                write(fd, value)
            raw.append(time.perf_counter() - began)

    ratio, theirs, best = by_turns(benchmark, ours, bare, prepare, rounds=5)
    assert store.partition("t").end_offset == count
    alone_ratio = median(b / a for a, b in zip(alone, raw, strict=True))
    note = (
        f"of one os.write a record; {count / best / 1e6:.2f} to {count / theirs / 1e6:.2f} M/s; "
        f"without the flush {alone_ratio:.2f}"
    )
    results.add(benchmark, f"send of {size} bytes, {name}", ratio, least, "x", True, note)
