"""The system calls of a transfer, as `CountedFiles` counts them; strace must count the same."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import IMPORTED
from transfers import AVAILABLE, PAIRS, SHOWN, fill, served, sink_of, transfer
from waiting import PATIENCE

import segstore
from segstore.bench.zero_copy.counted_files import CountedFiles
from segstore.storage.transfer.senders import BUFFER, WINDOW

MIB = 1 << 20
SEARCH = {"pread64": 2}
"""Headers: of the batch that the index gives for the offset, and of the one that it gives for the end."""
LOOK = {"tcp": {"fstat": 1, "getsockopt": 3}, "unix": {"fstat": 1, "getsockopt": 2}, "pipe": {"fstat": 1}}
LOOK["file"] = {"fstat": 1, "fcntl": 1}
MOVES = {
    ("sendfile", "unix"): {"sendfile": 1},
    ("sendfile", "file"): {"sendfile": 1},
    # As much as a pipe holds, 64 KiB, a call; behind the first, which is a part, the end is searched again.
    ("sendfile", "pipe"): {"sendfile": 256, **SEARCH},
    ("splice", "unix"): {**LOOK["unix"], "pipe2": 1, "fcntl": 1, "splice": 32, "close": 2},
    ("splice", "pipe"): {**LOOK["pipe"], "splice": 256},  # straight into it
    ("mmap", "unix"): {"mmap": 4, "write": 4, "munmap": 4},
    ("mmap", "pipe"): {"mmap": 4, "write": 4, "munmap": 4},
    ("mmap", "file"): {"mmap": 4, "write": 4, "munmap": 4},
    ("read", "unix"): {"pread64": 16, "write": 16},
    ("read", "file"): {"pread64": 16, "write": 16},
    ("copy_file_range", "file"): {**LOOK["file"], "copy_file_range": 1},
}


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[segstore.PartitionLog, CountedFiles]]:
    """One segment of record batches of exactly 64 KiB."""
    files = CountedFiles()
    with segstore.open(tmp_path_factory.mktemp("counts") / "store", files=files) as store:
        store.create_topic("t")
        log = store.partition("t", 0)
        log.append_batch([b"x" * (65536 - 61 - 11)] * 300, batch_bytes=65536)
        assert log.size == 300 * 65536
        yield log, files


@pytest.mark.parametrize(("method", "kind"), MOVES)
def test_calls_of_16_mib(
    big: tuple[segstore.PartitionLog, CountedFiles], method: str, kind: str, tmp_path: Path
) -> None:
    assert (BUFFER, WINDOW) == (MIB, 4 * MIB)
    log, files = big
    at = 1 + list(MOVES).index((method, kind))  # a range of which nothing is remembered
    with sink_of(kind, tmp_path) as sink:
        sink.start(most=MIB)
        files.clear()
        assert log.transfer(sink, at, 16 * MIB, method) == (16 * MIB, at + 256)
        assert files.calls == Counter(SEARCH) + Counter(MOVES[method, kind])
        sink.close()


def test_a_full_non_blocking_sink_is_polled_and_not_asked_again_and_again(
    big: tuple[segstore.PartitionLog, CountedFiles], tmp_path: Path
) -> None:
    log, files = big
    with sink_of("non-blocking pipe", tmp_path) as sink:
        sink.start(waits=True)
        files.clear()
        wait, sink_go = files.wait_for, sink.go

        def look(fd: int, events: int, timeout_ms: int | None = None) -> int:
            sink_go.set()
            return wait(fd, events, timeout_ms)

        files.wait_for = look  # type: ignore[method-assign]
        try:
            log.transfer(sink, 10, MIB, "sendfile")
        finally:
            del files.wait_for
        sink.close()
    assert files.calls["poll"] >= 1
    # 16 calls move 64 KiB each, or less; each that would have to wait is followed by one wait.
    assert files.calls["sendfile"] - files.calls["poll"] >= 16
    assert set(files.calls) == {"pread64", "sendfile", "poll"}


@pytest.mark.parametrize("method", [*AVAILABLE, *SHOWN])
def test_a_batch_of_100_bytes(method: str, store_dir: Path, tmp_path: Path) -> None:
    """The fixed cost of a transfer: where the batch lies is one read of a header."""
    kind = next(kind for kind in ("tcp", "file") if method in served(kind))
    files = CountedFiles()
    with segstore.open(store_dir, files=files) as store, sink_of(kind, tmp_path) as sink:
        store.create_topic("t")
        store.partition("t", 0).append(b"x" * 30)
        files.clear()
        transfer(store.partition("t", 0), sink, 0, 1000, method)
        most = {"sendfile": 2, "mmap": 4, "read": 3, "copy_file_range": 4, "auto": 6, "splice": 11}
        assert files.calls.total() <= most.get(method, 20)
        sink.start()
        sink.close()


TRACED = """
import json, os, sys, segstore
sys.path[:0] = sys.argv[2].split(os.pathsep)
from pathlib import Path
from transfers import sink_of, transfer
from segstore.bench.zero_copy.counted_files import CountedFiles
files = CountedFiles()
with segstore.open(sys.argv[1], files=files) as store, sink_of(sys.argv[4], Path(sys.argv[3])) as sink:
    sink.start()
    log = store.partition("t", 0)
    transfer(log, sink, 0, 1 << 22, sys.argv[5])
    os.getsid(0)
    files.clear()
    transfer(log, sink, 0, 1 << 22, sys.argv[5])
    os.getsid(0)
    sink.close()
print(json.dumps(files.calls))
"""
STRACED = ("tcp", "unix", "pipe", "file")


@pytest.mark.kind("strace")
@pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace here")
@pytest.mark.parametrize(("kind", "method"), [pair for pair in PAIRS if pair[0] in STRACED])
def test_strace_counts_the_same(kind: str, method: str, tmp_path: Path, rng: random.Random) -> None:
    """Of the thread that transfers, between two marks, memory left out."""
    with segstore.open(tmp_path / "store") as store:
        store.create_topic("t", config={"segment.bytes": 700_000})
        fill(store.partition("t", 0), rng, 2_000_000, 16384)
    trace = tmp_path / "trace"
    script = [
        sys.executable,
        "-c",
        TRACED,
        tmp_path / "store",
        os.pathsep.join(IMPORTED),
        tmp_path,
        kind,
        method,
    ]
    run = subprocess.run(
        ["strace", "-ff", "-o", trace, *script], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    (lines,) = (text.splitlines() for p in tmp_path.glob("trace.*") if "getsid(" in (text := p.read_text()))
    marks = [i for i, line in enumerate(lines) if line.startswith("getsid(")]
    no_calls = re.compile(r"MAP_ANONYMOUS|= \? ERESTART")  # memory; a call that the kernel begins anew
    calls = [line for line in lines[marks[0] + 1 : marks[1]] if "(" in line and not no_calls.search(line)]
    names = (line.partition("(")[0] for line in calls)
    seen = Counter("fstat" if name == "newfstatat" else name for name in names)
    counted = Counter(eval(run.stdout))
    for memory_or_lock in ("brk", "madvise", "futex", "getpid"):
        del seen[memory_or_lock]
    assert seen == counted, "\n".join(calls)
