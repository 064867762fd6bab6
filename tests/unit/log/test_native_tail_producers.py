"""Promise: C judges and keeps the sequences of producers as Python does."""

from __future__ import annotations

import errno
import itertools
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from faults import CountingFiles
from native_tails import HalfWritten, appends_of_c, begun, values
from native_tails import log as log
from producers import assert_live, state_of, told

import segstore
from segstore import DuplicateSequenceError, OutOfOrderSequenceError, StorageError
from segstore.records import Columns, Template
from segstore.records.header import TRANSACTIONAL_FLAG
from segstore.storage.log.append import append_batches, append_record
from segstore.storage.log.transaction_markers import active_producers, end_transaction, open_transactions

LAST = (1 << 31) - 1


def produce(log: segstore.PartitionLog, sequence: int, producer_id: int = 7, n: int = 1) -> int:
    """Append n records of a producer; returns the first offset."""
    template = Template(0, producer_id, 0, sequence)
    if n > 1:
        columns = Columns([b"%d" % (sequence + i) for i in range(n)], timestamp=now_ms())
        return append_batches(log, columns, range(1, n), template=template).first
    return append_record(log, b"%d" % sequence, None, (), now_ms(), template=template).first


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.mark.parametrize(
    ("n", "called"), [(1, ["seg_tail_append"]), (3, ["seg_spans", "seg_encode_cut", "seg_tail_write"])]
)
def test_one_call_of_c_writes_what_a_producer_appends(store_dir: Path, n: int, called: list[str]) -> None:
    files, found = CountingFiles(), list[str]()

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__.startswith("seg_"):
            found.append(argument.__name__)

    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = begun(store.partition("t"))
        produce(log, 0)
        files.clear()
        sys.setprofile(profile)
        try:
            produce(log, 1, n=n)
        finally:
            sys.setprofile(None)
        assert found == [*called, "seg_pwrite"]  # which the counting files call, in place of C
        assert [name for name, _ in files.calls] == ["pwrite"]
        assert values(log, 3) == [b"%d" % i for i in range(1, n + 1)]


def test_sequences_go_on_at_0_behind_the_last_one(log: segstore.PartitionLog) -> None:
    produce(log, LAST - 2)
    for sequence in (LAST - 1, LAST, 0, 1):
        produce(log, sequence)
    produce(log, 2, n=3)
    assert appends_of_c(log) == 5
    assert_live(log, Path(log.partition_for_write().directory))


def test_c_judges_all_producers_that_are_known(log: segstore.PartitionLog) -> None:
    for sequence in range(3):
        for producer_id in range(50):
            produce(log, sequence, producer_id)
    assert appends_of_c(log) == 100
    assert_live(log, Path(log.partition_for_write().directory))


def test_c_judges_producers_that_a_snapshot_knows(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        for producer_id in (7, 8):
            produce(store.partition("t"), 0, producer_id)
    with segstore.open(store_dir) as store:
        log = store.partition("t")
        log.append_batch([b"the long way", b"until C appends"], batch_bytes=1)
        log.append(b"that, too")
        assert [produce(log, 1, producer_id) for producer_id in (7, 8)] == [5, 6]
        assert appends_of_c(log) == 2
        assert produce(log, 0, 7) == 0
        assert_live(log, store_dir / "t-0")


def test_what_c_appends_leaves_the_state_that_the_log_says(
    log: segstore.PartitionLog, rng: random.Random
) -> None:
    """Also of what is refused, repeated and in transactions, and as sequences begin anew at 0."""
    partition, short = log.partition_for_write(), 0
    directory, native = Path(partition.directory), partition.tail.native
    next_of = {producer_id: LAST - 5 * producer_id for producer_id in range(12)}
    for _ in range(40):
        for _ in range(30):
            producer_id, n = rng.randrange(12), rng.choice([1, 1, 1, 2, 7])
            attributes = TRANSACTIONAL_FLAG * (producer_id % 3 == 0)
            back = rng.choice([0] * 9 + [n, 5000])
            template = Template(attributes, producer_id, 0, (next_of[producer_id] - back) % (LAST + 1))
            columns = Columns([b"v"] * n, timestamp=now_ms())
            was_open, before = native.is_open, native.c.appends
            try:
                done = append_batches(log, columns, range(1, n), template=template)
            except (OutOfOrderSequenceError, DuplicateSequenceError):
                continue
            if not done.duplicate:
                next_of[producer_id] = (template.base_sequence + n) % (LAST + 1)
            short += was_open and native.c.appends > before
        assert_live(log, directory)
        if rng.random() < 0.3:
            end_transaction([log], rng.randrange(12), 0, 0, commit=rng.random() < 0.5)
    assert short > 600


def test_producers_append_while_others_come_and_go(log: segstore.PartitionLog) -> None:
    """The table grows and shrinks with the tail taken back only: C's appends never meet one that moves."""
    failures: list[BaseException] = []
    done, partition = threading.Event(), log.partition_for_write()

    def append(producer_id: int) -> None:
        try:
            for sequence in itertools.count():  # in a transaction, so it does not expire
                template = Template(TRANSACTIONAL_FLAG, producer_id, 0, sequence)
                append_record(log, b"v", None, (), now_ms(), template=template)
                if done.is_set():
                    break
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=append, args=[producer_id]) for producer_id in range(2)]
    for thread in threads:
        thread.start()
    gone = 0
    try:
        for number in range(40):
            produce(log, 0, 1000 + number)
            if len(active_producers(log)) > 10:
                gone += partition.expire_producers(0)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert gone > 10
    expected, known = told(Path(partition.directory)).state, state_of(log)
    assert [known.producers[n] for n in range(2)] == [expected.producers[n] for n in range(2)]
    assert known.ongoing == expected.ongoing


def test_records_of_an_open_transaction(log: segstore.PartitionLog) -> None:
    """C appends these, too: neither the first offset of the transaction nor the stable offset moves."""

    def send(sequence: int) -> int:
        template = Template(TRANSACTIONAL_FLAG, 7, 0, sequence)
        return append_record(log, b"v", None, (), now_ms(), template=template).first

    assert [send(sequence) for sequence in range(4)] == [2, 3, 4, 5]
    assert (appends_of_c(log), log.last_stable_offset, log.end_offset) == (3, 2, 6)
    with pytest.raises(segstore.errors.InvalidTxnStateError):
        produce(log, 4)
    assert open_transactions(log)[0].first_offset == 2
    end_transaction([log], 7, 0, 0, commit=True)
    assert log.last_stable_offset == 7


@pytest.mark.parametrize("n", [1, 3])
def test_a_failed_write_leaves_a_producer_as_it_was(store_dir: Path, n: int) -> None:
    files = HalfWritten({"pwrite"}, OSError(errno.EIO, "Input/output error"), nth=0)
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = begun(store.partition("t"))
        produce(log, 0)
        assert produce(log, 1) == 3
        files.arm()
        with pytest.raises(StorageError):
            produce(log, 2, n=n)
        assert produce(log, 2, n=n) == 4  # it is the next, and not taken for a repeated one
        assert_live(log, store_dir / "t-0")


def test_a_duplicate_of_what_c_appended(log: segstore.PartitionLog) -> None:
    produce(log, 0)
    offsets = [produce(log, sequence) for sequence in range(1, 8)]
    assert [produce(log, sequence) for sequence in range(3, 8)] == offsets[2:]
    with pytest.raises(segstore.errors.DuplicateSequenceError):
        produce(log, 2)
    assert log.end_offset == 10
