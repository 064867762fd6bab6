"""The durable states of share partitions, in the log and in memory (rules Q46, Q49 to Q58)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from share_states import folded, held, key_of, kinds, opened, states_of, written
from stores import Clock

import segstore
from segstore import errors
from segstore.coordinator.java_hash import partition_of
from segstore.coordinator.share.core.durable import StateDelta
from segstore.coordinator.share.core.values import Durable, StateBatch
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.state_log import TOPIC, Update
from segstore.errors import SegstoreError

B = StateBatch


def test_a_state_is_begun_changed_and_found_again(store_dir: Path) -> None:
    clock = Clock()
    with opened(store_dir, clock) as store:
        states, key, other = states_of(store), key_of(store), key_of(store, "g:x", "u", 3)
        assert states.read(key) is None
        states.initialise({key: (2, -1), other: (1, 7)})
        now = clock.now
        assert states.read(key) == Durable(0, 2, 0, -1, -1, (), now, now)
        assert states.read(other) == Durable(0, 1, 0, 7, 0, (), now, now)
        clock.now += 5
        writes = {key: Update(2, 3, 0, 5, (B(0, 2, 2, 1), B(3, 5, 0, 1)))}
        assert states.write(writes) == {key: None}
        expected = Durable(0, 2, 0, 0, 5, (B(0, 2, 2, 1), B(3, 5, 0, 1)), now, now)
        assert states.read(key) == expected
        assert states.keys_of("g:x") == [other]
        assert states.keys_of("x") == []
    with opened(store_dir, clock) as store:
        states = states_of(store)
        assert states.read(key) == expected
        states.delete([key, key_of(store, "unknown")])
        assert states.read(key) is None
        assert kinds(store) == "ssut"
    with opened(store_dir, clock) as store:
        assert states_of(store).read(key) is None
        assert states_of(store).keys_of("g") == []
        assert states_of(store).keys_of("g:x") == [other]


# --- the topic ------------------------------------------------------------------------------------


def test_q49_the_partition_is_javas_hash_of_the_key(store_dir: Path) -> None:
    with opened(store_dir, state_topic_num_partitions=7) as store:
        states = states_of(store)
        keys = [key_of(store, group, "t", n) for group in ("g", "a:b", "grüppe") for n in range(4)]
        expected = {key: partition_of(f"{key.group}:{key.topic_id}:{key.partition}", 7) for key in keys}
        assert {key: states.partition_for(key) for key in keys} == expected
        states.initialise(dict.fromkeys(keys, (1, 0)))
        assert states.write(dict.fromkeys(keys, Update(1, 0, 0, 1, (B(0, 0, 2, 1),)))) == dict.fromkeys(keys)
        for number in range(7):
            mine = [key for key in keys if expected[key] == number]
            assert sorted(key for key, _ in written(store, number)) == sorted(mine * 2)
    with opened(store_dir, state_topic_num_partitions=3) as store:
        assert states_of(store).keys_of("a:b") == sorted(key for key in keys if key.group == "a:b")


def test_q49_q50_the_topic_is_made_with_the_first_state(store_dir: Path) -> None:
    with segstore.open(store_dir, config={"share.coordinator.state.topic.num.partitions": 3}) as store:
        info = store.create_topic("t")
        states, key = states_of(store), ShareKey("g", info.topic_id, 0)
        assert states.read(key) is None
        assert isinstance(states.write({key: Update(1, 0)})[key], errors.InvalidRequestError)
        states.delete([key])
        assert TOPIC not in store.topics()
        states.initialise({key: (1, 0)})
        made = store.topics()[TOPIC]
        assert (made.partitions, made.internal) == (3, True)
        assert made.config == {
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "min.insync.replicas": 2,
            "retention.ms": -1,
            "segment.bytes": 100 << 20,
        }


def test_q50_settings_of_the_topic(store_dir: Path) -> None:
    config = {"state_topic_segment_bytes": 5000, "state_topic_min_isr": 1, "state_topic_compression_codec": 4}
    with opened(store_dir, **config) as store:
        states, key = states_of(store), key_of(store)
        states.initialise({key: (1, 0)})
        many = tuple(B(2 * n, 2 * n, 2, 1) for n in range(180))
        assert states.write({key: Update(1, 0, 0, 180, many)}) == {key: None}
        made = store.topics()[TOPIC].config
        assert (made["segment.bytes"], made["min.insync.replicas"]) == (5000, 1)
        batches = store.partition(TOPIC).read(0).batches
        assert [attributes & 7 for attributes in batches["attributes"].tolist()] == [4, 4]
        assert folded(store, [key])[key].batches == many


def test_q52_a_record_is_a_batch_without_a_producer_and_with_a_base_sequence(store_dir: Path) -> None:
    clock = Clock()
    with opened(store_dir, clock) as store:
        states, keys = states_of(store), [key_of(store), key_of(store, "h")]
        states.initialise({keys[0]: (1, 0)})
        states.initialise({keys[1]: (1, 0)})
        clock.now += 9
        states.write(dict.fromkeys(keys, Update(1, 0, 0, 1, (B(0, 0, 2, 1),))))  # Q105
        batches = store.partition(TOPIC).read(0).batches
        assert batches["count"].tolist() == [1, 1, 2]
        for name, value in (("producer_id", -1), ("producer_epoch", -1), ("base_sequence", 0)):
            assert batches[name].tolist() == [value] * 3
        assert batches["max_timestamp"].tolist() == [clock.now - 9, clock.now - 9, clock.now]


# --- what is written ------------------------------------------------------------------------------


def test_an_initialised_state_begins_anew(store_dir: Path) -> None:
    """Of the epochs only those of the records before count on (rules 4.2, Q56)."""
    clock = Clock()
    with opened(store_dir, clock) as store:
        states, key = states_of(store), key_of(store)
        states.initialise({key: (2, -1)})
        assert states.write({key: Update(2, 4, -1, -1, (), lead=True)}) == {key: None}
        states.write({key: Update(2, 4, 0, 3, (B(0, 2, 2, 1),))})
        clock.now += 7
        states.initialise({key: (5, 50)})
        assert states.read(key) == Durable(1, 5, 0, 50, 0, (), clock.now, clock.now)
        error = states.write({key: Update(5, 3, 50, 0, ())})[key]
        assert isinstance(error, errors.FencedLeaderEpochError)
        assert states.write({key: Update(5, 4, 50, 1, (B(50, 50, 2, 1),))}) == {key: None}
        assert states.read(key) == Durable(1, 5, 0, 50, 1, (B(50, 50, 2, 1),), clock.now, clock.now)
    with opened(store_dir, clock) as store:
        error = states_of(store).write({key: Update(5, 3, 50, 0, ())})[key]
        assert isinstance(error, errors.FencedLeaderEpochError)


def test_the_epoch_of_a_leader_is_written_once(store_dir: Path) -> None:
    with opened(store_dir) as store:
        states, key = states_of(store), key_of(store)
        states.initialise({key: (2, 4)})
        states.write({key: Update(2, 0, 4, 1, (B(5, 5, 2, 1),))})
        before = states.read(key)
        assert before is not None
        for epoch in (0, 3, 3):
            assert states.write({key: Update(2, epoch, lead=True)}) == {key: None}
        assert states.read(key) == before._replace(leader_epoch=3)
        assert written(store)[2:] == [(key, StateDelta(0, 3, 4, 1))]
        assert states.write({key: Update(2, 5, 4, 1)}) == {
            key: None
        }  # of which the record has the known epoch
        assert written(store)[3:] == [(key, StateDelta(0, 3, 4, 1))]


def test_q39_q54_a_record_has_the_start_and_count_that_the_state_has_after_it(store_dir: Path) -> None:
    with opened(store_dir) as store:
        states, key = states_of(store), key_of(store)
        states.initialise({key: (1, -1)})
        overtaken = [
            Update(1, 0, 10, 3, (B(8, 12, 2, 1),)),
            Update(1, 0, 4, 9, (B(4, 20, 0, 1),)),
            Update(1, 0, 10, 2, ()),
            Update(1, 0, 10, 5, (B(13, 14, 2, 1), B(15, 15, 2, 1))),
        ]
        for update in overtaken:
            assert states.write({key: update}) == {key: None}
        assert [content for _, content in written(store)[1:]] == [
            StateDelta(0, 0, 10, 3, (B(10, 12, 2, 1),)),
            StateDelta(0, 0, 10, 3, (B(10, 20, 0, 1),)),
            StateDelta(0, 0, 10, 3),
            StateDelta(0, 0, 10, 5, (B(13, 15, 2, 1),)),
        ]
        state = states.read(key)
        assert state is not None
        assert (state.start, state.complete) == (10, 5)
        assert state.batches == (B(10, 15, 2, 1), B(16, 20, 0, 1))


Call = Callable[[Any, ShareKey], Any]


REFUSED: dict[str, tuple[type[SegstoreError], Call]] = {
    "a share partition that is not initialised": (
        errors.InvalidRequestError,
        lambda states, key: states.write({key._replace(group="h"): Update(2, 0)}),
    ),
    "a partition that is not initialised": (
        errors.InvalidRequestError,
        lambda states, key: states.write({key._replace(partition=1): Update(2, 0)}),
    ),
    "a lower state epoch": (
        errors.FencedStateEpochError,
        lambda states, key: states.write({key: Update(1, 3)}),
    ),
    "a lower leader epoch": (
        errors.FencedLeaderEpochError,
        lambda states, key: states.write({key: Update(2, 2)}),
    ),
    "the read of a lower leader epoch": (
        errors.FencedLeaderEpochError,
        lambda states, key: states.write({key: Update(2, 2, lead=True)}),
    ),
    "an unknown topic": (
        errors.UnknownTopicOrPartitionError,
        lambda states, key: states.initialise({key._replace(topic_id="A" * 21 + "g"): (3, 0)}),
    ),
    "an unknown partition": (
        errors.UnknownTopicOrPartitionError,
        lambda states, key: states.initialise({key._replace(partition=4): (3, 0)}),
    ),
    "a negative partition": (
        errors.UnknownTopicOrPartitionError,
        lambda states, key: states.initialise({key._replace(partition=-1): (3, 0)}),
    ),
    "no topic": (
        errors.UnknownTopicOrPartitionError,
        lambda states, key: states.initialise({key._replace(topic_id=""): (3, 0)}),
    ),
    "a negative state epoch": (
        errors.InvalidRequestError,
        lambda states, key: states.write({key: Update(-1, 3)}),
    ),
    "a negative leader epoch": (
        errors.InvalidRequestError,
        lambda states, key: states.write({key: Update(2, -1)}),
    ),
    "a negative start": (
        errors.InvalidRequestError,
        lambda states, key: states.write({key: Update(2, 3, -2)}),
    ),
    "a negative count": (
        errors.InvalidRequestError,
        lambda states, key: states.write({key: Update(2, 3, 0, -2)}),
    ),
    **{
        f"the batch {batch}": (
            errors.InvalidRequestError,
            lambda states, key, batch=batch: states.write({key: Update(2, 3, 0, 0, (B(0, 1, 0, 1), batch))}),
        )
        for batch in (B(-1, 1, 0, 1), B(3, 2, 0, 1), B(0, 1, 1, 1), B(0, 1, 5, 1), B(0, 1, 0, -1))
    },
    "a delivery count that no record holds": (
        errors.InvalidArgumentError,
        lambda states, key: states.write({key: Update(2, 3, 0, 0, (B(0, 1, 0, 1 << 15),))}),
    ),
    "more batches than a record batch holds": (
        errors.RecordTooLargeError,
        lambda states, key: states.write(
            {key: Update(2, 3, 0, 0, tuple(B(2 * n, 2 * n, 0, 1) for n in range(53_000)))}
        ),
    ),
    "to begin anew with a lower state epoch": (
        errors.FencedStateEpochError,
        lambda states, key: states.initialise({key: (1, 0)}),
    ),
    "to begin anew with a negative state epoch": (
        errors.InvalidRequestError,
        lambda states, key: states.initialise({key: (-1, 0)}),
    ),
    "to begin anew with a negative start": (
        errors.InvalidRequestError,
        lambda states, key: states.initialise({key: (3, -2)}),
    ),
    "to raise to a lower state epoch": (
        errors.FencedStateEpochError,
        lambda states, key: states.raise_epoch(key, 1, Durable()),
    ),
    "to raise what is not initialised": (
        errors.InvalidRequestError,
        lambda states, key: states.raise_epoch(key._replace(group="h"), 3, Durable()),
    ),
    "to raise to a wrong state": (
        errors.InvalidRequestError,
        lambda states, key: states.raise_epoch(key, 3, Durable(start=-3)),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_q53_refused(name: str, store_dir: Path) -> None:
    """Nothing is written, and another share partition's write of the same call is."""
    expected, call = REFUSED[name]
    with opened(store_dir) as store:
        states, key, other = states_of(store), key_of(store), key_of(store, "other")
        states.initialise({key: (2, 0), other: (2, 0)})
        states.write({key: Update(2, 3, 0, 0, (), lead=True)})
        before, records = states.read(key), written(store)
        try:
            told = call(states, key)
            error = next(iter(told.values()))
        except SegstoreError as raised:
            error = raised
        assert type(error) is expected
        assert error.args != ()
        assert written(store) == records
        assert states.read(key) == before
        both = states.write({key: Update(1, 3), other: Update(2, 0, 0, 1, (B(0, 0, 2, 1),))})
        assert isinstance(both[key], errors.FencedStateEpochError)
        assert both[other] is None
        assert len(written(store)) == len(records) + 1


def test_q48_a_state_is_replaced_by_a_lower_one_of_a_higher_epoch(store_dir: Path) -> None:
    clock = Clock()
    with opened(store_dir, clock) as store:
        states, key = states_of(store), key_of(store)
        states.initialise({key: (2, 0)})
        states.write({key: Update(2, 3, lead=True)})
        states.write({key: Update(2, 3, 9, 2, (B(10, 11, 2, 1), B(12, 20, 0, 1)))})
        clock.now += 3
        cut = states.read(key)
        assert cut is not None
        states.raise_epoch(key, 3, cut._replace(start=6, complete=1, batches=(B(10, 10, 2, 1),)))
        assert states.read(key) == Durable(1, 3, 3, 6, 1, (B(10, 10, 2, 1),), clock.now, clock.now)
        assert isinstance(states.write({key: Update(2, 3, 9, 2)})[key], errors.FencedStateEpochError)
    with opened(store_dir, clock) as store:
        assert folded(store, [key]) == held(store, [key])
        assert held(store, [key])[key].start == 6


@pytest.mark.parametrize(("limit", "expected"), [(0, "sssss"), (1, "susus"), (3, "suuus"), (500, "suuuu")])
def test_q58_a_snapshot_is_due_after_so_many_updates(store_dir: Path, limit: int, expected: str) -> None:
    clock = Clock()
    with opened(store_dir, clock, snapshot_update_records_per_snapshot=limit) as store:
        states, key = states_of(store), key_of(store)
        states.initialise({key: (1, 0)})
        for n in range(4):
            clock.now += 1
            states.write({key: Update(1, 0, 0, n + 1, (B(2 * n, 2 * n, 2, 1),))})
        assert kinds(store) == expected
        assert folded(store, [key]) == held(store, [key])
        snapshots = expected.count("s")
        state = states.read(key)
        assert state is not None
        assert state.snapshot_epoch == snapshots - 1
        assert state.batches == tuple(B(2 * n, 2 * n, 2, 1) for n in range(4))
        assert state.created_ms == state.written_ms


def test_q58_updates_are_counted_on_after_a_restart(store_dir: Path) -> None:
    expected = "s"
    for letters in ("uu", "us", "uuu", "s"):
        with opened(store_dir, snapshot_update_records_per_snapshot=3) as store:
            states, key = states_of(store), key_of(store)
            if expected == "s":
                states.initialise({key: (1, 0)})
            for _ in letters:
                states.write({key: Update(1, 0, 0, 0, (B(1, 1, 0, 1),))})
            expected += letters
            assert kinds(store) == expected


def test_q58_a_snapshot_that_was_not_due_counts_for_none(store_dir: Path) -> None:
    """As in Kafka, where only a count that has reached the limit begins anew."""
    with opened(store_dir, snapshot_update_records_per_snapshot=3) as store:
        states, key = states_of(store), key_of(store)
        states.initialise({key: (1, 0)})
        states.write({key: Update(1, 0, 0, 0, (B(1, 1, 0, 1),))})
        states.initialise({key: (1, 0)})
    with opened(store_dir, snapshot_update_records_per_snapshot=3) as store:
        for _ in range(3):
            states_of(store).write({key: Update(1, 0, 0, 0, (B(1, 1, 0, 1),))})
        assert kinds(store) == "susuus"
