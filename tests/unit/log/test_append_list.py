"""Promise: a list of records is appended by one call of C, with the bytes, offsets and errors of the long
way, which has all that is no small list of exact types.
"""

from __future__ import annotations

import errno
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import CountingFiles, FailingFiles
from paused_tails import let_tails_open
from stores import START_MS, Clock, tree

import segstore
from segstore._native import lib, seg_list_append
from segstore.errors import OffsetMismatchError, RecordTooLargeError, StorageError
from segstore.storage.segment.native_tail import NativeTail

FEW = [b"%d" % n * 30 for n in range(10)]
ROOM = 1 << 20  # bytes that one call takes


def opened(path: Path, config: dict[str, Any] | None = None, files: Any = None) -> segstore.PartitionLog:
    more = {} if files is None else {"files": files}
    store = segstore.open(path, clock=Clock(START_MS), **more)
    store.create_topic("t", 1, config)
    log = store.partition("t")
    for _ in range(2):
        log.append(b"lends the tail", b"k", timestamp=START_MS)
    return log


@pytest.fixture
def log(store_dir: Path) -> Iterator[segstore.PartitionLog]:
    log = opened(store_dir, {"retention.ms": 1000})
    yield log
    log.store.close()


def tail_of(log: segstore.PartitionLog) -> NativeTail:
    return log.partition_for_write().tail.native


def by_c(log: segstore.PartitionLog) -> int:
    return int(tail_of(log).c.appends)


def called(call: Callable[[], object]) -> list[str]:
    """The functions of C that a call makes."""
    found: list[str] = []

    def profile(_frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and getattr(function, "__name__", "").startswith("seg_"):
            found.append(function.__name__)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


# --- what C takes ------------------------------------------------------------------------------

TAKEN: dict[str, tuple[Any, ...]] = {
    "one value": ([b"v"],),
    "values and none": ([b"", None, b"v" * 300],),
    "a tuple": (tuple(FEW),),
    "keys": (FEW, [None, b"", *FEW[2:]]),
    "one time for all": (FEW, None, START_MS - 5),
    "a time for each": (FEW, None, [START_MS - n * 7 for n in range(10)]),
    "headers": (FEW, None, None, [[("h", b"v")], None, (), [("é", None), ("", b""), ("é", None)], *[()] * 6]),
    "all of them": (FEW, FEW, tuple(range(START_MS, START_MS + 10)), [[("h", b"v" * 200)]] * 10),
    "no header at all": (FEW, None, None, [()] * 10),
    "several batches": (FEW * 20, None, None, None, None, 1000),
    "a batch for each record": (FEW, None, None, None, None, 1),
    "batches of two or three": (FEW, FEW, None, None, None, 300),
    "a batch that is larger than all": (FEW, None, None, None, None, 1 << 40),
    "many": ([b"v" * 100] * 5000,),
    "many in tiny batches": ([b"v" * 100] * 3000, None, None, None, None, 200),
    "one of half a MiB": ([bytes(ROOM // 2)],),
}


@pytest.mark.parametrize("case", TAKEN)
def test_one_call_of_c_writes_what_the_long_way_writes(tmp_path: Path, case: str) -> None:
    given, logs = TAKEN[case], [opened(tmp_path / way) for way in ("short", "long")]
    assert called(lambda: logs[0].append_batch(*given)) == ["seg_list_append"]
    tail_of(logs[1]).pause()  # until the next append by Python
    offsets = [log.append_batch(*given) for log in logs]
    assert offsets[0] == range(2 + len(given[0]), 2 + 2 * len(given[0]))
    logs[1].append_batch(*given)
    assert by_c(logs[0]) == 2
    values = logs[0].read(2, 1 << 30).values.tolist()
    assert values == [*given[0]] * 2
    assert files_of(logs[0]) == files_of(logs[1])


def files_of(log: segstore.PartitionLog) -> dict[str, Any]:
    """The files of a partition, whose store is closed, but for that with the topic's id."""
    store = log.store
    assert isinstance(store, segstore.Store)
    path = Path(store.path)
    store.close()
    assert segstore.check(path) == []
    found = tree(path)
    return {name: found[name] for name in found if name.startswith("t-0") and "metadata" not in name}


def test_one_write_for_all_batches(store_dir: Path) -> None:
    files = CountingFiles()
    log = opened(store_dir, files=files)
    files.clear()
    log.append_batch(FEW * 20, batch_bytes=1000)
    assert files.counts() == {"pwrite": 1}
    assert len(log.read(2, 1 << 20).batches) > 5
    log.store.close()


def test_the_offset_that_is_expected(log: segstore.PartitionLog) -> None:
    assert called(lambda: log.append_batch(FEW, expected_offset=2)) == ["seg_list_append"]
    with pytest.raises(OffsetMismatchError, match="expected_offset=11: t-0 ends at 12"):
        log.append_batch(FEW, expected_offset=11)
    columns = np.array(FEW)
    assert "seg_tail_write" in called(lambda: log.append_batch(columns, expected_offset=12))
    with pytest.raises(OffsetMismatchError, match="expected_offset=12: t-0 ends at 22"):
        log.append_batch(columns, expected_offset=12)
    assert log.end_offset == 22


# --- what is left to the long way ----------------------------------------------------------------

USUAL: tuple[Any, ...] = (FEW, None, None, None, 65536, None)
VALUES, KEYS, TIMES, HEADERS, BYTES, EXPECTED = range(6)
REFUSED: dict[str, tuple[int, Any]] = {
    "no list": (VALUES, np.array(FEW)),
    "None": (VALUES, None),
    "a str among them": (VALUES, [*FEW[:9], "v"]),
    "a bytearray among them": (VALUES, [*FEW[:9], bytearray(b"v")]),
    "a bytearray first": (VALUES, [bytearray(b"v"), *FEW[1:]]),
    "fewer than are told": (VALUES, FEW[:9]),
    "more than are told": (VALUES, [*FEW, b"v"]),
    "more than a MiB": (VALUES, [bytes(ROOM // 9)] * 10),
    "more than a MiB, as the first does not tell": (VALUES, [b"v", *[bytes(ROOM // 8)] * 9]),
    "one that is larger than max.message.bytes": (VALUES, [b"v"] * 9 + [bytes(1 << 20)]),
    "keys that are a dict": (KEYS, dict.fromkeys(range(10), b"k")),
    "fewer keys": (KEYS, FEW[:9]),
    "a key that is a str": (KEYS, ["k"] * 10),
    "keys of more than a MiB": (KEYS, [bytes(ROOM // 9)] * 10),
    "a bool for a time": (TIMES, True),
    "a float for a time": (TIMES, 1.5),
    "no time, as -1": (TIMES, -1),
    "a time beyond int64": (TIMES, 1 << 63),
    "fewer times": (TIMES, [START_MS] * 9),
    "times in an array": (TIMES, np.full(10, START_MS)),
    "a time that is None": (TIMES, [START_MS] * 9 + [None]),
    "a time that is negative": (TIMES, [-1] + [START_MS] * 9),
    "a time far ahead": (TIMES, [START_MS] * 9 + [START_MS + 10**10]),
    "a time that retention deletes": (TIMES, [START_MS] * 9 + [5]),
    "one time that retention deletes": (TIMES, 5),
    "fewer headers": (HEADERS, [()] * 9),
    "headers that are an iterator": (HEADERS, iter([()] * 10)),
    "headers of one that are a dict": (HEADERS, [()] * 9 + [{}]),
    "a header that is a list": (HEADERS, [()] * 9 + [[["h", b"v"]]]),
    "a header's name that is bytes": (HEADERS, [()] * 9 + [[(b"h", b"v")]]),
    "a header's name that UTF-8 can't encode": (HEADERS, [()] * 9 + [[("\ud800", b"v")]]),
    "headers that are too many": (HEADERS, [[("", None)] * (ROOM // 10)] * 10),
    "headers of more than a MiB": (HEADERS, [[("h", bytes(ROOM // 9))]] * 10),
    "no bytes for a batch": (BYTES, 0),
    "a bool for bytes": (BYTES, True),
    "another offset": (EXPECTED, 3),
    "an offset below 0": (EXPECTED, -1),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_left_to_the_long_way(log: segstore.PartitionLog, case: str) -> None:
    """C answers that, and has done nothing."""
    at, wrong = REFUSED[case]
    tail = tail_of(log)
    given = [*USUAL[:at], wrong, *USUAL[at + 1 :]]
    assert seg_list_append(tail.address, 10, *given, START_MS) == lib.SEG_SLOW
    assert (tail.c.appends, log.log_end_offset) == (0, 2)
    assert seg_list_append(tail.address, 10, *USUAL, START_MS) == 2


CONFIGS: dict[str, dict[str, Any]] = {
    "a codec": {"compression.type": "lz4"},
    "keys that must be there": {"cleanup.policy": "compact"},
    "smaller messages": {"max.message.bytes": 200},
    "a full segment": {"segment.bytes": 600},
}


@pytest.mark.parametrize("case", CONFIGS)
def test_settings_that_leave_it_to_the_long_way(tmp_path: Path, case: str) -> None:
    log = opened(tmp_path / "s", CONFIGS[case])
    given = [*USUAL[:VALUES], [b"v" * 100, b"v" * 300], *USUAL[VALUES + 1 :]]
    assert seg_list_append(tail_of(log).address, 2, *given, START_MS) == lib.SEG_SLOW
    assert by_c(log) == 0
    log.store.close()


def test_no_batch_is_above_max_message_bytes(tmp_path: Path) -> None:
    log = opened(tmp_path / "s", {"max.message.bytes": 300})
    assert called(lambda: log.append_batch(FEW)) == ["seg_list_append"]
    assert log.read(2).batches["count"].tolist() == [6, 4]
    log.store.close()


def test_a_topic_that_takes_no_message(tmp_path: Path) -> None:
    log = opened(tmp_path / "s")
    log.store.alter_topic("t", {"max.message.bytes": 0})
    partition = log.partition_for_write()
    with partition.tail.token:
        partition.tail.open(partition.validator)  # as replicas do, without an append
    tail_of(log)
    for append in (lambda: log.append_batch(FEW), lambda: log.append(b"one")):
        with pytest.raises(RecordTooLargeError):
            append()
    assert log.log_end_offset == 2
    log.store.close()


def test_keys_that_must_be_there_and_are(tmp_path: Path) -> None:
    log = opened(tmp_path / "s", CONFIGS["keys that must be there"])
    assert called(lambda: log.append_batch(FEW, FEW)) == ["seg_list_append"]
    with pytest.raises(segstore.errors.InvalidRecordError):
        log.append_batch(FEW, [None, *FEW[1:]])
    log.store.close()


def test_a_tail_that_is_not_lent(log: segstore.PartitionLog) -> None:
    tail = tail_of(log)
    tail.pause()
    assert seg_list_append(tail.address, 10, *USUAL, START_MS) == lib.SEG_SLOW
    assert log.append_batch(FEW) == range(2, 12)


BAD_CALLS: dict[str, tuple[Callable[[int], tuple[Any, ...]], str]] = {
    "too few arguments": (lambda at: (at, 1, [b"v"]), "takes 9 arguments, not 3"),
    "an address that is none": (lambda at: ("x", 10, *USUAL, START_MS), "int"),
    "a number that is none": (lambda at: (at, None, *USUAL, START_MS), "int"),
    "a clock that is none": (lambda at: (at, 10, *USUAL, "now"), "int"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_arguments_are_an_error_and_append_nothing(log: segstore.PartitionLog, case: str) -> None:
    arguments, told = BAD_CALLS[case]
    with pytest.raises(TypeError, match=told):
        seg_list_append(*arguments(tail_of(log).address))
    assert log.log_end_offset == 2


# --- both ways ----------------------------------------------------------------------------------


def draw(rng: random.Random) -> dict[str, Any]:
    """Arguments of `append_batch`, of which most are usual."""
    n = rng.choice([0, 1, 1, 2, 10, 10, 60, 700])
    size = rng.choice([0, 3, 100, 100, 2000])
    near = START_MS + rng.randrange(-50, 50)
    given: dict[str, Any] = {
        "values": [rng.choice([None, b"", rng.randbytes(rng.randrange(size + 1))]) for _ in range(n)],
        "keys": rng.choice([None, None, [rng.choice([None, b"k", b"key" * 20]) for _ in range(n)]]),
        "timestamps": rng.choice([None, None, near, [near + rng.randrange(30) for _ in range(n)]]),
        "headers": rng.choice(
            [None, None, [rng.choice([(), None, [("h", b"v"), ("é" * 9, None)]]) for _ in range(n)]]
        ),
        "batch_bytes": rng.choice([1, 300, 5000, 65536, 65536]),
    }
    wrong: dict[str, list[Any]] = {
        "values": ["text", 5, None, [b"v"] * (n + 1), ["text"] * n, [bytearray(b"v")] * n],
        "keys": ["text", [b"k"] * (n + 1), [5] * n, [memoryview(b"k")] * n],
        "timestamps": [-1, -2, 1 << 63, True, [near] * (n + 1), [-1] * n, [-2] * n, [5] * n],
        "headers": ["text", 5, [()] * (n + 1), [5] * n, [[("h",)]] * n, [[(b"h", b"v")]] * n],
        "batch_bytes": [0, -1, True, 1.5, 1 << 70],
    }  # fmt: skip
    if rng.random() < 0.3:
        name = rng.choice(sorted(wrong))
        given[name] = rng.choice(wrong[name])
    return given


@pytest.mark.parametrize("seed", range(12))
def test_both_ways_say_and_write_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    config = {
        "index.interval.bytes": rng.choice([100, 4096]),
        "segment.bytes": rng.choice([20_000, 1 << 30]),
        "max.message.bytes": rng.choice([1500, 1_048_588]),
        "message.timestamp.type": rng.choice(["CreateTime", "CreateTime", "LogAppendTime"]),
        "message.timestamp.before.max.ms": rng.choice([20, 1 << 62]),
    }
    logs = [opened(tmp_path / way, config) for way in ("short", "long")]
    count = 0
    for _ in range(40):
        given, offset = draw(rng), rng.choice([None, None, 0, 1])
        answers = []
        for log in logs:
            let_tails_open(monkeypatch, log is logs[0])
            if log is logs[1]:
                with log.partition_for_write().token:
                    """The tail is taken back."""
            expected = None if offset is None else log.end_offset + offset
            before = by_c(log)
            answers.append(answer(log, given, expected))
            count += by_c(log) > before
        assert answers[0] == answers[1]
    assert count > 5
    assert files_of(logs[0]) == files_of(logs[1])


def answer(log: segstore.PartitionLog, given: dict[str, Any], expected: int | None) -> Any:
    try:
        return log.append_batch(**given, expected_offset=expected)
    except segstore.SegstoreError as error:
        return type(error).__name__, str(error)


# --- the interpreter's lock, and failures ----------------------------------------------------------


def test_so_many_lists_let_go_behind_a_slow_append(log: segstore.PartitionLog) -> None:
    tail = tail_of(log)
    tail.c.release_gil_for = 3
    for left in (2, 1, 0, 0):
        log.append_batch(FEW)
        assert tail.c.release_gil_for == left
    tail.c.release_gil_for = 3
    log.append_batch([bytes(1000)] * 100)  # which lets go by itself, and is not counted
    assert (tail.c.release_gil_for, tail.c.appends) == (3, 5)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_leaves_nothing(store_dir: Path, number: int) -> None:
    files = FailingFiles({"pwrite"}, OSError(number, os.strerror(number)), nth=0)
    log = opened(store_dir, files=files)
    size = (path := next(store_dir.glob("t-0/*.log"))).stat().st_size
    files.arm()
    with pytest.raises(StorageError) as raised:
        log.append_batch(FEW)
    assert (raised.value.errno, raised.value.filename) == (number, str(path))
    assert path.stat().st_size == size
    assert log.append_batch(FEW) == range(2, 12)
    assert log.read(2).values.tolist() == FEW
    log.store.close()


FLUSHED: dict[str, dict[str, Any]] = {
    "flush.messages": {"flush.messages": 5},
    "flush.ms": {"flush.ms": 3_600_000, "flush.messages": 10},
}


@pytest.mark.parametrize("case", FLUSHED)
def test_a_flush_that_is_due_is_made(tmp_path: Path, case: str) -> None:
    log = opened(tmp_path / "s", FLUSHED[case])
    log.append_batch(FEW)
    log.append_batch(FEW)
    assert log.partition_for_write().recovery_point == 22
    log.store.close()
