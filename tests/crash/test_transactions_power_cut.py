"""A power cut takes the end of `__transaction_state`, or of a partition: each log survives up to another
moment.

A transaction ends in all its partitions alike: one that was decided is completed if any record of that is
left, one that was not is aborted, and none is confused with the one before it.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from faulty import FaultyFiles
from stores import all_committed

import segstore
from segstore import OffsetAndMetadata, Producer, TopicPartition
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.errors import InvalidProducerEpochError
from segstore.records import TRANSACTIONAL_FLAG, Template
from segstore.storage.log.append import append_record

pytestmark = pytest.mark.kind("faults")

CONFIG = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
STATE, OFFSETS = "__transaction_state", "__consumer_offsets"
PLACE = TopicPartition("t", 0)


class Cut(NamedTuple):
    """How the two transactions end ("" : it stays open), and up to which moment each log survives: "open1",
    "decided1", "ended1" and so on; "" for nothing of it. `of_t`, `of_u`: what is committed there.
    """

    ends: tuple[str, str]
    state: str
    t: str
    u: str
    of_t: list[bytes]
    of_u: list[bytes]


CUTS = {
    "the begin of the next": Cut(("commit", ""), "decided1", "open2", "open2", [b"1"], [b"1"]),
    "the begin of the next, and a marker": Cut(("commit", ""), "decided1", "open2", "open1", [b"1"], [b"1"]),
    "the begin of the next, that of an abort": Cut(("abort", ""), "decided1", "open2", "open2", [], []),
    "what is open": Cut(("commit", ""), "ended1", "open2", "open2", [b"1"], [b"1"]),
    "the decision, and a marker": Cut(("commit", ""), "open1", "ended1", "open1", [b"1"], [b"1"]),
    "the decision, and all markers": Cut(("commit", ""), "open1", "open1", "open1", [], []),
    "all but one marker": Cut(("commit", ""), "", "ended1", "open1", [b"1"], [b"1"]),
    "all of the next but a marker": Cut(
        ("commit", "commit"), "ended1", "ended2", "open2", [b"1", b"2"], [b"1", b"2"]
    ),
    "a marker, and not the next's begin": Cut(("commit", ""), "open2", "ended1", "open1", [b"1"], [b"1"]),
    "all markers, and not the next's begin": Cut(("commit", ""), "open2", "open1", "open1", [b"1"], [b"1"]),
    "the marker of an abort, and a commit followed": Cut(
        ("abort", "commit"), "decided2", "ended2", "open1", [b"2"], []
    ),
    "the marker of a commit, and an abort followed": Cut(
        ("commit", "abort"), "decided2", "open1", "ended2", [b"1"], [b"1"]
    ),
}


@contextlib.contextmanager
def cut_store(
    tmp_path: Path, rng: random.Random, cut: Cut, send: Callable[[Producer, bytes], None]
) -> Iterator[segstore.Store]:
    """A store after two transactions of a producer and the cut."""
    files = FaultyFiles(tmp_path)
    store = segstore.open(tmp_path / "s", files=files, config=CONFIG)
    for topic in "tu":
        store.create_topic(topic)
    producer = Producer(store, transactional_id="x")
    producer.init_transactions()
    ending = shared(store, TransactionCoordinator)._transitions._ending
    mark, moments = ending.write_markers, iter(("decided1", "decided2"))

    def moment(name: str) -> None:
        for topic, upto in ((STATE, cut.state), ("t", cut.t), ("u", cut.u), (OFFSETS, cut.u)):
            if upto == name and topic in store.topics():
                flush = threading.Thread(
                    target=store.partition(topic).flush
                )  # a commit may be under way here
                flush.start()
                flush.join()

    def decided(*args: object) -> None:
        moment(next(moments))
        mark(*args)  # type: ignore[arg-type]

    ending.write_markers = decided  # type: ignore[method-assign]
    for number, end in enumerate(cut.ends, 1):
        producer.begin_transaction()
        send(producer, b"%d" % number)
        producer.flush()
        moment(f"open{number}")
        if end:
            getattr(producer, f"{end}_transaction")()
            moment(f"ended{number}")
    files.power_cut("none", rng)
    with contextlib.suppress(segstore.SegstoreError):
        producer.close(0)
    store.engine.abandon()
    with segstore.open(tmp_path / "s", config=CONFIG) as store:
        yield store
    assert list(segstore.check(tmp_path / "s")) == []


def to_both(producer: Producer, value: bytes) -> None:
    for topic in "tu":
        producer.send(topic, value)


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_a_transaction_ends_alike_everywhere(tmp_path: Path, rng: random.Random, cut: Cut) -> None:
    with cut_store(tmp_path, rng, cut, to_both) as store:
        assert (all_committed(store, "t"), all_committed(store, "u")) == (cut.of_t, cut.of_u)
    for value in (b"3", b"4"):  # the epochs that partitions know are not forgotten with a clean close
        with segstore.open(tmp_path / "s", config=CONFIG) as store:
            with Producer(store, transactional_id="x") as producer:
                producer.init_transactions()
                producer.begin_transaction()
                to_both(producer, value)
                producer.commit_transaction()
            assert all_committed(store, "t")[len(cut.of_t) :] == [b"3", b"4"][: int(value) - 2]
            assert all_committed(store, "u")[len(cut.of_u) :] == [b"3", b"4"][: int(value) - 2]


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_its_offsets_end_as_it_does(tmp_path: Path, rng: random.Random, cut: Cut) -> None:
    """The records are in "t", the group's offsets survive up to the moment of "u"."""

    def send(producer: Producer, value: bytes) -> None:
        producer.send("t", value)
        producer.send_offsets_to_transaction({PLACE: OffsetAndMetadata(int(value))}, "g")

    with cut_store(tmp_path, rng, cut, send) as store:
        kept = shared(store, GroupOffsets)
        assert all_committed(store, "t") == cut.of_t
        assert [each.offset for each in kept.fetch("g").values()] == [int(value) for value in cut.of_u[-1:]]
        assert kept.pending("g") == set()


# --- producers that keep their epoch (KIP-98) ------------------------------------------------------


class KeptCut(NamedTuple):
    """As `Cut`, of a producer whose transactions all have one epoch. `fenced`: its next records are refused,
    since it may be within a transaction that was aborted.
    """

    ends: tuple[str, str]
    state: str
    t: str
    u: str
    of_t: list[bytes]
    of_u: list[bytes]
    fenced: bool = False


KEPT_CUTS = {
    "a marker of a commit": KeptCut(("commit", ""), "ended1", "ended1", "open1", [b"1"], [b"1"]),
    "all markers of a commit": KeptCut(("commit", ""), "ended1", "open1", "open1", [b"1"], [b"1"]),
    "a marker of an abort": KeptCut(("abort", ""), "ended1", "ended1", "open1", [], []),
    "a marker, and the next is open": KeptCut(("commit", ""), "open2", "open2", "open1", [b"1"], [b"1"]),
    "a marker of an abort, and the next is open": KeptCut(("abort", ""), "open2", "open2", "open1", [], []),
    "a marker of a commit, and the next was aborted": KeptCut(
        ("commit", "abort"), "ended2", "ended2", "open1", [b"1"], [b"1"]
    ),
    "a marker of an abort, and the next was committed": KeptCut(
        ("abort", "commit"), "ended2", "ended2", "open1", [b"2"], []
    ),
    "the begin of the next": KeptCut(("commit", ""), "ended1", "open2", "open2", [b"1"], [b"1"], True),
    "the begin and the decision of the next": KeptCut(
        ("abort", "commit"), "ended1", "open2", "open2", [], [], True
    ),
    "nothing": KeptCut(("commit", ""), "open2", "open2", "open2", [b"1"], [b"1"]),
}


def write(store: segstore.Store, topic: str, me: tuple[int, int], number: int) -> None:
    template = Template(TRANSACTIONAL_FLAG, *me, number - 1)
    now = store.context.clock()  # an older record would have the background roll, and sync, the log
    append_record(store.partition(topic), b"%d" % number, None, (), now, None, template)


def committed(store: segstore.Store, topic: str) -> list[bytes | None]:
    return list(store.partition(topic).read(0, isolation_level="read_committed").values)


@pytest.mark.parametrize("cut", KEPT_CUTS.values(), ids=KEPT_CUTS)
def test_a_producer_that_keeps_its_epoch(tmp_path: Path, rng: random.Random, cut: KeptCut) -> None:
    files = FaultyFiles(tmp_path)
    store = segstore.open(tmp_path / "s", files=files, config=CONFIG)
    for topic in "tu":
        store.create_topic(topic)
    coordinator = shared(store, TransactionCoordinator)
    me = coordinator.init_producer_id("x", 60_000, remote=True)

    def moment(name: str) -> None:
        for topic, upto in ((STATE, cut.state), ("t", cut.t), ("u", cut.u)):
            if upto == name:
                store.partition(topic).flush()

    for number, end in enumerate(cut.ends, 1):
        coordinator.add_partitions("x", me, [TopicPartition(topic, 0) for topic in "tu"])
        for topic in "tu":
            write(store, topic, me, number)
        moment(f"open{number}")
        if end:
            coordinator.end_in_epoch("x", me, end == "commit")
            moment(f"ended{number}")
    files.power_cut("none", rng)
    store.engine.abandon()
    with segstore.open(tmp_path / "s", config=CONFIG) as store:
        coordinator = shared(store, TransactionCoordinator)
        assert [committed(store, topic) for topic in "tu"] == [cut.of_t, cut.of_u]
        coordinator.add_partitions("x", me, [TopicPartition("u", 0)])
        following = len(store.partition("u").read(0)) + 1
        if cut.fenced:
            with pytest.raises(InvalidProducerEpochError):
                write(store, "u", me, following)
            me = coordinator.init_producer_id("x", 60_000, me, remote=True)
            following = 1
            coordinator.add_partitions("x", me, [TopicPartition("u", 0)])
        write(store, "u", me, following)
        coordinator.end_in_epoch("x", me, True)
        assert committed(store, "u")[-1] == b"%d" % following
    assert list(segstore.check(tmp_path / "s")) == []
