"""How far a reader in another process reads: published ends, and how old ones are treated."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults import CountingFiles
from stores import killed, logs, raw_batches, values, write_topic

import segstore
from segstore import names
from segstore.files import Files
from segstore.storage.meta import published_ends
from segstore.storage.store import believed_ends, reader

N = 100


def some(start: int, stop: int) -> list[list[bytes]]:
    return [[b"%d" % o for o in range(at, at + 10)] for at in range(start, stop, 10)]


def a_broker_was_here(root: Path, marker: int | None) -> None:
    """A broker's clean run over a closed store (None: it was killed): twice as many records."""
    with logs(root)[-1].open("ab") as log:
        log.write(raw_batches(range(N, 2 * N)))
    path = root / ".kafka_cleanshutdown"
    path.unlink()
    if marker is not None:
        path.write_text(f'{{"version":0,"brokerEpoch":{marker}}}')


@pytest.mark.parametrize("marker", [-1, 0, 7, None], ids=["no epoch", "zero", "an epoch", "killed"])
def test_ends_from_before_a_broker_are_not_believed(tmp_path: Path, marker: int | None) -> None:
    root = tmp_path / "store"
    write_topic(root, some(0, N))
    a_broker_was_here(root, marker)
    with segstore.open(root, "r") as store:
        log = store.partition("t")
        assert log.end_offset == 2 * N
        assert len(values(log)) == 2 * N


def test_a_reader_that_was_open_meanwhile_sees_what_a_broker_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(believed_ends, "_BELIEF_NS", 0)
    root = tmp_path / "store"
    write_topic(root, some(0, N))
    with segstore.open(root, "r") as store:
        log = store.partition("t")
        assert log.end_offset == N
        a_broker_was_here(root, 7)
        assert log.end_offset == 2 * N
        assert log.read(N).offsets[0] == N


def test_ends_of_a_writer_that_was_killed_are_believed(tmp_path: Path) -> None:
    live, root = tmp_path / "live", tmp_path / "store"
    with write_topic(live, some(0, N), close=False):
        killed(live, root)
    with logs(root)[-1].open("ab") as log:
        log.write(raw_batches(range(N, N + 5)))  # written, and not published yet
    with segstore.open(root, "r") as store:
        assert store.partition("t").end_offset == N


@pytest.mark.parametrize("left", [0, 50, 51, 130], ids=["nothing", "a batch", "torn", "two batches, torn"])
def test_an_unsynced_tail_that_is_gone_is_not_passed_over(tmp_path: Path, left: int) -> None:
    """Its offsets come again: a reader must find them then."""
    live, root = tmp_path / "live", tmp_path / "store"
    with write_topic(live, some(0, 50), close=False) as store:
        store.partition("t").flush()
        synced = logs(live)[-1].stat().st_size
        for batch in some(50, N):
            store.partition("t").append_batch(batch)
        killed(live, root)
    size = (logs(root)[-1].stat().st_size - synced) // 5
    os.truncate(logs(root)[-1], synced + left * size // 50)
    end = 50 + 10 * (left // 50)
    with segstore.open(root, "r") as store:
        log = store.partition("t")
        assert log.end_offset == end
        assert len(values(log)) == end
        assert log.read(end).next_offset == end
        with pytest.raises(segstore.OffsetOutOfRangeError):
            log.read(end + 1)


def test_a_synced_tail_that_is_gone_is_told(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_topic(root, some(0, N))
    path = logs(root)[-1]
    os.truncate(path, path.stat().st_size // 2)
    with segstore.open(root, "r") as store:
        log = store.partition("t")
        with pytest.raises(segstore.CorruptRecordError) as told:
            log.read(50)
        assert told.value.next_offset == log.end_offset == N


def test_without_ends_an_unchanged_directory_is_listed_once(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_topic(root, some(0, N), {"segment.bytes": 1000})
    (root / ".segstore/ends").unlink()
    old = time.time_ns() - 10 * 10**9
    os.utime(root / "t-0", ns=(old, old))
    files = CountingFiles()
    with segstore.open(root, "r", files=files) as store:
        log = store.partition("t")
        log.read(0)
        files.calls.clear()
        for _ in range(10):
            log.read(0)
        listed = [args for name, args in files.calls if name == "listdir"]
        assert listed == []
        assert files.count("size") <= 20  # the active log's, and its own look-ups
        write = logs(root)[-1]
        write.write_bytes(write.read_bytes() + raw_batches(range(N, N + 5)))
        assert log.end_offset == N + 5


def test_checkpoints_do_not_make_topics_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_TICK_NS", 20_000_000)
    root = tmp_path / "store"
    with segstore.open(root) as writer:
        for name in ("a", "b", "c"):
            writer.create_topic(name)
        files = CountingFiles()
        with segstore.open(root, "r", files=files) as store:
            for _ in range(3):
                time.sleep(0.03)
                store.topics()
            files.calls.clear()
            for n in range(5):
                (root / "recovery-point-offset-checkpoint").write_text("0\n0\n")
                os.utime(root)
                assert sorted(store.topics()) == ["a", "b", "c"], n
            assert files.count("read_file") == 0
            writer.create_topic("d")
            assert sorted(store.topics()) == ["a", "b", "c", "d"]
            writer.delete_topic("a")
            assert sorted(store.topics()) == ["b", "c", "d"]
            writer.alter_topic("b", {"retention.ms": 5})
            assert store.topics()["b"].config == {"retention.ms": 5}


_CLAIMS = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
slots = memoryview(memory)[int(sys.argv[2]) :].cast("q")
first, step, n = len(slots) // 2 // 8 * 8, 8, len(slots)
print(flush=True)
while True:
    for at in range(first, n, step):
        slots[at] = 1 - slots[at]
"""


@pytest.mark.kind("programs")
def test_a_reader_looks_for_slots_while_a_writer_claims_some(tmp_path: Path) -> None:
    """NumPy's nonzero() raises where another process writes into the array that it looks through."""
    root = tmp_path / "store"
    write_topic(root, some(0, N))
    path = root / names.OURS / names.ENDS
    command = [sys.executable, "-c", _CLAIMS, str(path), str(published_ends.HEADER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline()
            for _ in range(2000):
                assert published_ends.EndsReader(Files(), str(path)).keys()
        finally:
            child.kill()
