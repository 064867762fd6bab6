"""GroupOffsets: what is committed, read again, expires, survives kills and full disks; Kafka's bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faults import MUTATING, CountingFiles
from group_records import at, end, member, offsets_of, opened, record, tp
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import Clock

import segstore
from segstore.coordinator.offsets.group_offsets import TOPIC, GroupOffsets
from segstore.coordinator.offsets.topic import ReadOffsets
from segstore.errors import (
    InvalidArgumentError,
    InvalidGroupIdError,
    InvalidTypeError,
    OffsetMetadataTooLargeError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)

E = {tp(0): at(5, "note é", 3), tp(3): at(7)}


# --- commit and fetch -----------------------------------------------------------------------------


def test_what_was_committed_is_there_at_once_and_after_reopening(store_dir: Path) -> None:
    with opened(store_dir) as store:
        offsets = offsets_of(store)
        assert offsets.fetch("g") == {}
        assert TOPIC not in store.topics()  # looking makes nothing
        offsets.commit("g", E)
        offsets.commit("h", {tp(1, "u"): at(1)})
        assert offsets.fetch("g") == E
        assert offsets.fetch("g", [tp(3), tp(2)]) == {tp(3): at(7)}
        offsets.commit("g", {tp(3): at(8)})
    with opened(store_dir) as store:
        offsets = offsets_of(store)
        assert offsets.fetch("g") == {**E, tp(3): at(8)}
        assert offsets.groups() == {"g", "h"}
        assert store.topics()[TOPIC].config == {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": 104857600,
        }


@pytest.mark.parametrize(("setting", "partitions"), [({}, 1), ({"offsets.topic.num.partitions": 50}, 50)])
def test_the_number_of_partitions_is_that_of_the_first_commit(
    store_dir: Path, setting: dict[str, int], partitions: int
) -> None:
    """A store that was made with another number, as 50 by earlier versions, keeps it."""
    with segstore.open(store_dir, config=setting) as store:
        store.create_topic("t")
        offsets_of(store).commit("g", {tp(): at(1)})
    for other in ({}, {"offsets.topic.num.partitions": 7}):
        with segstore.open(store_dir, config=other) as store:
            assert store.topics()[TOPIC].partitions == partitions
            assert offsets_of(store).partition_for("g") == ord("g") % partitions
            assert offsets_of(store).fetch("g") == {tp(): at(1)}


@pytest.mark.parametrize(("codec", "name"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)])
def test_a_commit_is_one_batch_of_one_append(store_dir: Path, codec: int, name: int) -> None:
    files = CountingFiles()
    with opened(store_dir, files=files, offsets_topic_compression_codec=codec) as store:
        offsets_of(store).commit("g", {tp(): at(0)})
        log = store.partition(TOPIC, offsets_of(store).partition_for("g"))
        files.clear()
        before = store.publications
        offsets_of(store).commit("g", {tp(p, t): at(p + 1) for p in range(4) for t in "tu"})
        assert files.count(*MUTATING) == 1
        assert store.publications == before + 1
        (batch,) = log.read(1).batches
        assert (batch["count"], batch["attributes"] & 7) == (8, name)


@pytest.mark.parametrize("group", ["", None, 3, b"g", "\ud800", "x" * 32_768])
def test_a_group_needs_a_name(store_dir: Path, group: Any) -> None:
    with opened(store_dir) as store:
        for call in (lambda o: o.commit(group, E), lambda o: o.fetch(group), lambda o: o.delete(group)):
            with pytest.raises(InvalidGroupIdError):
                call(offsets_of(store))


BAD = {
    "no mapping": ([tp()], InvalidTypeError),
    "a key that is no partition": ({"t": at(1)}, InvalidTypeError),
    "a negative partition": ({tp(-1): at(1)}, InvalidArgumentError),
    "a bare offset": ({tp(): 5}, InvalidTypeError),
    "an offset over 63 bits": ({tp(): at(1 << 63)}, InvalidArgumentError),
    "an offset below 64 bits": ({tp(): at(-(1 << 63) - 1)}, InvalidArgumentError),
    "an epoch that is none": ({tp(): at(1, "", -2)}, InvalidArgumentError),
    "metadata that is bytes": ({tp(): at(1, b"x")}, InvalidTypeError),  # type: ignore[arg-type]
    "metadata that is no text": ({tp(): at(1, "\ud800")}, InvalidArgumentError),
    "metadata over the limit": ({tp(): at(1, "é" * 2049)}, OffsetMetadataTooLargeError),
    "no such topic": ({tp(0, "x"): at(1)}, UnknownTopicOrPartitionError),
    "no such partition": ({tp(4): at(1)}, UnknownTopicOrPartitionError),
}


@pytest.mark.parametrize("name", BAD)
def test_what_can_not_be_committed_changes_nothing(store_dir: Path, name: str) -> None:
    bad, error = BAD[name]
    with opened(store_dir) as store:
        offsets = offsets_of(store)
        offsets.commit("g", E)
        mixed = {tp(1): at(9), **bad} if isinstance(bad, dict) else bad
        for commit in (offsets.commit, lambda g, o: offsets.commit_transactional(g, o, 1, 0)):
            with pytest.raises(error):
                commit("g", mixed)
        assert (offsets.fetch("g"), offsets.pending("g")) == (E, set())


def test_what_makes_no_one_batch_is_refused_whole(store_dir: Path) -> None:
    with opened(store_dir) as store:
        offsets_of(store).commit("g", E)
        store.alter_topic(TOPIC, {"max.message.bytes": 500})
        with pytest.raises(RecordTooLargeError, match="together or not at all"):
            offsets_of(store).commit("g", {tp(p, t): at(9, "x" * 60) for p in range(4) for t in "tu"})
        assert offsets_of(store).fetch("g") == E


def test_nothing_to_commit_writes_nothing(store_dir: Path) -> None:
    with opened(store_dir) as store:
        offsets_of(store).commit("g", {})
        assert TOPIC not in store.topics()


# --- transactions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_a_transactions_offsets_count_when_it_is_committed(
    store_dir: Path, commit: bool, again: bool
) -> None:
    clock = Clock()
    store = opened(store_dir, clock)
    offsets_of(store).commit("g", {tp(0): at(1), tp(1): at(1)})
    for offset in (2, 3):  # one producer may commit often
        offsets_of(store).commit_transactional("g", {tp(1): at(offset), tp(2): at(offset)}, 9, 0)
    if again:
        store.close()
        store = opened(store_dir, clock)
    assert offsets_of(store).fetch("g") == {tp(0): at(1), tp(1): at(1)}
    assert offsets_of(store).pending("g") == {tp(1), tp(2)}
    end(store, "g", 9, commit)
    expected = {tp(0): at(1), tp(1): at(3), tp(2): at(3)} if commit else {tp(0): at(1), tp(1): at(1)}
    for _ in range(2):
        assert (offsets_of(store).fetch("g"), offsets_of(store).pending("g")) == (expected, set())
        store.close()
        store = opened(store_dir, clock)
    store.close()


def test_a_partition_that_is_read_after_the_marker_needs_nobody_to_tell(store_dir: Path) -> None:
    with opened(store_dir) as store:
        offsets_of(store).commit_transactional("g", {tp(): at(4)}, 9, 0)
    with opened(store_dir) as store:
        fresh = offsets_of(store)
        end(store, "g", 9, True)
        assert fresh.fetch("g") == {tp(): at(4)}


def test_what_was_committed_or_deleted_since_is_not_overwritten_by_an_older_transaction(
    store_dir: Path,
) -> None:
    """By the place in the log, as compaction has it: in memory and when it is read again."""
    with opened(store_dir) as store:
        offsets = offsets_of(store)
        offsets.commit_transactional("g", {tp(0): at(2), tp(1): at(2), tp(2): at(2)}, 9, 0)
        offsets.commit("g", {tp(0): at(7)})
        assert offsets.delete("g", [tp(1)]) == {tp(1)}
        end(store, "g", 9, True)
        assert offsets.fetch("g") == {tp(0): at(7), tp(2): at(2)}
    with opened(store_dir) as store:
        assert offsets_of(store).fetch("g") == {tp(0): at(7), tp(2): at(2)}


KEYS = st.sampled_from([(g, tp(p)) for g in "ghi" for p in range(3)])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), KEYS, st.integers(0, 99)),
        st.tuples(st.just("transactional"), KEYS, st.integers(0, 99), st.integers(0, 2)),
        st.tuples(st.just("end"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("reopen")),
    ),
    max_size=25,
)


@pytest.mark.kind("costly unit tests")
@settings(max_examples=40)
@given(steps=STEPS)
def test_memory_and_log_say_the_same(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    """The live cache, one that is read anew, and a store opened to read agree after whatever was done."""
    path = tmp_path_factory.mktemp("model")
    store = opened(path)
    for step, *rest in steps:
        _do(store, step, rest)
        if step == "reopen":
            store.close()
            store = opened(path)
    live = _all(offsets_of(store))
    assert _all(GroupOffsets(store)) == live
    with segstore.open(path, mode="r") as reader:
        assert _all(ReadOffsets(reader)) == live
    store.close()
    assert list(segstore.check(path)) == []


def _do(store: segstore.Store, step: str, rest: list[Any]) -> None:
    offsets = offsets_of(store)
    if step == "commit":
        offsets.commit(rest[0][0], {rest[0][1]: at(rest[1])})
    elif step == "transactional":
        offsets.commit_transactional(rest[0][0], {rest[0][1]: at(rest[1])}, rest[2], 0)
    elif step == "end":
        for group in "ghi":
            if TOPIC in store.topics():
                end(store, group, *rest)
    elif step == "delete":
        offsets.delete(rest[0][0], [rest[0][1]])


def _all(offsets: GroupOffsets | ReadOffsets) -> dict[str, Any]:
    return {g: (offsets.fetch(g), offsets.pending(g)) for g in sorted(offsets.groups())}


# --- groups -----------------------------------------------------------------------------------------


def test_a_membership_is_kept(store_dir: Path) -> None:
    kept = record("g", member("a", static=True), member("b"))
    with opened(store_dir) as store:
        assert offsets_of(store).group("g") is None
        offsets_of(store).write_group(kept)
        assert offsets_of(store).group("g") == kept
    with opened(store_dir) as store:
        offsets = offsets_of(store)
        assert (offsets.group("g"), offsets.groups()) == (kept, {"g"})
        offsets.commit("g", E)
        assert offsets.delete("g") == set(E)
        assert (offsets.group("g"), offsets.groups()) == (None, set())
    with opened(store_dir) as store:
        assert offsets_of(store).groups() == set()


def test_a_deleted_topic_takes_its_offsets_along(store_dir: Path) -> None:
    with opened(store_dir) as store:
        offsets = offsets_of(store)
        offsets.commit("g", {tp(0): at(5), tp(0, "u"): at(6)})
        offsets.commit_transactional("g", {tp(1): at(5)}, 9, 0)
        offsets.commit("h", {tp(0): at(5)})
    with opened(store_dir) as store:  # nobody has asked for the offsets here yet
        store.delete_topic("t")
        store.create_topic("t", partitions=4)
        end(store, "g", 9, True)
        assert _all(offsets_of(store)) == {"g": ({tp(0, "u"): at(6)}, set())}
        store._delete_topic(TOPIC)
        assert _all(offsets_of(store)) == {}
        offsets_of(store).commit("g", {tp(2): at(1)})
        assert _all(offsets_of(store)) == {"g": ({tp(2): at(1)}, set())}


def test_a_commit_counts_for_the_topic_of_the_id_that_is_meant(store_dir: Path) -> None:
    """It may have been deleted and made anew while the commit was on its way."""
    with opened(store_dir) as store:
        offsets, before = offsets_of(store), store.topics()["t"].topic_id
        offsets.commit("g", {tp(0): at(5)}, {"t": before})
        assert offsets.fetch("g") == {tp(0): at(5)}
        store.delete_topic("t")
        store.create_topic("t", partitions=4)
        offsets.commit("g", {tp(0): at(6)}, {"t": before})
        offsets.commit_transactional("g", {tp(1): at(6)}, 9, 0, {"t": before})
        end(store, "g", 9, True)
        assert offsets.fetch("g") == {}
        offsets.commit("g", {tp(0): at(7)}, {"t": store.topics()["t"].topic_id})
        assert offsets.fetch("g") == {tp(0): at(7)}
