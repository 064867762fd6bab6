"""Offsets that compaction has left out are no damage, whatever becomes of the topic's settings afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compaction import CONFIG, Looks, Unsynced, clean, latest, open_compacted, pairs, roll
from stores import killed_at_each_call, raw_batches, write_segment

import segstore
from segstore.files import Files
from segstore.storage import cleaner
from segstore.storage.meta.checked_copy import read_copy, write_copy
from segstore.storage.meta.framed import seal, unseal
from segstore.storage.repair import repair

CHECKPOINT = "cleaner-offset-checkpoint"
DELETE = {"cleanup.policy": "delete"}


def once_smaller(store: segstore.Store, act: Callable[[], object]) -> Looks:
    """Does something once, as soon as a part of the log was replaced."""
    size = [store.partition("t").size]

    def look(nth: int) -> None:
        if size and store.partition("t").size < size[0]:
            size.clear()
            act()

    return Looks(look)


def stop() -> None:
    raise cleaner.CleaningStopped


def fill(store: segstore.Store, n: int = 100) -> None:
    """Records of ten keys; the last segments of `n` are sealed."""
    log = store.partition("t")
    for i in range(n):
        log.append(b"%d" % i + b"." * 80, key=b"k%d" % (i % 10))
    roll(store)


def stopped(path: Path) -> list[Any]:
    """A topic whose first compaction was stopped midway, with gaps above all that the cleaner's checkpoint
    says: what is left of it.
    """
    with open_compacted(path, files=Unsynced()) as store:
        fill(store)
        done = clean(store, throttle=once_smaller(store, stop))
        assert done.stopped
        left = pairs(store.partition("t"))
        assert 10 < len(left) < 100
    assert "t 0" not in (path / CHECKPOINT).read_text() if (path / CHECKPOINT).exists() else True
    return left


def alter(path: Path, *changes: dict[str, Any]) -> None:
    with open_compacted(path) as store:
        for config in changes:
            store.alter_topic("t", config)


def assert_sound(path: Path, left: list[Any]) -> None:
    assert segstore.check(path) == []
    for mode in ("r", "rw"):
        with segstore.open(path, mode, config={"log.cleaner.threads": 0}) as store:
            assert pairs(store.partition("t")) == left


def test_the_policy_changes_after_a_compaction_was_stopped(store_dir: Path) -> None:
    left = stopped(store_dir)
    with open_compacted(store_dir) as store, segstore.open(store_dir, "r") as reading:
        assert pairs(reading.partition("t")) == left
        store.alter_topic("t", DELETE)
        assert pairs(store.partition("t")) == left
        assert pairs(reading.partition("t")) == left
    assert_sound(store_dir, left)


def test_there_and_back_again(store_dir: Path) -> None:
    """The cleaner takes up what it has not done; what it did is known at the next change."""
    stopped(store_dir)
    with open_compacted(store_dir) as store:
        expected = latest(store.partition("t"))
        store.alter_topic("t", DELETE)
        fill(store, 50)
        store.alter_topic("t", {"cleanup.policy": "compact"})
        assert not clean(store).stopped
        assert len(pairs(store.partition("t"))) == 10
        fill(store, 100)
        assert clean(store, throttle=once_smaller(store, stop)).stopped
        store.alter_topic("t", DELETE)
        left, expected = pairs(store.partition("t")), latest(store.partition("t"))
    assert_sound(store_dir, left)
    assert expected.keys() == {b"k%d" % i for i in range(10)}


@pytest.mark.parametrize("when", ["it begins", "a part is done"])
def test_the_policy_changes_while_a_compaction_runs(store_dir: Path, when: str) -> None:
    """It may end the pass that it is in: all of that is below the segment that was active then. What is
    appended afterwards it leaves alone.
    """
    with open_compacted(store_dir) as store:
        fill(store)
        partition = store.partition("t").partition_for_write()

        def change() -> None:
            store.alter_topic("t", DELETE)
            fill(store)

        begins = Looks(lambda nth: nth == 1 and change())
        done = clean(store, throttle=begins if when == "it begins" else once_smaller(store, change))
        assert done.segments_before
        assert len(pairs(store.partition("t"))) == 10 + 100
        again = clean(store)
        assert again.stopped
        assert not again.segments_before
        (known,) = store.topics()["t"].compacted
        assert known[1] <= partition.view.bases[-1]
        left = pairs(store.partition("t"))
    assert_sound(store_dir, left)


def test_a_gap_behind_what_was_compacted_is_damage(store_dir: Path) -> None:
    """A batch that is gone from a log that is compacted no more."""
    stopped(store_dir)
    with open_compacted(store_dir) as store:
        store.alter_topic("t", DELETE)
        end = store.partition("t").end_offset
        for i in range(3):
            store.partition("t").append(b"%d" % i)
    path = sorted((store_dir / "t-0").glob("*.log"))[-1]
    data = path.read_bytes()
    size = len(data) // 3
    path.write_bytes(data[:size] + data[2 * size :])
    told = [f for f in segstore.check(store_dir) if "missing" in f.message]
    assert [f.offset for f in told] == [end + 1]
    path.write_bytes(data)


def test_a_copy_of_it(store_dir: Path, tmp_path: Path) -> None:
    left = stopped(store_dir)
    alter(store_dir, DELETE)
    segstore.copy(store_dir, tmp_path / "copy")
    assert_sound(tmp_path / "copy", left)


def test_the_policy_changes_while_a_copy_is_made(
    store_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is compacted, and not any more, between the look at the settings and the copy of the log."""
    from segstore.storage.copy import _Copying

    with open_compacted(store_dir, cleanup_policy="delete") as store:
        fill(store)
        moment = _Copying._moment

        def late(self: _Copying, *of: Any) -> Any:
            if "delete" in store.topics()["t"].settings.cleanup_policy and not store.topics()["t"].compacted:
                store.alter_topic("t", {"cleanup.policy": "compact"})
                clean(store)
                store.alter_topic("t", DELETE)
            return moment(self, *of)

        monkeypatch.setattr(_Copying, "_moment", late)
        segstore.copy(store_dir, tmp_path / "copy")
        left = pairs(store.partition("t"))
    assert len(left) == 10
    # What the cleaner's checkpoint says would do, too: without it the settings must.
    (tmp_path / "copy" / CHECKPOINT).write_text("0\n0\n")
    held, _ = read_copy(Files(), str(tmp_path / "copy"))
    assert held is not None
    write_copy(Files(), str(tmp_path / "copy"), {**held.offsets, CHECKPOINT: {}}, held.nonce, {})
    assert_sound(tmp_path / "copy", left)


@pytest.mark.parametrize("damage", ["0\n1\nt 0 5000\n", "0\n1\nt 0", None], ids=["too much", "none", "lost"])
def test_repair_forgets_what_the_cleaner_s_checkpoint_says(store_dir: Path, damage: str | None) -> None:
    """The offsets that were left out long ago are no damage for that, and nothing stands in for them."""
    with open_compacted(store_dir) as store:
        fill(store)
        clean(store)
        left = pairs(store.partition("t"))
        store.alter_topic("t", DELETE)
    checkpoint = store_dir / CHECKPOINT
    (store_dir / ".segstore" / "checkpoints").unlink()  # which would say what the cleaner's did
    if damage is None:
        checkpoint.unlink()
        (store_dir / "t-0" / "leader-epoch-checkpoint").write_bytes(b"?")
    else:
        checkpoint.write_text(damage)
    assert repair(store_dir, quarantine=True)
    assert "t 0" not in (checkpoint.read_text() if checkpoint.exists() else "")
    assert_sound(store_dir, left)


@pytest.mark.kind("kills")
def test_killed_at_each_call_of_the_change(tmp_path: Path) -> None:
    """There and back: each time the log is read whole, after the recovery too."""
    left = stopped(tmp_path / "s")

    def change(files: segstore.files.Files, path: Path) -> None:
        store = open_compacted(path, files=files)
        store.alter_topic("t", DELETE)
        store.alter_topic("t", {"cleanup.policy": "compact"})
        store.alter_topic("t", DELETE)

    seen = set()
    for nth, path in killed_at_each_call(tmp_path / "s", tmp_path, change):
        with segstore.open(path, config={"log.cleaner.threads": 0}) as store:
            assert pairs(store.partition("t")) == left, nth
            seen.add(store.topics()["t"].settings.cleanup_policy)
        assert segstore.check(path) == [], nth
    assert len(seen) == 2


@pytest.mark.parametrize("config", [DELETE, {"cleanup.policy": "compact"}, {}], ids=str)
def test_a_broker_s_topic_gets_settings(store_dir: Path, config: dict[str, Any]) -> None:
    """What a broker did to it stays unknown: its last segment may be a replica of a compacted one."""
    write_segment(store_dir / "t-0", 0, raw_batches([*range(10), 15, 16, 17, 30, 31], per_batch=2))
    with segstore.open(store_dir) as store:
        left = pairs(store.partition("t"))
        assert len(left) == 15
        store.alter_topic("t", config)
        store.alter_topic("t", DELETE)
        assert store.topics()["t"].compacted == ((0, 32),)
    assert_sound(store_dir, left)


def test_a_broker_s_topic_gets_partitions(store_dir: Path) -> None:
    write_segment(store_dir / "t-0", 0, raw_batches([0, 1, 5, 6], per_batch=2))
    with segstore.open(store_dir) as store:
        store.add_partitions("t", 2)
        assert store.topics()["t"].compacted == ((0, 7),)
        left = pairs(store.partition("t"))
    assert_sound(store_dir, left)


def test_a_change_that_fails_changes_nothing(store_dir: Path) -> None:
    from faults import FailingFiles

    files = FailingFiles({"rename"}, OSError(5, "Input/output error"), nth=0)
    with open_compacted(store_dir, files=files) as store:
        fill(store)
        files.arm()
        with pytest.raises(segstore.StorageError):
            store.alter_topic("t", DELETE)
        assert store.topics()["t"].config["cleanup.policy"] == CONFIG["cleanup.policy"]
        assert clean(store).segments_before


@pytest.mark.parametrize(
    "compacted", ["5", "[5]", "[[0]]", "[[0, -1]]", "[[-1, 5]]", '[["0", 5]]', "[[0, true]]", "{}"]
)
def test_a_file_that_says_something_else(tmp_path: Path, compacted: str) -> None:
    """Both copies say it, with checksums that fit: the settings count as lost, and the log stays readable."""
    with open_compacted(tmp_path) as store:
        store.partition("t").append(b"v", key=b"k")
    for path in (tmp_path / ".segstore" / "topics").iterdir():
        held, _ = unseal(path.read_bytes())
        path.write_bytes(seal(held | {"compacted": json.loads(compacted)}))
    with segstore.open(tmp_path, "r") as store:
        assert isinstance(store.topics()["t"].lost, segstore.errors.CorruptCheckpointError)
        assert store.partition("t").read(0).values[0] == b"v"
