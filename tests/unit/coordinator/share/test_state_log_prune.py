"""Which records of the durable states of share partitions go: those before all snapshots, and those of topics
that are deleted (rules Q46 and Q57).
"""

from __future__ import annotations

from pathlib import Path

from share_states import folded, held, key_of, kinds, opened, states_of, written
from stores import Clock
from waiting import until

from segstore import errors
from segstore.coordinator.share.core.values import Durable, StateBatch
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.state_log import TOPIC, Update

B = StateBatch


# --- prune ----------------------------------------------------------------------------------------


def test_q57_what_lies_before_all_snapshots_is_pruned(store_dir: Path) -> None:
    with opened(store_dir, snapshot_update_records_per_snapshot=2) as store:
        states, keys = states_of(store), [key_of(store, group) for group in "abc"]
        log_start = lambda: store.partition(TOPIC).start_offset  # noqa: E731
        states.prune()  # there is no topic yet
        for key in keys:
            states.initialise({key: (1, 0)})
        write = lambda key: states.write({key: Update(1, 0, 0, 1, (B(0, 0, 2, 1),))})  # noqa: E731
        for _ in range(3):
            write(keys[0])
            write(keys[2])
        states.prune()
        assert (log_start(), kinds(store)) == (1, "ssuuuuss")  # "b" has its first snapshot only
        before = held(store, keys)
        states.delete([keys[1]])
        states.prune()
        assert (log_start(), kinds(store)) == (7, "sst")
        assert folded(store, keys) == held(store, keys) == {k: s for k, s in before.items() if k != keys[1]}
        states.delete(keys)
        states.prune()
        assert kinds(store) == "t"
        states.prune()
        assert (kinds(store), folded(store, keys)) == ("t", {})
        states.initialise({keys[1]: (1, 5)})
        states.prune()
        assert kinds(store) == "s"
    with opened(store_dir) as store:
        assert held(store, keys) == folded(store, keys)
        assert list(held(store, keys)) == [keys[1]]
        states_of(store).prune()
        assert kinds(store) == "s"


def test_q57_an_idle_share_partition_gets_a_snapshot(store_dir: Path) -> None:
    clock, minutes = Clock(), 60_000
    with opened(store_dir, clock, snapshot_update_records_per_snapshot=2) as store:
        states, idle, busy = states_of(store), key_of(store, "idle"), key_of(store, "busy")
        states.initialise({idle: (1, 0), busy: (1, 0)})
        states.write({idle: Update(1, 0, 0, 1, (B(0, 0, 2, 1),))})
        begun = clock.now
        for _ in range(3):
            clock.now += minutes
            states.write({busy: Update(1, 0, 0, 1, (B(0, 0, 2, 1),))})
        assert kinds(store) == "ssuuus"
        clock.now = begun + 5 * minutes - 1
        states.snapshot_cold()
        assert kinds(store) == "ssuuus"
        clock.now = begun + 5 * minutes
        states.snapshot_cold()
        assert kinds(store) == "ssuuuss"
        assert states.read(idle) == Durable(1, 1, 0, 0, 1, (B(0, 0, 2, 1),), begun, clock.now)
        assert folded(store, [idle, busy]) == held(store, [idle, busy])
        clock.now += 5 * minutes
        states.snapshot_cold()
        assert kinds(store) == "ssuuussss"  # "busy" is idle, too, and they are not both cold yet
        clock.now += 50 * minutes
        states.snapshot_cold()
        assert kinds(store) == "ssuuussss"
        states.prune()
        assert kinds(store) == "ss"


def test_prune_and_snapshots_run_in_the_background(store_dir: Path) -> None:
    clock = Clock()
    config = {"state_topic_prune_interval_ms": 5, "cold_partition_snapshot_interval_ms": 5}
    with opened(store_dir, clock, **config) as store:
        states, key = states_of(store), key_of(store)
        states.initialise({key: (1, 0)})
        clock.now += 10
        until(lambda: kinds(store) == "s" and written(store)[0][1] == states.read(key) != None)  # noqa: E711
        until(lambda: store.partition(TOPIC).start_offset == 1)
        state = states.read(key)
        assert state is not None
        assert (state.snapshot_epoch, state.written_ms - state.created_ms) == (1, 10)


def test_a_closed_store_prunes_nothing(store_dir: Path) -> None:
    with opened(store_dir) as store:
        states = states_of(store)
        states.initialise({key_of(store): (1, 0)})
    from segstore.coordinator.share.state_log import _run

    _run(lambda: states, "prune")
    _run(lambda: None, "prune")


# --- topics that are deleted ----------------------------------------------------------------------


def test_q46_the_states_of_a_deleted_topic_are_deleted(store_dir: Path) -> None:
    with opened(store_dir, state_topic_num_partitions=3) as store:
        states = states_of(store)
        gone = [key_of(store, group, "t", n) for group in ("g", "h") for n in range(4)]
        kept = key_of(store, "g", "u", 1)
        states.initialise(dict.fromkeys([*gone, kept], (1, 0)))
        store.delete_topic("t")
        assert held(store, [*gone, kept]) == {kept: states.read(kept)}
        again = ShareKey("g", store.create_topic("t", 4).topic_id, 0)
        assert states.read(again) is None
        states.initialise({again: (1, 0)})
        assert states.write({again: Update(1, 0)}) == {again: None}
        assert isinstance(states.write({gone[0]: Update(1, 0)})[gone[0]], errors.InvalidRequestError)
    with opened(store_dir) as store:
        assert sorted(held(store, [*gone, kept, again])) == sorted([kept, again])
        assert states_of(store).keys_of("g") == sorted([kept, again])


def test_q46_also_if_no_share_group_was_used_since_the_start(store_dir: Path) -> None:
    with opened(store_dir) as store:
        key = key_of(store)
        states_of(store).initialise({key: (1, 0)})
    with opened(store_dir) as store:
        store.delete_topic("t")
        assert kinds(store) == "st"


def test_the_state_topic_is_deleted(store_dir: Path) -> None:
    with opened(store_dir) as store:
        states, key = states_of(store), key_of(store)
        states.initialise({key: (1, 0)})
        store._delete_topic(TOPIC)
        assert states.read(key) is None
        assert isinstance(states.write({key: Update(1, 0)})[key], errors.InvalidRequestError)
        states.initialise({key: (1, 3)})
        assert kinds(store) == "s"
