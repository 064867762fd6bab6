"""A log of share states folded into a table (rule Q56, property P7), and what is said of records that no
coordinator writes (rule Q107).
"""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest
import waiting
from share_states import LIMIT, folded, held, key_of, kinds, opened, states_of
from stores import Clock, append_inner

import segstore
from segstore.coordinator.share import state_table
from segstore.coordinator.share.core.durable import StateDelta, apply_update
from segstore.coordinator.share.core.values import Durable, StateBatch
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.state_log import TOPIC, Update
from segstore.coordinator.share.state_schema import StateKind, snapshot_value, state_key, update_value
from segstore.coordinator.share.state_table import StateTable, load, understand
from segstore.errors import UnsupportedVersionError

B = StateBatch
FIRST = Durable(0, 2, 0, 0, 0)


def tidy(store: segstore.Store) -> None:
    """Delete what the check at the end would report."""
    store._delete_topic(TOPIC)


def begun(store: segstore.Store, *groups: str) -> list[ShareKey]:
    keys = [key_of(store, group) for group in groups]
    states_of(store).initialise(dict.fromkeys(keys, (2, 0)))
    return keys


def put(store: segstore.Store, key: ShareKey, content: Durable | StateDelta | None) -> int:
    """Append a record past the coordinator."""
    kind = StateKind.UPDATE if isinstance(content, StateDelta) else StateKind.SNAPSHOT
    if isinstance(content, StateDelta):
        value: bytes | None = update_value(content)
    else:
        value = None if content is None else snapshot_value(content)
    return append_inner(store.partition(TOPIC), value, state_key(kind, key))


def states(table: StateTable) -> dict[ShareKey, Durable]:
    found = {}
    for key in table:
        entry = table.find(key)
        assert entry is not None
        assert entry.fold.state is not None
        found[key] = entry.fold.state
    return found


# --- P7 --------------------------------------------------------------------------------------------


def write_something(store: segstore.Store, keys: list[ShareKey], clock: Clock, rng: random.Random) -> None:
    """Do one call of a random kind, which may be refused."""
    log, key = states_of(store), rng.choice(keys)
    clock.now += rng.randrange(200_000)
    state = log.read(key)
    draw = rng.random()
    if state is None or draw < 0.05:
        log.initialise({key: (2 if state is None else state.state_epoch + 1, rng.randrange(-1, 6))})
    elif draw < 0.1:
        log.delete([key])
    elif draw < 0.15:
        log.snapshot_cold()
    elif draw < 0.25:
        log.raise_epoch(key, state.state_epoch + 1, state._replace(start=max(state.start - 2, 0)))
    elif draw < 0.3:
        log.write({key: Update(state.state_epoch, rng.randrange(4), lead=True)})
    else:
        first = rng.randrange(20)
        batch = B(first, first + rng.randrange(5), rng.choice((0, 2, 3, 4)), rng.randrange(1, 5))
        log.write({key: Update(state.state_epoch, 3, rng.randrange(-1, 12), rng.randrange(-1, 4), (batch,))})


def test_p7_the_fold_of_each_prefix_is_the_state_that_was_held(store_dir: Path, rng: random.Random) -> None:
    clock = Clock()
    with opened(store_dir, clock, snapshot_update_records_per_snapshot=3) as store:
        keys = [key_of(store, group, "t", n) for group in ("g", "a:b") for n in range(2)]
        expected: dict[int, dict[ShareKey, Durable]] = {0: {}}
        begun(store, "g")
        log = store.partition(TOPIC)
        for _ in range(150):
            write_something(store, keys, clock, rng)
            assert folded(store, keys) == held(store, keys)
            expected[log.end_offset] = held(store, keys)
        for end, known in expected.items():
            assert states(understood(log, end, 3)) == known
    with opened(store_dir, clock) as store:
        assert held(store, keys) == known


def understood(log: segstore.PartitionLog, end: int, limit: int = LIMIT) -> StateTable:
    """Return the table that the log gives below `end`."""
    loading = state_table._Loading(limit)
    for records in state_table.reads(log, log.start_offset, end, 700):
        loading.take(records)
    return loading.finish()[0]


def test_p7_prune_never_changes_the_fold(store_dir: Path, rng: random.Random) -> None:
    clock = Clock()
    with opened(store_dir, clock, snapshot_update_records_per_snapshot=2) as store:
        keys = [key_of(store, group, "t", n) for group in ("g", "a:b") for n in range(2)]
        begun(store, "g")
        log, starts = store.partition(TOPIC), set()
        for _ in range(150):
            write_something(store, keys, clock, rng)
            before = folded(store, keys)
            if rng.random() < 0.3:
                states_of(store).prune()
                starts.add(log.start_offset)
            assert folded(store, keys) == before == held(store, keys)
        assert len(starts) > 5


def test_updates_that_a_snapshot_follows_are_not_decoded(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(store_dir, snapshot_update_records_per_snapshot=4) as store:
        [key] = begun(store, "g")
        for n in range(7):
            states_of(store).write({key: Update(2, 0, 0, n, (B(n, n, 2, 1),))})
        decoded: list[bytes] = []
        parse = state_table.parse_update
        monkeypatch.setattr(state_table, "parse_update", lambda data: decoded.append(data) or parse(data))
        assert kinds(store) == "suuuusuu"
        assert folded(store, [key]) == held(store, [key])
        assert len(decoded) == 2


def test_many_updates_without_a_snapshot(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_table, "_MOST_WAITING", 10)
    with opened(store_dir) as store:
        [key] = begun(store, "g")
        state = held(store, [key])[key]
        for n in range(95):
            delta = StateDelta(0, n % 3, n // 2, 0, (B(n, n + 3, n % 2 * 2, 1 + n % 2),))
            state = apply_update(state, delta)
            put(store, key, delta)
        assert folded(store, [key]) == {key: state}
        table = load(store.partition(TOPIC), LIMIT)
        entry = table.find(key)
        assert entry is not None
        assert (entry.updates, entry.leader_epoch) == (95, 2)


# --- Q56 -------------------------------------------------------------------------------------------


def test_q56_an_update_without_a_snapshot_is_taken_as_it_is(store_dir: Path) -> None:
    with opened(store_dir) as store:
        begun(store, "other")
        key = key_of(store)
        put(store, key, StateDelta(4, 1, 5, 2, (B(5, 6, 2, 1), B(8, 9, 0, 1))))
        expected = Durable(4, 0, 1, 5, 2, (B(5, 6, 2, 1), B(8, 9, 0, 1)))
        assert folded(store, [key]) == {key: expected}
    with opened(store_dir) as store:
        assert states_of(store).read(key) == expected
        assert states_of(store).write({key: Update(0, 1, 6, 1)}) == {key: None}
        assert folded(store, [key]) == held(store, [key])


def test_q56_the_highest_epochs_count_also_of_records_before_a_snapshot(store_dir: Path) -> None:
    with opened(store_dir) as store:
        [key] = begun(store, "g")
        put(store, key, StateDelta(0, 7, 0, 0))
        put(store, key, FIRST._replace(snapshot_epoch=1))
        put(store, key, StateDelta(1, -1, 0, 0))
        entry = load(store.partition(TOPIC), LIMIT).find(key)
        assert entry is not None
        assert entry.fold.state == FIRST._replace(snapshot_epoch=1)
        assert (entry.leader_epoch, entry.state_epoch) == (7, 2)


def test_q56_records_of_unknown_types_are_passed_over_and_kept(store_dir: Path) -> None:
    with opened(store_dir, snapshot_update_records_per_snapshot=1) as store:
        [key] = begun(store, "g")
        log = store.partition(TOPIC)
        states_of(store).write({key: Update(2, 0)})
        unknown = append_inner(log, b"\0\0later", b"\0\2later")
        append_inner(log, None, b"\0\2later")
    with opened(store_dir, snapshot_update_records_per_snapshot=1) as store:
        log = store.partition(TOPIC)
        for _ in range(4):
            assert states_of(store).write({key: Update(2, 0)}) == {key: None}
        assert folded(store, [key]) == held(store, [key])
        states_of(store).prune()
        assert log.start_offset == unknown
        assert next(iter(log.read(unknown))).value == b"\0\0later"
        assert understand(log)[1] == []


JUNK = {
    "no key": (None, b"\0\0junk"),
    "an empty key": (b"", b"\0\0junk"),
    "a key of a negative type": (b"\xff\xffkey", b"\0\0junk"),
    "a key that is cut": (b"\0\0\0\1g", b"\0\0junk"),
    "a snapshot of a wrong form": ("s", b"\0\0junk"),
    "a snapshot without a version": ("s", b""),
    "an update of a wrong form": ("u", b"\0\0junk"),
    "an update without a value": ("u", None),
}


@pytest.mark.parametrize("name", JUNK)
def test_a_record_that_is_none_of_the_topic_is_passed_over(
    name: str, store_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(store_dir, snapshot_update_records_per_snapshot=5) as store:
        [key] = begun(store, "g")
        states_of(store).write({key: Update(2, 0, 0, 1, (B(0, 0, 2, 1),))})
        before = held(store, [key])
        given, value = JUNK[name]
        kind = {"s": StateKind.SNAPSHOT, "u": StateKind.UPDATE}.get(given)  # type: ignore[call-overload]
        data = given if kind is None else state_key(kind, key)
        assert append_inner(store.partition(TOPIC), value, data) == 2  # type: ignore[arg-type]
        [found] = segstore.check(store_dir)
        assert found.offset == 2
        assert "not readable as a share partition's record, it is passed over: " in found.message
    with (
        caplog.at_level(logging.WARNING, "segstore"),
        opened(store_dir, snapshot_update_records_per_snapshot=5) as store,
    ):
        assert held(store, [key]) == before
        waiting.told()
        told = [record.getMessage() for record in caplog.records]
        assert [text.partition(" passed over")[0] for text in told] == [
            f"{TOPIC}-0: 1 record is not readable as a share partition's and"
        ]
        assert states_of(store).write({key: Update(2, 0, 0, 2, (B(1, 1, 2, 1),))}) == {key: None}
        assert folded(store, [key]) == held(store, [key])
        tidy(store)


@pytest.mark.parametrize("kind", StateKind)
def test_a_record_of_a_newer_version_is_not_overwritten(store_dir: Path, kind: StateKind) -> None:
    """Its share partition is refused by name, and no other; nothing from its snapshot on is pruned."""
    with opened(store_dir, snapshot_update_records_per_snapshot=1) as store:
        key, other = begun(store, "g", "other")
        append_inner(store.partition(TOPIC), b"\0\1later", state_key(kind, key))
    with opened(store_dir, snapshot_update_records_per_snapshot=1) as store:
        log = states_of(store)
        with pytest.raises(
            UnsupportedVersionError, match=f"share partition g:.*at offset 2.*{kind.name.title()}"
        ):
            log.read(key)
        found = log.write({key: Update(9, 9), other: Update(2, 0)})
        assert isinstance(found[key], UnsupportedVersionError)
        assert found[other] is None
        for call in (lambda: log.initialise({key: (9, 0)}), lambda: log.delete([key])):
            with pytest.raises(UnsupportedVersionError):
                call()
        log.write({other: Update(2, 0)})
        log.write({other: Update(2, 0)})
        log.prune()
        assert store.partition(TOPIC).start_offset == (2 if kind is StateKind.SNAPSHOT else 0)
        assert log.keys_of("g") == [key]
        [finding] = segstore.check(store_dir)
        assert "can't be used by this version of segstore" in finding.message
        put(store, key, FIRST)  # whatever understands it has gone on
    with opened(store_dir) as store:
        assert states_of(store).read(key) == FIRST


# --- Q107 ------------------------------------------------------------------------------------------

SOUND = (B(5, 6, 2, 1), B(7, 9, 0, 25), B(12, 12, 3, 1))
DOUBTFUL = {
    "below the start": (B(4, 6, 2, 1), "offsets 4 to 6 lie below the start offset 5"),
    "an overlap": (B(9, 10, 2, 1), "offsets 9 to 10 overlap others"),
    "no order": (B(14, 13, 2, 1), "offsets 14 to 13: they end before they begin"),
    "many deliveries": (B(13, 13, 2, 26), "offsets 13 to 13 were delivered 26 times"),
    "deliveries below zero": (B(13, 13, 2, -1), "offsets 13 to 13 were delivered -1 times"),
    "an acquired one": (B(13, 13, 1, 1), "offsets 13 to 13 are in state 1, which is no durable one"),
    "an unknown state": (B(13, 13, 9, 1), "offsets 13 to 13 are in state 9"),
}


@pytest.mark.parametrize("record", ["snapshot", "update"])
@pytest.mark.parametrize("name", DOUBTFUL)
def test_q107_check_tells_of_states_that_no_coordinator_writes(
    name: str, record: str, store_dir: Path
) -> None:
    batch, told = DOUBTFUL[name]
    with opened(store_dir) as store:
        key, other = begun(store, "g", "other")

        def write(key: ShareKey, *batches: StateBatch) -> int:
            snapshot = Durable(1, 2, 0, 5, 0, batches)
            return put(store, key, StateDelta(0, 0, 5, 0, batches) if record == "update" else snapshot)

        write(other, *SOUND)
        assert segstore.check(store_dir) == []
        at = write(key, *SOUND, batch)
        write(other, *SOUND)
        [found] = segstore.check(store_dir)
        assert found.offset == at
        assert f"not as a share partition's record should be: share partition {key}: " in found.message
        assert told in found.message
        put(store, key, Durable(2, 2, 0, 5, 0, SOUND))
        assert segstore.check(store_dir) == []
        write(key, batch)
        put(store, key, None)
        assert segstore.check(store_dir) == []
