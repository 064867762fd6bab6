"""Idempotence: a batch that is sent again is never written again, whatever became of the first try."""

from __future__ import annotations

import errno
import random
import shutil
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from faults import FailingFiles
from stores import values
from turned import turned
from waiting import PATIENCE

import segstore
from segstore import Producer, errors
from segstore.client.producer import delivery
from segstore.coordinator.shared import shared
from segstore.coordinator.transaction.producer_ids import BLOCK, ProducerIds
from segstore.files import Files
from segstore.records import HEADER_SIZE
from segstore.storage.meta.sealed_file import PRODUCER_ID

LAST_SEQUENCE = (1 << 31) - 1


def full() -> errors.StorageError:
    return errors.StorageError(errno.ENOSPC, "No space left on device")


class Acknowledgements:
    """Appends that fail, before (`lose` False) or after (True) they are written, where `when` says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.when: Callable[[], bool | None] = lambda: None
        self.lost = self.refused = 0
        self.error: Callable[[], Exception] = full
        for name in ("append_record", "append_batches"):
            monkeypatch.setattr(delivery, name, self._hooked(getattr(delivery, name)))

    def _hooked(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            lose = self.when()
            if lose is False:
                self.refused += 1
                raise self.error()
            appended = original(*args, **kwargs)
            if lose:
                self.lost += 1
                raise self.error()
            return appended

        return call

    def next(self, *fates: bool | None) -> None:
        """What becomes of the next appends, in order; all others go well."""
        left = list(fates)
        self.when = lambda: left.pop(0) if left else None


@pytest.fixture
def acks(monkeypatch: pytest.MonkeyPatch) -> Acknowledgements:
    return Acknowledgements(monkeypatch)


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir) as store:
        store.create_topic("a")
        store.create_topic("b")
        yield store


def stamps(log: segstore.PartitionLog) -> list[tuple[int, int, int, int]]:
    """(producer id, epoch, base sequence, records) of each batch."""
    batches = log.read(log.start_offset, 1 << 30).batches
    names = ("producer_id", "producer_epoch", "base_sequence", "count")
    return list(zip(*(batches[name].tolist() for name in names), strict=True))


def assert_no_gaps(log: segstore.PartitionLog) -> None:
    """Each epoch begins with 0, and each batch follows the one before."""
    follows: dict[tuple[int, int], int] = {}
    for producer_id, epoch, sequence, count in stamps(log):
        assert sequence == follows.get((producer_id, epoch), 0)
        follows[producer_id, epoch] = (sequence + count) & LAST_SEQUENCE


def test_batches_carry_id_epoch_and_sequence(store: segstore.Store) -> None:
    with Producer(store, batch_size=HEADER_SIZE + 200) as producer, Producer(store) as other:
        for i in range(100):
            producer.send("a", b"%d" % i)
        producer.flush()
        other.send("a", b"x").get(PATIENCE)
        producer.send("b", b"y").get(PATIENCE)
    found = stamps(store.partition("a"))
    assert [stamp[:2] for stamp in found] == [(0, 0)] * (len(found) - 1) + [(1, 0)]
    assert len(found) > 5
    assert_no_gaps(store.partition("a"))
    assert stamps(store.partition("b")) == [(0, 0, 0, 1)]


@pytest.mark.parametrize("settings", [{"enable_idempotence": False}, {"acks": 1}, {"acks": 0}])
def test_without_idempotence_there_is_no_id(store: segstore.Store, settings: dict) -> None:
    with Producer(store, **settings) as producer:
        producer.send("a", b"x")
    assert stamps(store.partition("a")) == [(-1, -1, -1, 1)]
    assert not Path(store.path, ".segstore", "producer-ids").exists()


@pytest.mark.parametrize("count", [1, 3, 400], ids=["a record", "a batch", "many batches"])
@pytest.mark.parametrize("fates", [(True,), (True, True), (False, True), (True, False)])
def test_a_lost_acknowledgement_doubles_nothing(
    store: segstore.Store, acks: Acknowledgements, count: int, fates: tuple[bool, ...]
) -> None:
    with Producer(store, retry_backoff_ms=1, linger_ms=50, batch_size=HEADER_SIZE + 500) as producer:
        producer.send("a", b"first").get(PATIENCE)
        acks.next(*fates)
        futures = [producer.send("a", b"%d" % i) for i in range(count)]
        producer.flush()
        assert acks.lost >= 1
        assert producer.send("a", b"last").get(PATIENCE).offset == count + 1
    assert values(store.partition("a")) == [b"first", *(b"%d" % i for i in range(count)), b"last"]
    # Of what was written before the last five batches it is known only that it is there.
    told = [future.get(0).offset for future in futures]
    assert all(offset in (-1, i + 1) for i, offset in enumerate(told))
    assert count == 400 or told == [i + 1 for i in range(count)]
    assert_no_gaps(store.partition("a"))


def test_order_and_number_hold_whatever_fails(
    store: segstore.Store, acks: Acknowledgements, rng: random.Random
) -> None:
    with Producer(store, retry_backoff_ms=0.1, batch_size=300, linger_ms=0.2) as producer:
        first = [False, True]
        acks.when = lambda: first.pop() if first else rng.choice([True, False, None, None])
        futures = [producer.send("ab"[i % 2], b"%d" % i) for i in range(2_000)]
        producer.flush(PATIENCE)
        acks.when = lambda: None
        assert acks.lost > 0 < acks.refused
    for i, topic in enumerate("ab"):
        assert values(store.partition(topic)) == [b"%d" % n for n in range(i, 2_000, 2)]
        assert_no_gaps(store.partition(topic))
    assert all(future.get(0).offset in (-1, i // 2) for i, future in enumerate(futures))


@pytest.mark.parametrize("lose", [True, False], ids=["it was written", "it was not"])
@pytest.mark.parametrize("group", [1, 3], ids=["alone", "with others"])
def test_what_is_given_up_leaves_no_gap(
    store: segstore.Store, acks: Acknowledgements, lose: bool, group: int
) -> None:
    with Producer(
        store, retry_backoff_ms=1, retries=2, linger_ms=20, batch_size=HEADER_SIZE + 100
    ) as producer:
        producer.send("a", b"first").get(PATIENCE)
        acks.next(lose, *[False] * 1_000)
        futures = [producer.send("a", b"%d" % i * 50) for i in range(group)]
        with pytest.raises(errors.StorageError):
            futures[0].get(PATIENCE)
        acks.next()
        later = [producer.send("a", b"later %d" % i) for i in range(20)]
        producer.flush()
    found = values(store.partition("a"))
    assert found[-20:] == [b"later %d" % i for i in range(20)]
    assert all(future.succeeded() for future in later)
    assert len(set(found)) == len(found)
    for i, future in enumerate(futures):
        assert not future.succeeded() or b"%d" % i * 50 in found
    assert lose == (b"0" * 50 in found)
    assert_no_gaps(store.partition("a"))


def test_a_batch_whose_time_is_over_leaves_no_gap(
    store: segstore.Store, acks: Acknowledgements, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = turned(monkeypatch)

    def lost() -> bool:
        clock.ahead += 25
        return True

    with Producer(store, retry_backoff_ms=1, delivery_timeout_ms=60_000) as producer:
        producer.send("a", b"first").get(PATIENCE)
        acks.when = lost
        with pytest.raises(errors.KafkaTimeoutError):
            producer.send("a", b"late").get(PATIENCE)
        acks.when = lambda: None
        assert acks.lost == 3
        assert producer.send("a", b"last").get(PATIENCE).offset == 2
    assert values(store.partition("a")) == [b"first", b"late", b"last"]
    assert [stamp[1:3] for stamp in stamps(store.partition("a"))] == [(0, 0), (0, 1), (1, 0)]


SPLIT = {"at first": 0, "in between": 4, "at last": 9}


@pytest.mark.parametrize("at", SPLIT.values(), ids=SPLIT)
@pytest.mark.parametrize("fates", [(), (None, True), (None, False, True), (None, None, None, True, True)])
def test_a_record_that_is_refused_leaves_no_gap(
    store: segstore.Store, acks: Acknowledgements, at: int, fates: tuple
) -> None:
    store.alter_topic("a", {"max.message.bytes": 400})
    acks.next(*fates)
    with Producer(store, linger_ms=60_000, retry_backoff_ms=1) as producer:
        futures = [producer.send("a", b"x" * 500 if i == at else b"%d" % i) for i in range(10)]
        producer.flush(PATIENCE)
        assert isinstance(futures[at].exception, errors.RecordTooLargeError)
        assert acks.lost or not fates or not at  # the first may fail before it can be lost
        later = producer.send("a", b"later")
        producer.flush()
        assert later.get(0).offset == 9
    del futures[at]
    assert [future.get(0).offset for future in futures] == list(range(9))
    assert values(store.partition("a")) == [*(b"%d" % i for i in range(10) if i != at), b"later"]
    assert_no_gaps(store.partition("a"))


def test_one_after_the_other_is_tried_again_in_order(store: segstore.Store, acks: Acknowledgements) -> None:
    """A group fails for one record, then its first batch for a full disk: all of it once, in order."""
    store.alter_topic("a", {"max.message.bytes": 400})
    for idempotent in (True, False):
        acks.next(None, False)
        settings = {"retry_backoff_ms": 1, "linger_ms": 50, "batch_size": HEADER_SIZE + 100}
        with Producer(store, enable_idempotence=idempotent, **settings) as producer:
            sent = [b"%d" % i * 60 for i in range(3)]
            futures = [producer.send("a", value) for value in [*sent, b"x" * 500]]
            producer.flush(PATIENCE)
            assert [future.succeeded() for future in futures] == [True] * 3 + [False]
        log = store.partition("a")
        assert values(log)[-3:] == sent
        assert log.end_offset == (3 if idempotent else 6)


def sequences(producer: Producer, topic: str) -> Any:
    """What the producer knows of the topic's first partition."""
    return producer._sender._delivery._stamps._sequences._partition(segstore.TopicPartition(topic, 0))


def test_sequences_begin_again_after_the_last(store: segstore.Store, acks: Acknowledgements) -> None:
    with Producer(store, linger_ms=60_000, retry_backoff_ms=1) as producer:
        producer.send("a", b"x")
        producer.flush(PATIENCE)
        sequences(producer, "b").next = LAST_SEQUENCE - 3
        for i in range(3):
            acks.next(True)
            futures = [producer.send("b", b"%d %d" % (i, k)) for k in range(5)]
            producer.flush()
            assert [future.get(0).offset for future in futures] == [i * 5 + k for k in range(5)]
    assert [stamp[2] for stamp in stamps(store.partition("b"))] == [LAST_SEQUENCE - 3, 1, 6]


def test_another_id_follows_the_last_epoch(store: segstore.Store, acks: Acknowledgements) -> None:
    with Producer(store, retry_backoff_ms=1, retries=1) as producer:
        producer.send("a", b"x").get(PATIENCE)
        sequences(producer, "a").epoch = (1 << 15) - 1
        acks.next(False, False)
        with pytest.raises(errors.StorageError):
            producer.send("a", b"lost").get(PATIENCE)
        producer.send("a", b"y").get(PATIENCE)
    assert stamps(store.partition("a")) == [(0, 0, 0, 1), (1, 0, 0, 1)]


def test_batches_of_anothers_id_are_no_duplicates(tmp_path: Path, store_dir: Path) -> None:
    """A partition of another store is put in place of ours, with batches under the ids that we give."""
    with segstore.open(tmp_path / "other") as other:
        other.create_topic("a")
        for _ in range(3):
            with Producer(other, batch_size=HEADER_SIZE + 200) as producer:
                for i in range(100):
                    producer.send("a", b"theirs %d" % i)
    with segstore.open(store_dir) as store:
        store.create_topic("a")
        shared(store, ProducerIds).next()
    for file in (store_dir / "a-0").iterdir():
        if file.name != "partition.metadata":
            file.unlink()
    for file in (tmp_path / "other" / "a-0").iterdir():
        if file.name != "partition.metadata":
            shutil.copy(file, store_dir / "a-0")
    (store_dir / ".kafka_cleanshutdown").unlink()
    with segstore.open(store_dir) as store:
        shared(store, ProducerIds)._next = shared(store, ProducerIds)._end = 0
        Path(store.path, ".segstore", "producer-ids").unlink()
        (Path(store.path) / ".segstore" / "producer-ids").write_bytes(_line(0))
        with Producer(store, batch_size=HEADER_SIZE + 200) as producer:
            futures = [producer.send("a", b"ours %d" % i) for i in range(100)]
            producer.flush()
        assert [future.get(0).offset for future in futures] == list(range(300, 400))
        assert values(store.partition("a"))[300:] == [b"ours %d" % i for i in range(100)]


# --- producer ids ---------------------------------------------------------------------------------


def _line(first: int) -> bytes:
    line = b"1 %d" % first
    return line + b" %08x\n" % zlib.crc32(line)


@contextmanager
def ids(path: Path, **options: Any) -> Iterator[ProducerIds]:
    with segstore.open(path, **options) as store:
        yield shared(store, ProducerIds)


def test_no_id_is_given_twice(store_dir: Path) -> None:
    given: list[int] = []
    for _ in range(3):
        with ids(store_dir) as made:
            threads = [
                threading.Thread(target=lambda: given.extend(made.next() for _ in range(400)))
                for _ in range(4)
            ]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
    assert len(given) == len(set(given)) == 4_800
    assert max(given) < 6 * BLOCK


def test_a_block_is_durable_before_its_first_id(store_dir: Path) -> None:
    files = FailingFiles({"sync"}, OSError(errno.ENOSPC, "No space left on device"), 0)
    with ids(store_dir, files=files) as made:
        for _ in range(2):
            files.arm()
            with pytest.raises(errors.StorageError):
                made.next()
        assert made.next() == 0
        assert PRODUCER_ID.hint(Files(), str(store_dir)) == BLOCK


def test_a_full_disk_at_the_first_id_is_waited_for(store_dir: Path) -> None:
    files = FailingFiles({"rename"}, OSError(errno.ENOSPC, "No space left on device"), 0)
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("a")
        with Producer(store, retry_backoff_ms=1) as producer:
            files.arm(1, 3)
            assert producer.send("a", b"x").get(PATIENCE).offset == 0
            assert files.hits == 3
        assert stamps(store.partition("a")) == [(0, 0, 0, 1)]


DAMAGED: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "zeroed": lambda path: path.write_bytes(b"\0" * 20),
    "another number": lambda path: path.write_bytes(path.read_bytes().replace(b"1 5", b"1 0")),
    "another version": lambda path: path.write_bytes(b"2" + path.read_bytes()[1:]),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-2]),
    "too long": lambda path: path.write_bytes(path.read_bytes() + b" " * 200),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_ids_go_on_above_all_that_are_known(store_dir: Path, damage: Callable[[Path], object]) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("a")
        path = store_dir / ".segstore" / "producer-ids"
        path.write_bytes(_line(5_000))
        with Producer(store) as producer:
            producer.send("a", b"x").get(PATIENCE)
    damage(path)
    with ids(store_dir) as made:
        assert made.next() == 6 * BLOCK
    assert PRODUCER_ID.parse(path.read_bytes(), str(path)) == (7 * BLOCK, True)


def test_a_brokers_ids_are_not_given_again(tmp_path: Path, golden: Path) -> None:
    shutil.copytree(golden / "clean", tmp_path / "broker")
    with segstore.open(tmp_path / "broker") as store:
        logs = [store.partition(t, p) for t, info in store.topics().items() for p in info.partition_ids]
        known = {stamp[0] for log in logs for stamp in stamps(log)}
        made = shared(store, ProducerIds).next()
        assert made > max(known) >= 0
        assert made % BLOCK == 0


def test_ids_that_no_log_has_are_not_given_again_where_the_file_is_damaged_meanwhile(store_dir: Path) -> None:
    """The next block began at what the logs knew, which was nothing: 0 was handed out twice."""
    with ids(store_dir) as made:
        given = [made.next() for _ in range(BLOCK)]
        (store_dir / ".segstore" / "producer-ids").write_bytes(b"garbage")
        given += [made.next() for _ in range(3)]
    assert len(set(given)) == BLOCK + 3
    assert given[-3:] == [BLOCK, BLOCK + 1, BLOCK + 2]


def test_a_directory_in_the_file_s_place_goes_to_the_quarantine(store_dir: Path) -> None:
    """No id was given any more: idempotent producers and transactions were refused."""
    path = store_dir / ".segstore" / "producer-ids"
    with ids(store_dir) as made:
        assert made.next() == 0
        path.unlink()
        path.mkdir()
        assert [made.next() for _ in range(BLOCK)][-1] == BLOCK
    path.unlink()
    path.mkdir()
    with segstore.open(store_dir) as store:
        assert [one.path for one in store.mended] == [str(path)]
        assert not path.exists()
        assert shared(store, ProducerIds).next() % BLOCK == 0
    assert len(list((store_dir / ".segstore" / "quarantine").iterdir())) == 2
