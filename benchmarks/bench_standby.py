"""What a hot standby costs and gives, over loopback: how fast it catches up, what acks=all waits for it, and
how long a promotion takes.

In the page cache, primary and standby on one disk, the standby in a process of its own.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from harness import Results, keep_ratios, new_log
from standbys import following

import segstore

ROUNDS, PARTITIONS, ONE = 5, 100, 300
MEGABYTES, IN_CALL, SIZE = (200, 1_000), 1_000, 1_000
CHUNK = 1 << 20


@pytest.mark.parametrize("megabytes", MEGABYTES)
def test_catch_up(
    benchmark: Any, results: Results, store: segstore.Store, tmp_path: Path, megabytes: int
) -> None:
    """A new standby gets a log of so many MB; against the same bytes read, sent over TCP and written by two
    threads, 1 MiB at a time. What a standby does once, at its start, weighs less the longer the log is.
    """
    log = new_log(store, "t")
    for _ in range(megabytes):
        log.append_batch([b"x" * SIZE] * IN_CALL)
    source = sorted(Path(store.path, "t-0").glob("*.log"))
    size = sum(path.stat().st_size for path in source)
    ours, theirs = [], []
    with segstore.serve(store, port=0) as server:
        for turn in range(ROUNDS):
            directory = tmp_path / f"standby-{turn}"
            with following(server.bootstrap_servers, directory) as seconds:
                ours.append(seconds)
            with segstore.open(directory, mode="r") as standby:
                assert standby.partition("t", 0).log_end_offset == log.log_end_offset
            take_away(server.bootstrap_servers)
            theirs.append(raw_copy(source, tmp_path / f"raw-{turn}"))
            for copied in (directory, tmp_path / f"raw-{turn}"):
                shutil.rmtree(copied)
    benchmark.pedantic(lambda: None, rounds=1)
    ratios = [raw / one for raw, one in zip(theirs, ours, strict=True)]
    keep_ratios(benchmark, ratios)
    note = f"of a raw TCP copy; {size / median(ours) / 1e6:.0f} to {size / median(theirs) / 1e6:.0f} MB/s"
    results.add(benchmark, f"catch-up of a standby, {megabytes} MB", median(ratios), 0.5, "x", True, note)


def take_away(bootstrap: str) -> None:
    """Take the standby away, so that the next directory may register."""
    command = [sys.executable, "-m", "segstore", "demote", "--standby", "--bootstrap", bootstrap]
    subprocess.run(command, check=True, capture_output=True)


def raw_copy(source: list[Path], target: Path) -> float:
    """Return the seconds that the bytes of files take from one thread to another, through a socket."""
    target.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        began = time.perf_counter()
        sender = threading.Thread(target=_send, args=(source, listener.getsockname()))
        sender.start()
        connection, _ = listener.accept()
        with connection, open(target / "log", "wb", buffering=0) as written:
            room = memoryview(bytearray(CHUNK))
            while got := connection.recv_into(room):
                written.write(room[:got])
        sender.join()
        return time.perf_counter() - began


def _send(source: list[Path], address: tuple[str, int]) -> None:
    with socket.create_connection(address) as connection:
        for path in source:
            with open(path, "rb", buffering=0) as read:
                while data := read.read(CHUNK):
                    connection.sendall(data)


def test_append_in_sync(benchmark: Any, results: Results, store: segstore.Store, tmp_path: Path) -> None:
    """p50 of one record with acks=all, which waits for the standby's process; against a store without one."""
    took: dict[str, list[float]] = {"plain": [], "sync": []}
    with segstore.open(tmp_path / "primary") as primary, segstore.serve(primary, port=0) as server:
        plain, log = new_log(store, "t"), new_log(primary, "t")
        with following(server.bootstrap_servers, tmp_path / "standby", "sync"):

            def run() -> None:
                for name, each in (("plain", plain), ("sync", log)):
                    for _ in range(ONE):
                        began = time.perf_counter()
                        each.append(b"v" * 100)
                        took[name].append(time.perf_counter() - began)

            benchmark.pedantic(run, rounds=ROUNDS)
            assert log.high_watermark == log.log_end_offset == ROUNDS * ONE
    ours, theirs = median(took["sync"]), median(took["plain"])
    keep_ratios(benchmark, [p / s for p, s in zip(took["plain"], took["sync"], strict=True)][::50])
    note = f"p50 of a local append; {ours * 1e6:.0f} to {theirs * 1e6:.1f} us"
    results.add(benchmark, "append of one, acks=all, standby in sync", ours / theirs, 5.0, "x", False, note)


@pytest.mark.parametrize("old", ["dead", "reachable"])
def test_promotion(benchmark: Any, results: Results, tmp_path: Path, old: str) -> None:
    """From the command to the first acknowledgement of each of 100 partitions."""
    took = []
    for turn in range(3):
        base = tmp_path / str(turn)
        base.mkdir()
        with segstore.open(base / "primary") as primary, segstore.serve(primary, port=0) as server:
            primary.create_topic("t", partitions=PARTITIONS)
            for number in range(PARTITIONS):
                primary.partition("t", number).append(b"before")
            with segstore.follow(server.bootstrap_servers, base / "standby") as standby:
                assert standby.wait_caught_up(60_000)
                began = time.perf_counter()
                with standby.promote(old=old, reason="measured") as promoted:
                    promoted.partition("t", 0).append(b"first")
                    took.append(time.perf_counter() - began)
                    for number in range(PARTITIONS):
                        assert promoted.partition("t", number).read_one(0).value == b"before"
    benchmark.pedantic(lambda: None, rounds=1)
    keep_ratios(benchmark, [1 / seconds for seconds in took])
    note = "s, from promote() to the first acknowledgement"
    results.add(
        benchmark, f"promotion of {PARTITIONS} partitions, old {old}", median(took), 1.0, "s", False, note
    )
