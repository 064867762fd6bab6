"""Staged appends: rows that are staged and sealed are in the log once and completely; others raise a named
error.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from faults import CountingFiles
from staging import PARTS, SMALL, TINY_SEGMENTS, begin, contents, inbox, left_in_inbox, rows, stage
from stores import Clock, in_child, records, values
from waiting import PATIENCE, until

import segstore
from segstore import errors
from segstore.files import Files, Handle
from segstore.storage.inbox.adopted_ids import within
from segstore.storage.staging import Staged, Stager, abort, seal

Tell = Callable[[str], None]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


# --- what comes out is what went in --------------------------------------------------------------

COLUMNS = {
    "lists": lambda rows: rows,
    "numpy": lambda rows: np.array(rows, object),
    "arrow": lambda rows: pa.array(rows, pa.binary()),
}


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("codec", CODECS)
def test_adopted_records_equal_appended_ones(store_dir: Path, kind: str, codec: str) -> None:
    begin(store_dir)
    held: list[bytes | None] = [*rows("v", 500), None, b""]
    keys = [None if i % 3 else b"k%d" % i for i in range(502)]
    stamps = np.arange(502) + 1_000_000
    headers = [[("h", b"%d" % i), ("n", None)] if i % 5 == 0 else [] for i in range(502)]
    columns = COLUMNS[kind](held), COLUMNS[kind](keys), stamps, headers, codec
    with Stager(store_dir) as stager:
        assert stager.append_batch("t", 0, *columns, batch_bytes=1000) == 502
        message = pickle.loads(pickle.dumps(stager.finish()))
    assert message.records == 502
    assert message.partitions == {("t", 0)}
    seal(store_dir, "one", [message])
    with segstore.open(store_dir) as store:
        store.partition("t", 1).append_batch(*columns, batch_bytes=1000)
        adopted, appended = (list(records(store.partition("t", p))) for p in (0, 1))
        assert adopted == appended
        sizes = [store.partition("t", p).read(0, 1 << 20).batches["size"].tolist() for p in (0, 1)]
        assert sizes[0] == sizes[1]


def test_compression_is_the_topics(store_dir: Path) -> None:
    begin(store_dir, {"compression.type": "zstd"})
    seal(store_dir, "one", [stage(store_dir, "a", 100)])
    with segstore.open(store_dir, "r") as store:
        assert set(store.partition("t", 1).read(0).batches["attributes"] & 7) == {4}


def test_offsets_epoch_and_stamps(store_dir: Path) -> None:
    begin(store_dir, before=3)
    done = seal(store_dir, "one", [stage(store_dir, "a"), stage(store_dir, "b", parts=PARTS[:1])])
    assert done.offsets == {("t", 1): (3, 43), ("u", 0): (3, 23)}
    with segstore.open(store_dir) as store:
        read = store.partition("t", 1).read(3)
        assert set(read.batches["leader_epoch"]) == {0}
        assert read.offsets.tolist() == list(range(3, 43))
        assert contents(store, PARTS[:1]) == [rows("before", 3) + rows("a", 20) + rows("b", 20)]


def test_a_log_append_time_topic_stamps_anew(store_dir: Path) -> None:
    begin(store_dir, {"message.timestamp.type": "LogAppendTime"})
    message = stage(store_dir, "a")
    clock = Clock(1_800_000_000_000)
    with segstore.open(store_dir, clock=clock, config=TINY_SEGMENTS) as store:
        seal(store_dir, "one", [message])
        read = store.partition("t", 1).read(0)
        assert set(read.timestamps.tolist()) == {clock.now}
        assert set(read.batches["attributes"] & 8) == {8}


@pytest.mark.parametrize(
    ("size", "guess", "links", "restamps"), [(500, True, 4, 0), (500, False, 4, 4), (1 << 20, False, 0, 0)]
)
def test_only_large_files_become_segments(
    store_dir: Path, size: int, guess: bool, links: int, restamps: int
) -> None:
    """Whose batches are written to only where others were appended since they were staged."""
    begin(store_dir, SMALL, before=5 if guess else 4)
    files, options = CountingFiles(), {"inbox.segment.bytes": size}
    message = stage(store_dir, "a")
    with segstore.open(store_dir, files=files, config=options) as store:
        for part in () if guess else PARTS:
            store.partition(*part).append(rows("before", 5)[4])
        seal(store_dir, "one", [message])
        assert contents(store) == [rows("before", 5) + rows("a", 20)] * 2
        assert (files.count("link"), files.count("restamp")) == (links, restamps)
        store.partition("t", 1).append(b"later", timestamp=1)
        for at in range(26):
            assert store.partition("t", 1).read(at, 1).offsets[0] == at
        assert store.partition("t", 1).offset_for_time(2) == 0
    assert left_in_inbox(store_dir) == []


def test_appends_by_c_are_counted_before_the_token_is_taken(store_dir: Path) -> None:
    """Else each large file would be written to twice, the second time while appends wait."""
    begin(store_dir, SMALL)
    files, options = CountingFiles(), {"inbox.segment.bytes": 500}
    message = stage(store_dir, "a")
    with segstore.open(store_dir, files=files, config=options) as store:
        for part in PARTS:
            for n in range(5):
                store.partition(*part).append(b"%d" % n)
        seal(store_dir, "one", [message])
        assert contents(store) == [[b"%d" % n for n in range(5)] + rows("a", 20)] * 2
        assert (files.count("link"), files.count("restamp")) == (4, 4)


def test_a_large_adoption_moves_few_bytes(store_dir: Path) -> None:
    begin(store_dir)
    with Stager(store_dir) as stager:
        stager.append_batch("t", 0, np.zeros((40_000, 100), np.uint8))
        message = stager.finish()
    files = CountingFiles()
    with segstore.open(store_dir, files=files, config={"inbox.segment.bytes": 1 << 20}):
        files.clear()
        seal(store_dir, "one", [message])
    written = sum(len(args[1]) for name, args in files.calls if name == "pwrite")
    assert files.count("link") == 1
    assert written < 20_000 < message.bytes


def test_an_empty_manifest_has_its_id_recorded(store_dir: Path) -> None:
    begin(store_dir)
    assert seal(store_dir, "none", []).offsets == {}
    assert seal(store_dir, "none", []).offsets == {}
    assert left_in_inbox(store_dir) == []


# --- once ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("open_", [True, False])
def test_an_id_is_adopted_once(store_dir: Path, open_: bool) -> None:
    begin(store_dir)
    store = segstore.open(store_dir) if open_ else None
    message = stage(store_dir, "a")
    first = seal(store_dir, "one", [message])
    assert seal(store_dir, "one", [message]) == first
    assert seal(store_dir, "one", [stage(store_dir, "other")]) == first
    assert seal(store_dir, "two", [stage(store_dir, "b")]).offsets[PARTS[0]] == (20, 40)
    if store is not None:
        store.close()
    with segstore.open(store_dir, "r") as reader:
        assert contents(reader) == [rows("a", 20) + rows("b", 20)] * 2
    assert left_in_inbox(store_dir) == []


def test_ids_are_kept_by_count_and_by_time(store_dir: Path) -> None:
    begin(store_dir)
    clock = Clock()
    options = {"inbox.ids.retention.count": 3, "inbox.ids.retention.ms": 1000}
    with segstore.open(store_dir, clock=clock, config=options):
        for n in range(200):
            seal(store_dir, f"id {n}", [])
        path = store_dir / ".segstore" / "adopted"
        assert len(path.read_bytes().splitlines()) <= 130
        assert seal(store_dir, "id 199", []).adopted_ms == clock.now
        clock.now += 5000
        assert seal(store_dir, "later", []).adopted_ms == clock.now
    with segstore.open(store_dir, clock=clock, config=options):
        seal(store_dir, "x", [stage(store_dir, "a")])
        assert seal(store_dir, "later", []).offsets == {}
        assert seal(store_dir, "x", [stage(store_dir, "b")]).offsets == dict.fromkeys(PARTS, (0, 20))


@pytest.mark.parametrize("damage", [b"", b"garbage", b"00000000 {}\n"])
def test_a_torn_line_is_of_no_id(store_dir: Path, damage: bytes) -> None:
    begin(store_dir)
    seal(store_dir, "one", [stage(store_dir, "a")])
    seal(store_dir, "two", [stage(store_dir, "b")])
    for path in (store_dir / ".segstore" / "adopted", store_dir / ".segstore" / "adopted.copy"):
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(lines[0] + lines[1][:-9] + damage)
    assert any("damaged lines" in finding.message for finding in segstore.check(store_dir))
    seal(store_dir, "one", [stage(store_dir, "c")])
    assert seal(store_dir, "two", [stage(store_dir, "c")]).offsets == dict.fromkeys(PARTS, (40, 60))


@pytest.mark.parametrize("which", ["adopted", "adopted.copy"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "flipped"])
def test_an_id_that_one_copy_has_lost_is_not_adopted_again(store_dir: Path, which: str, damage: str) -> None:
    """The damaged line's records were appended a second time, without a word but in the log."""
    begin(store_dir)
    seal(store_dir, "one", [stage(store_dir, "a")])
    seal(store_dir, "two", [stage(store_dir, "b")])
    path = store_dir / ".segstore" / which
    data = path.read_bytes()
    path.write_bytes(
        {"empty": b"", "cut": data[:-9], "flipped": data[:-9] + b"~" + data[-8:]}.get(damage, b"")
    )
    if damage == "missing":
        path.unlink()
    with segstore.open(store_dir) as store:
        told = [one.path for one in store.mended]
        assert (str(path) in told) == (which == "adopted" or damage in ("cut", "flipped"))
    assert seal(store_dir, "two", [stage(store_dir, "c")]).offsets == dict.fromkeys(PARTS, (20, 40))
    assert path.read_bytes() == data


# --- processes -------------------------------------------------------------------------------------


@pytest.mark.kind("programs")
def test_the_adopter_is_another_process(store_dir: Path) -> None:
    begin(store_dir)
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(writing)
        with segstore.open(store_dir):
            os.read(reading, 1)  # until the parent has closed its end
        os._exit(0)
    os.close(reading)
    try:
        lock = store_dir / ".lock"
        until(lambda: lock.read_bytes() and segstore.files.Files().is_locked(lock))
        for n in range(20):
            done = seal(store_dir, f"id {n}", [stage(store_dir, f"r{n}", 5)], timeout=PATIENCE)
            assert done.offsets[PARTS[0]] == (5 * n, 5 * n + 5)
            with segstore.open(store_dir, "r") as reader:
                assert reader.partition(*PARTS[0]).end_offset == 5 * n + 5
    finally:
        os.close(writing)
        os.waitpid(pid, 0)


def test_a_writer_that_does_nothing_is_waited_for_in_vain(store_dir: Path) -> None:
    begin(store_dir)
    message = stage(store_dir, "a")
    with segstore.files.Files().lock(store_dir / ".lock"):
        with pytest.raises(errors.KafkaTimeoutError, match=str(os.getpid())):
            seal(store_dir, "one", [message], timeout=0.1)
        abort([message])
    assert any("sealed and waits" in finding.message for finding in segstore.check(store_dir))
    assert seal(store_dir, "one", [message]).offsets[PARTS[0]] == (0, 20)


@pytest.mark.kind("kills")
def test_two_stagers_and_an_application_at_once(store_dir: Path) -> None:
    """Every row once; those of a manifest side by side, in the order in which it staged them."""
    begin(store_dir, SMALL)

    def staging(tag: str) -> Callable[[Tell], None]:
        def run(tell: Tell) -> None:
            for n in range(12):
                seal(store_dir, f"{tag} {n}", [stage(store_dir, f"{tag}{n}", 7)], timeout=PATIENCE)

        return run

    failed: list[BaseException] = []

    def child(tag: str) -> None:
        try:
            assert in_child(staging(tag))[0] == 0
        except BaseException as error:
            failed.append(error)

    with segstore.open(store_dir, config=TINY_SEGMENTS) as store:
        threads = [threading.Thread(target=child, args=(tag,)) for tag in ("x", "y")]
        for thread in threads:
            thread.start()
        appended = 0
        while any(thread.is_alive() for thread in threads):
            for part in PARTS:
                store.partition(*part).append_batch(rows(f"app{appended}", 3))
            appended += 1
        for thread in threads:
            thread.join()
        assert failed == []
        found = contents(store)
    expected = [rows(f"{tag}{n}", 7) for tag in "xy" for n in range(12)]
    expected += [rows(f"app{n}", 3) for n in range(appended)]
    for log in found:
        assert Counter(log) == Counter(row for group in expected for row in group)
        begins = {row: at for at, row in enumerate(log)}
        assert all(log[begins[group[0]] :][: len(group)] == group for group in expected)


def test_readers_see_all_of_a_manifest_or_nothing(store_dir: Path) -> None:
    begin(store_dir, SMALL)
    stop = threading.Event()
    looks: list[str] = []

    def hammer() -> None:
        with segstore.open(store_dir, "r") as reader:
            while not stop.is_set():
                # The later partition is looked at first: it is never ahead of the other.
                last = reader.partition(*PARTS[1]).end_offset
                first = reader.partition(*PARTS[0]).end_offset
                held = len(values(reader.partition(*PARTS[0])))
                if last > first or last % 20 or first % 20 or held < first:
                    looks.append(f"{first} {last} {held}")

    with segstore.open(store_dir, config=TINY_SEGMENTS):
        readers = [threading.Thread(target=hammer) for _ in range(2)]
        for reader in readers:
            reader.start()
        try:
            for n in range(25):
                seal(store_dir, f"id {n}", [stage(store_dir, f"r{n}")])
        finally:
            stop.set()
            for reader in readers:
                reader.join()
    assert looks == []


# --- bad input -------------------------------------------------------------------------------------

ARGUMENTS: dict[str, tuple[Callable[[Path, Staged], Any], type[Exception], str]] = {
    "id of another type": (lambda p, m: seal(p, 7, [m]), errors.InvalidTypeError, "id must be a str"),
    "empty id": (lambda p, m: seal(p, "", [m]), errors.InvalidArgumentError, "1 to 1,000"),
    "a line break in an id": (lambda p, m: seal(p, "a\nb", [m]), errors.InvalidArgumentError, "printable"),
    "one message": (lambda p, m: seal(p, "a", m), errors.InvalidTypeError, "sequence of Staged"),
    "no message": (lambda p, m: seal(p, "a", [7]), errors.InvalidTypeError, "not int"),
    "another's files": (
        lambda p, m: seal(p, "a", [replace(m, files=m.files[:1])]),
        errors.InvalidArgumentError,
        "wrong CRC",
    ),
    "a source of another type": (
        lambda p, m: seal(p, "a", [m], source=7),
        errors.InvalidTypeError,
        "source must be",
    ),
    "a line break in a source": (
        lambda p, m: seal(p, "a", [m], source="a\nb"),
        errors.InvalidArgumentError,
        "source=.*up to 1,000 printable",
    ),
    "a long source": (
        lambda p, m: seal(p, "a", [m], source="x" * 1001),
        errors.InvalidArgumentError,
        "up to 1,000",
    ),
    "no store": (lambda p, m: seal(p / "no", "a", [m]), errors.StorageError, "No such store"),
    "no path": (lambda p, m: seal(7, "a", [m]), errors.InvalidTypeError, "path must be"),
    "stager without a store": (lambda p, m: Stager(p / "no"), errors.StorageError, "No such store"),
    "no topic": (lambda p, m: stage(p, "a", parts=[("no", 0)]), errors.UnknownTopicOrPartitionError, "'no'"),
    "no partition": (lambda p, m: stage(p, "a", parts=[("u", 3)]), errors.UnknownTopicOrPartitionError, "3"),
    "abort of one": (lambda p, m: abort(m), errors.InvalidTypeError, "sequence of Staged"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_bad_arguments_are_named(store_dir: Path, case: str) -> None:
    use, kind, text = ARGUMENTS[case]
    begin(store_dir)
    message = stage(store_dir, "a")
    with pytest.raises(kind, match=text):
        use(store_dir, message)
    abort([message])
    assert left_in_inbox(store_dir) == []


def test_a_stager_is_used_up(store_dir: Path) -> None:
    begin(store_dir)
    with Stager(store_dir) as stager:
        with pytest.raises(errors.InvalidTypeError):
            stager.append_batch("t", 0, [7])
        stager.append_batch("t", 0, [b"x"])
        message = stager.finish()
        with pytest.raises(errors.IllegalStateError, match="finished"):
            stager.append_batch("t", 0, [b"x"])
    with Stager(store_dir) as other:
        other.append_batch("t", 0, [b"never"])
    assert [name for name in inbox(store_dir) if name.endswith(".batches")] == [
        f"{message.stager}/00000000.batches"
    ]
    abort([message], store_dir)


def test_a_copy_knows_the_ids_of_what_is_in_it(store_dir: Path, tmp_path: Path) -> None:
    begin(store_dir)
    with segstore.open(store_dir):
        first = seal(store_dir, "one", [stage(store_dir, "a")])
        segstore.copy(store_dir, tmp_path / "copy")
    assert seal(tmp_path / "copy", "one", []).offsets == first.offsets
    line = (store_dir / ".segstore" / "adopted").read_bytes()
    assert within(line, dict.fromkeys(PARTS, 20)) == line
    assert within(line, {PARTS[0]: 19, PARTS[1]: 20}) == b""


class BeginningFiles(Files):
    """Notes what the disk is told to begin with, and how long the file is then."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int, int]] = []

    def start_sync(self, handle: Handle, position: int, length: int) -> None:
        super().start_sync(handle, position, length)
        self.begun.append((position, position + length, os.fstat(handle.fd).st_size))


def test_the_disk_begins_with_what_is_written_while_more_is_staged(store_dir: Path) -> None:
    begin(store_dir, {"segment.bytes": 1 << 30})
    files, staged = BeginningFiles(), np.zeros((30, 1 << 19), np.uint8)
    with Stager(store_dir, files=files) as stager:
        for _ in range(2):
            stager.append_batch("t", 0, staged)
        message = stager.finish()
    starts, ends, sizes = (list(column) for column in zip(*files.begun, strict=True))
    assert len(starts) >= 6
    assert starts == [0, *ends[:-1]]
    assert all(end <= size for end, size in zip(ends, sizes, strict=True))
    seal(store_dir, "one", [message])
    with segstore.open(store_dir) as store:
        assert store.partition("t", 0).end_offset == 60
