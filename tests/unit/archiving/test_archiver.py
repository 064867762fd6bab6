"""`Archiver`: the archive is the store's log, whatever the store does between two ticks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from archive_oracle import archived_logs, check_archive, list_of, partition_logs, store_logs
from archivers import archiver_of, settled

import segstore
from segstore import names
from segstore.archiving import archiver as archiver_module
from segstore.archiving import draft as draft_module
from segstore.archiving import plan as plan_module
from segstore.archiving.archiver import WentAnotherWayError
from segstore.archiving.chain import read_state
from segstore.archiving.remote import PART, RemoteFiles
from segstore.archiving.trash import list_all, needed_by, own_objects
from segstore.archiving.uploads import Done
from segstore.archiving.verify import verify

SMALL = {"segment.bytes": 2048}
COMPACTED = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0}


class Clock:
    """Time that a test moves, in ms."""

    def __init__(self):
        self.now = 1_700_000_000_000

    def __call__(self):
        return self.now


class Place:
    """A store that is open, and its archive."""

    def __init__(self, root):
        self.path, self.clock = root / "store", Clock()
        self.base = RemoteFiles(str(root / "archive"))
        self.store = segstore.open(self.path, clock=self.clock)

    def archiver(self, path=None, **settings):
        return archiver_of(path or self.path, self.base, clock=self.clock, **settings)

    def once(self, path=None, **settings):
        with self.archiver(path, **settings) as archiver:
            settled(archiver)
            assert not archiver.problems
        return self.check(path)

    def check(self, path=None):
        return check_archive(self.base, path or self.path)

    def fill(self, topic, count, partition=0, size=150, keys=None):
        log = self.store.partition(topic, partition)
        for number in range(count):
            key = None if keys is None else b"%d" % (number % keys)
            log.append(value=os.urandom(size), key=key)

    def part(self, topic, partition=0):
        """Return what the archive has of a partition, and its list of segments."""
        state = read_state(self.base)
        found = next(
            each
            for key, each in state.partitions.items()
            if key == (topic, state.topic(topic).topic_id, partition)
        )
        return found, list_of(self.base, found)


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path)
    yield found
    found.store.close()


def test_segments_that_compaction_replaces_stay_as_a_generation(place):
    place.store.create_topic("t", config=COMPACTED)
    with place.archiver() as archiver:
        place.fill("t", 60, keys=5)
        settled(archiver)
        before, then = archived_logs(place.base), place.clock.now
        place.clock.now += 1000
        place.store.sweep()
        assert store_logs(place.path) != before
        settled(archiver)
        settled(archiver)
        place.check()
    _, listed = place.part("t")
    assert {each.retired for each in listed.segments if each.until is not None} == {"replaced"}
    old = {
        each.base: place.base.read(each.object(listed.key, ".log"))
        for each in listed.segments
        if each.in_log_at(then)
    }
    assert old.items() <= before[listed.key].items()
    assert len(old) > 3


def test_segments_that_retention_deletes_stay(place):
    place.store.create_topic("t", config=SMALL)
    with place.archiver() as archiver:
        place.fill("t", 60)
        settled(archiver)
        place.store.partition("t", 0).delete_records(30)
        place.store.sweep()
        place.fill("t", 1)
        settled(archiver)
        place.check()
    found, listed = place.part("t")
    gone = [each for each in listed.segments if each.until is not None]
    assert gone
    assert {each.retired for each in gone} == {"retention"}
    assert listed.readable[0].base == 0
    assert found.start == 30
    assert [each.end for each in listed.readable[:-1]] == [each.base for each in listed.readable[1:]]


def objects_of(base):
    return {name for prefix in ("claims/", "commits/", "topics/") for name in base.list(prefix)}


def needed_of(archiver, base):
    lists = [each.listed for each in archiver.partitions.values()]
    found = needed_by(archiver.state, lists) | own_objects(
        archiver.claim, archiver.state, archiver._last_state
    )
    return found | list_all(base, archiver.state.ways).of_ways


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"retention_ms": 1000}, False),
        ({"retention_ms": 10**9}, True),
        ({"retention_bytes": 100}, False),
        ({"retention_bytes": 10**9}, True),
        ({}, True),
    ],
    ids=str,
)
def test_retention_of_the_archive(place, settings, kept):
    place.store.create_topic("t", config=SMALL)
    place.store.create_topic("deleted", config=SMALL)
    with place.archiver(grace_ms=5000, **settings) as archiver:
        place.fill("t", 60)
        place.fill("deleted", 60)
        settled(archiver)
        place.store.partition("t", 0).delete_records(30)
        place.store.sweep()
        place.store.delete_topic("deleted")
        settled(archiver)
        for _ in range(4):
            place.clock.now += 70_000
            place.fill("t", 1)
            settled(archiver)
        state = place.check()
        _, listed = place.part("t")
        assert bool([each for each in listed.segments if each.until is not None]) == kept
        is_there = any(name == "deleted" for name, _ in state.topics)
        assert is_there == (kept or "retention_ms" not in settings)
        archiver._take_listed(Done(0, list_all(place.base, state.ways), None), place.clock.now)
        for _ in range(2):
            settled(archiver)
            place.clock.now += 70_000
        found, needed = objects_of(place.base), needed_of(archiver, place.base)
        assert {name for name in found - needed if not name.endswith(".commit")} == set()
        assert {name for name in needed - found if not name.endswith(".commit")} == set()


def test_objects_go_after_the_grace_time_only(place, monkeypatch):
    monkeypatch.setattr(archiver_module, "COMMITS_A_STATE", 4)
    place.store.create_topic("t")
    with place.archiver(grace_ms=60_000) as archiver:
        for _ in range(40):
            place.fill("t", 1)
            archiver.tick()
        before = objects_of(place.base)
        assert len([name for name in before if name.startswith("commits/")]) == 41
        place.clock.now += 60_000
        archiver.tick()
        after = [name for name in objects_of(place.base) if name.startswith("commits/")]
        assert len(after) < 25
        place.check()


def test_files_that_killed_archivers_left_half_written_go_after_a_day(place, tmp_path):
    place.store.create_topic("t")
    place.once()
    left = [tmp_path / "archive" / "commits" / f"{name}{PART}" for name in ("old", "new")]
    for path in left:
        path.write_bytes(b"half")
    os.utime(left[0], (0, 0))
    list_all(place.base, ())
    assert [path.exists() for path in left] == [False, True]


@pytest.mark.parametrize("written", [10, 90])
def test_an_older_copy_goes_another_way(place, tmp_path, written):
    place.store.create_topic("t", config=SMALL)
    place.store.create_topic("same", config=SMALL)
    place.fill("t", 50)
    place.fill("same", 50)
    place.store.close()
    shutil.copytree(place.path, tmp_path / "older")
    place.store = segstore.open(place.path, clock=place.clock)
    place.fill("t", 40)
    place.once()
    before, then = archived_logs(place.base), place.clock.now
    place.clock.now += 1000
    place.store.close()
    place.store = segstore.open(tmp_path / "older", clock=place.clock)
    place.fill("t", written)
    state = place.once(tmp_path / "older")
    assert len(state.ways) == 1
    assert archived_logs(place.base, then) == before
    place.clock.now += 1000
    assert len(place.once(tmp_path / "older", grace_ms=0).ways) == 1
    assert archived_logs(place.base, then) == before


def test_another_store_is_told(place, tmp_path, caplog):
    place.store.create_topic("t")
    place.once()
    place.once()
    with segstore.open(tmp_path / "other", clock=place.clock) as other:
        other.create_topic("t")
    assert not caplog.messages
    place.once(tmp_path / "other")
    assert caplog.messages == [
        f"{place.base.uri} is the archive of another store: {tmp_path / 'other'} has no topic of it, by topic"
        " ids; t counts as deleted from now on"
    ]


def test_the_same_store_elsewhere_is_no_other_way(place, tmp_path):
    place.store.create_topic("t", config=SMALL)
    place.fill("t", 50)
    place.once()
    place.store.close()
    shutil.copytree(place.path, tmp_path / "moved")
    place.store = segstore.open(tmp_path / "moved", clock=place.clock)
    place.fill("t", 5)
    with place.archiver(tmp_path / "moved") as archiver:
        settled(archiver)
        assert archiver._counts.segments <= 1
    assert place.check(tmp_path / "moved").ways == ()


def cut_off(place, topic):
    """Close the store, cut its topic's log as a power cut does, and open it again."""
    place.store.close()
    log = max(place.path.glob(f"{topic}-0/*.log"))
    with log.open("r+b") as opened:
        opened.truncate(log.stat().st_size // 2)
    for name in (names.RECOVERY_POINTS, names.CLEAN_SHUTDOWN, ".segstore/checkpoints", ".segstore/ends"):
        (place.path / name).unlink(missing_ok=True)
    place.store = segstore.open(place.path, clock=place.clock)
    assert place.store.partition(topic, 0).high_watermark < 30


def test_a_log_that_a_power_cut_has_cut(place):
    place.store.create_topic("t", config=SMALL)
    place.fill("t", 30)
    with place.archiver() as archiver:
        settled(archiver)
        cut_off(place, "t")
        place.fill("t", 30, size=100)
        with pytest.raises(WentAnotherWayError):
            settled(archiver)
    assert len(place.once().ways) == 1


def test_what_an_earlier_way_needs_is_not_deleted(place):
    """Of a log that is the same, both ways name the same list and the same segments."""
    place.store.create_topic("t", config=SMALL)
    place.store.create_topic("same", config=COMPACTED)
    place.fill("t", 30)
    place.fill("same", 60, keys=5)
    place.once()
    before, then = archived_logs(place.base), place.clock.now
    place.clock.now += 1000
    cut_off(place, "t")
    with place.archiver(grace_ms=0, replaced_retention_ms=0) as archiver:
        place.fill("same", 60, keys=5)
        settled(archiver)
        place.store.sweep()
        for _ in range(3):
            place.clock.now += 1000
            settled(archiver)
        both = needed_by(read_state(place.base, then), []) & needed_by(archiver.state, [])
        assert not [name for name in both if name.startswith("topics/same/")]
        archiver._take_listed(Done(0, list_all(place.base, archiver.state.ways), None), place.clock.now)
        place.fill("same", 1, keys=5)
        settled(archiver)
    assert verify(str(place.base.uri)).findings == []
    assert archived_logs(place.base, then) == before


def test_an_earlier_way_goes_after_the_retention(place, monkeypatch):
    """Its objects go only once no state names it, so that nothing is missing at any time."""
    place.store.create_topic("t", config=SMALL)
    place.fill("t", 30)
    place.once()
    cut_off(place, "t")
    then = place.clock.now
    (way,) = place.once().ways
    place.clock.now += 5000
    with place.archiver(grace_ms=0, retention_ms=2000) as archiver:
        archiver._trash._next_list = float("inf")  # only the lists below
        for wanted in (1, 0):
            archiver._take_listed(Done(0, list_all(place.base, archiver.state.ways), None), place.clock.now)
            place.fill("t", 1)
            settled(archiver)
            assert len(archiver.state.ways) == wanted
            assert verify(place.base.uri).findings == []
            monkeypatch.setattr(archiver_module, "COMMITS_A_STATE", 0)
            place.fill("t", 1)
            settled(archiver)
        archiver._take_listed(Done(0, list_all(place.base, archiver.state.ways), None), place.clock.now)
        settled(archiver)
        assert verify(place.base.uri).findings == []
    assert place.base.list(f"commits/{way.claim}/") == {}
    assert read_state(place.base, then).name == archiver.state.name


def test_pieces_of_a_segment_that_the_store_has_no_more(place):
    place.store.create_topic("t", config=SMALL)
    place.fill("t", 5)
    place.once()
    held = archived_logs(place.base)
    place.fill("t", 60)
    place.store.partition("t", 0).delete_records(50)
    place.store.sweep()
    place.once()
    found, listed = place.part("t")
    old = [each for each in listed.segments if each.retired == "retention"]
    assert [(each.base, each.end) for each in old] == [(0, 5)]
    assert place.base.read(old[0].object(listed.key, ".log")) == held[found.key][0]


@pytest.mark.parametrize("config", [{}, SMALL])
def test_the_log_start_offset_before_any_segment_is_sealed(place, tmp_path, config):
    place.store.create_topic("t", config=config)
    with place.archiver() as archiver:
        place.fill("t", 6)
        settled(archiver)
        then = place.clock.now
        place.clock.now += 1000
        place.store.partition("t", 0).delete_records(4)
        settled(archiver)
        place.clock.now += 1000
        place.fill("t", 40)
        settled(archiver)
    for at, start, end in ((then, 0, 6), (then + 1000, 4, 6), (None, 4, 46)):
        restored = tmp_path / f"at {at}"
        segstore.restore(place.base.uri, restored, at=at)
        with segstore.open(restored, "r") as store:
            log = store.partition("t")
            assert (log.start_offset, log.end_offset) == (start, end)
        assert segstore.check(restored) == []


def test_a_topic_that_was_made_again(place):
    with place.archiver() as archiver:
        for number in range(3):
            place.store.create_topic("t")
            place.fill("t", 1 + number)
            settled(archiver)
            place.check()
            place.clock.now += 10
            place.store.delete_topic("t")
            if number:
                settled(archiver)
    state = read_state(place.base)
    assert len(state.topics) == 3
    assert len({each.topic_id for each in state.topics.values()}) == 3
    assert state.topic("t") is None


def test_a_topic_is_not_there_before_it_was_made(place):
    place.store.create_topic("first")
    with place.archiver() as archiver:
        archiver.tick()
        place.clock.now += 5000
        archiver.tick()
        before = place.clock.now
        place.clock.now += 500
        place.store.create_topic("late")
        archiver.tick()
    state = read_state(place.base)
    assert state.topic_names() == ["first", "late"]
    assert state.topic_names(0) == state.topic_names(before - 1) == ["first"]
    assert state.topic_names(before) == ["first", "late"]  # it may have been made just then


def test_a_topic_whose_settings_are_unreadable_is_told(place):
    for name in ("whole", "broken"):
        place.store.create_topic(name)
    place.store.close()
    kept = {path: path.read_bytes() for path in (place.path / ".segstore" / "topics").glob("broken*")}
    for path in [*kept, *(place.path / "broken-0").glob("*.log")]:
        path.write_bytes(b"{") if path in kept else path.unlink()
    with place.archiver() as archiver:
        archiver.tick()
        assert [key.topic for key in archiver.problems] == ["broken"]
        assert read_state(place.base).topic_names() == ["whole"]
    for path, data in kept.items():
        path.write_bytes(data)
    with place.archiver() as archiver:
        archiver.tick()
        assert not archiver.problems
    place.store = segstore.open(place.path, clock=place.clock)


def test_settings_that_are_lost_stay_as_they_were_in_the_archive(place):
    place.store.create_topic("t", config=SMALL)
    place.fill("t", 3)
    place.once()
    place.store.close()
    kept = {path: path.read_bytes() for path in (place.path / ".segstore" / "topics").glob("t.*")}
    for path in kept:
        path.write_bytes(b"{")
    before = read_state(place.base).topic("t")
    with place.archiver() as archiver:
        archiver.tick()
        assert read_state(place.base).topic("t") == before
    for path, data in kept.items():
        path.write_bytes(data)
    place.store = segstore.open(place.path, clock=place.clock)


def test_settings_partitions_and_small_files_have_versions(place):
    place.store.create_topic("t")
    with place.archiver() as archiver:
        archiver.tick()
        first = place.clock.now
        place.clock.now += 10
        place.store.alter_topic("t", {"retention.ms": 77_000_000})
        place.store.add_partitions("t", 3)
        archiver.tick()
    topic = read_state(place.base).topic("t")
    assert [since for since, _ in topic.settings] == [first, first + 10]
    assert b"77000000" in topic.settings[-1][1]
    assert topic.partitions == (0, 1, 2)


def test_chosen_topics_and_internal_ones(place):
    place.store.create_topic("in")
    place.store.create_topic("out")
    place.fill("in", 3)
    with place.archiver(topics=["in", "later"]) as archiver:
        archiver.tick()
        place.store.create_topic("later")
        place.fill("later", 3)
        archiver.tick()
    state = read_state(place.base)
    assert sorted(name for name, _ in state.topics) == ["in", "later"]


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (draft_module, "BUFFERED", 100),
        (plan_module, "MOST_IN_PIECES", 500),
        (archiver_module, "COMMITS_A_STATE", 1),
        (draft_module, "BUFFERED", 64 << 20),
    ],
    ids=["streamed pieces", "segments first", "states only", "as it is"],
)
def test_many_rolls_in_a_tick(place, monkeypatch, module, name, value):
    monkeypatch.setattr(module, name, value)
    place.store.create_topic("t", partitions=2, config=SMALL)
    with place.archiver() as archiver:
        for count in (1, 3, 17, 40, 0, 5, 60, 1):
            place.fill("t", count)
            place.fill("t", count // 3, partition=1)
            archiver.tick()
            place.check()
        settled(archiver)
        place.check()


def test_a_large_store_comes_by_several_commits(place):
    place.store.create_topic("t", config=SMALL)
    place.fill("t", 100)
    with place.archiver(most_at_once=5000) as archiver:
        archiver.tick()
        assert archiver._counts.commits > 2
    place.check()


def test_a_broker_s_directory(place, tmp_path):
    place.store.create_topic("t", config=SMALL)
    place.fill("t", 40)
    place.store.close()
    shutil.copytree(place.path, tmp_path / "broker", ignore=shutil.ignore_patterns(".segstore"))
    state = place.once(tmp_path / "broker")
    assert state.topic("t").settings[-1][1] == b""
    assert sum(map(len, partition_logs(place.base, place.part("t")[0]).values())) > 40 * 150


def test_a_store_that_guests_write_to(place):
    place.store.create_topic("t", config=SMALL)
    place.store.close()
    host = segstore.open(place.path, shared=True)
    with host, segstore.open(place.path, shared=True) as second, place.archiver() as archiver:
        for number in range(20):
            host.partition("t", 0).append(value=b"host" * 50)
            second.partition("t", 0).append(value=b"guest" * number)
            archiver.tick()
        settled(archiver)
        place.check()


def test_an_idle_tick_asks_for_nothing(place):
    place.store.create_topic("t", partitions=3)
    place.fill("t", 3)
    with place.archiver() as archiver:
        settled(archiver)
        settled(archiver)
        asked = archiver._objects if hasattr(archiver._objects, "calls") else None
        assert asked is None
        before = sorted(map(str, Path(place.base.uri).rglob("*")))
        archiver.tick()
        assert sorted(map(str, Path(place.base.uri).rglob("*"))) == before


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_a_list_that_is_lost_is_made_anew(place, damage):
    place.store.create_topic("t", config=SMALL)
    place.store.create_topic("other", config=SMALL)
    place.fill("t", 50)
    place.fill("other", 50)
    place.once()
    found, _ = place.part("t")
    if damage == "missing":
        place.base.delete([found.segments])
    else:
        data = place.base.read(found.segments)
        place.base.write(found.segments, [data[:50] + b"?" + data[51:]])
    assert len(place.once().ways) == 1
    other = read_state(place.base).topic("other")
    assert other is not None


def test_a_log_that_is_damaged_is_told_and_others_are_archived(place):
    place.store.create_topic("bad")
    place.store.create_topic("good")
    with place.archiver() as archiver:
        place.fill("bad", 5)
        place.fill("good", 5)
        path = place.path / "bad-0" / ("0" * 20 + ".log")
        data = path.read_bytes()
        with path.open("r+b") as opened:
            opened.seek(len(data) // 5 * 3 + 8)
            opened.write(b"\xff" * 9)
        archiver.tick()
        (told,) = archiver.problems.values()
        assert "bad-0" in told
        assert place.part("good")[0].end == 5
        assert place.part("bad")[0].end == 3
        path.write_bytes(data)
        archiver.tick()
        assert not archiver.problems
        place.check()
