"""Damage of `.segstore/ends`, of the root's checkpoints and their copy, of marker and lock: an intact log is
read whole in both modes, goes on where it ended, and no segment is deleted.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from published import END, RECOVERY_POINT, START, ends_path, publish, used, without_checks
from stores import Clock, as_the_same, killed, logs, stamps, values

import segstore
from segstore import names
from segstore.errors import StorageError
from segstore.storage.log.partition import LogStart
from segstore.storage.repair import repair

pytestmark = pytest.mark.kind("damage")

ENDS, COPY = f"{names.OURS}/{names.ENDS}", f"{names.OURS}/{names.CHECKPOINTS}"
FILES = (ENDS, COPY, *names.OFFSET_CHECKPOINTS, names.CLEAN_SHUTDOWN)
STATES = ("clean", "killed")
QUIET = {"log.cleaner.threads": 0, "log.retention.check.interval.ms": 2**62}
TOPICS: dict[str, dict[str, Any]] = {
    "t": {"segment.bytes": 500, "file.delete.delay.ms": 0},
    "u": {"segment.bytes": 500},
    "c": {"segment.bytes": 500, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01},
}

Seen = dict[str, tuple[int, int, list[bytes | None]]]
"""Of each topic: log start offset, log end offset, values."""


def seen(store: segstore.Store) -> Seen:
    found = {}
    for topic in TOPICS:
        log = store.partition(topic)
        found[topic] = log.start_offset, log.end_offset, values(log)
    return found


def fill(store: segstore.Store, first: int) -> None:
    for topic in TOPICS:
        log = store.partition(topic)
        for i in range(first, first + 30):
            log.append(b"value %d" % i * 5, key=b"%d" % (i % 7))
    store.partition("t").delete_records(first + 12)
    store.sweep()
    store.flush()
    store.partition("u").append(b"not flushed")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Seen]]:
    """By state: the directory, and what is in it."""
    root = tmp_path_factory.mktemp("stores")
    live, found = root / "live", {}
    with segstore.open(live, config=QUIET) as store:
        for topic, config in TOPICS.items():
            store.create_topic(topic, config=config)
        fill(store, 0)
        held = seen(store)
    found["clean"] = killed(live, root / "clean"), held
    with segstore.open(live, config=QUIET) as store:
        fill(store, 31)
        found["killed"] = killed(live, root / "killed"), seen(store)
    return found


@pytest.fixture(params=STATES)
def state(request: pytest.FixtureRequest, stores: dict[str, tuple[Path, Seen]], store_dir: Path) -> Any:
    """A copy of one of them, and what is in it."""
    source, held = stores[request.param]
    as_the_same(Path(shutil.copytree(source, store_dir)))
    return store_dir, held


def segments(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.glob("*-0/*.log"))


def judge(root: Path, held: Seen) -> list[str]:
    """Both modes see all, nothing is lost, and `check` is silent after: what the open told."""
    there, before = segments(root), stamps(root)
    with segstore.open(root, mode="r") as store:
        assert seen(store) == held
    assert stamps(root) == before
    with segstore.open(root, config=QUIET) as store:
        assert seen(store) == held
        told = [done.reason for done in store.recovered] + [str(done) for done in store.mended]
        for topic, (_, end, _) in held.items():
            assert store.partition(topic).append(b"next", key=b"k") == end
    assert set(segments(root)) >= set(there)
    assert segstore.check(root) == []
    with segstore.open(root, mode="r") as store:
        assert [s[:2] for s in seen(store).values()] == [(start, end + 1) for start, end, _ in held.values()]
    return told


# --- kinds of damage ------------------------------------------------------------------


def missing(path: Path, rng: random.Random) -> None:
    path.unlink()


def empty(path: Path, rng: random.Random) -> None:
    path.write_bytes(b"")


def cut(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def cut_anywhere(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])


def zeroed(path: Path, rng: random.Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def garbage(path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.randbytes(path.stat().st_size))


def appended(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randrange(1, 200)))


def directory(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()
    (path / "mine").write_bytes(b"kept")


def link(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.symlink_to("elsewhere")


DAMAGE = (missing, empty, cut, cut_anywhere, zeroed, garbage, appended, directory, link)


CASES = [(state, name) for state in STATES for name in FILES if (state, name) != ("killed", FILES[-1])]
"""A store that was killed has no marker."""


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda d: d.__name__)
@pytest.mark.parametrize(("state", "name"), CASES, indirect=["state"])
def test_a_damaged_small_file_hides_nothing(
    state: tuple[Path, Seen], name: str, damage: Callable[[Path, random.Random], None], rng: random.Random
) -> None:
    root, held = state
    damage(root / name, rng)
    judge(root, held)
    kept = list((root / names.OURS / names.QUARANTINE).glob("*/mine"))
    assert len(kept) == (damage is directory)


BITS = {ENDS: 30, **dict.fromkeys(FILES[1:], 12)}


def drawn(root: Path, name: str, rng: random.Random) -> Iterator[int]:
    """Bits of a file: of published ends more of those that say something."""
    size = 8 * (root / name).stat().st_size
    most = size if name != ENDS else 8 * 64 * (len(used(root)) + 2)
    for i in range(BITS[name]):
        yield rng.randrange(size if i % 10 == 9 else most)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_flipped_bit_changes_nothing(
    stores: dict[str, tuple[Path, Seen]], tmp_path: Path, kind: str, name: str, rng: random.Random
) -> None:
    source, held = stores[kind]
    for bit in drawn(source, name, rng):
        root = killed(source, tmp_path / f"bit-{bit}")
        (root / name).write_bytes(flipped(root / name, bit // 8, bit % 8))
        judge(root, held)
        shutil.rmtree(root)


def flip_one(path: Path, rng: random.Random) -> None:
    bit = rng.randrange(8 * min(path.stat().st_size, 64 * 5))
    path.write_bytes(flipped(path, bit // 8, bit % 8))


@pytest.mark.parametrize("kind", STATES)
def test_two_damaged_files_and_a_kill_after_the_repair_hide_nothing(
    stores: dict[str, tuple[Path, Seen]], tmp_path: Path, kind: str, rng: random.Random
) -> None:
    """Deleted records may come back. Both modes see the same, also after the writer was killed."""
    source, held = stores[kind]
    for n in range(4):
        root = killed(source, tmp_path / f"pair-{n}")
        for name in rng.sample(FILES if kind == "clean" else FILES[:-1], 2):
            rng.choice((*DAMAGE, *[flip_one] * 4))(root / name, rng)
        found = []
        for mode in ("r", "rw", "r", "rw"):
            with segstore.open(root, mode=mode, config=QUIET if mode == "rw" else None) as store:
                found.append(seen(store))
                if len(found) == 2:
                    dead = Path(shutil.copytree(root, tmp_path / f"dead-{n}", symlinks=True))
            root = dead if len(found) == 2 else root
        assert found == found[:1] * 4
        for topic, (start, end, kept) in held.items():
            first, last, there = found[0][topic]
            assert (first <= start, last, there[-len(kept) :]) == (True, end, kept)


# --- what is told -----------------------------------------------------------------------

TOLD: dict[str, tuple[Callable[[Path], object], str]] = {
    "a slot": (lambda r: ends_path(r).write_bytes(flipped(ends_path(r), 64 + 8, 7)), "slots are damaged"),
    "the header": (lambda r: ends_path(r).write_bytes(flipped(ends_path(r), 16, 0)), "header is damaged"),
    "the format": (lambda r: ends_path(r).write_bytes(flipped(ends_path(r), 12, 0)), "header is damaged"),
    "half of the ends": (lambda r: cut(ends_path(r), random.Random(1)), "its size is"),
    "the ends are a directory": (
        lambda r: directory(ends_path(r), random.Random(1)),
        "no regular file -> moved to",
    ),
    "a log start offset": (lambda r: line(r, names.LOG_STARTS, "u", 25), "its copy with a checksum has 0"),
    "a recovery point": (lambda r: line(r, names.RECOVERY_POINTS, "u", 99), "says 99 of u-0"),
    "no log start offsets": (lambda r: (r / names.LOG_STARTS).unlink(), "says nothing of t-0"),
    "a text that is none": (lambda r: (r / names.CLEANER_OFFSETS).write_text("0\n9\n"), "says 9 entries"),
    "the copy": (lambda r: (r / COPY).write_bytes(flipped(r / COPY, 30, 1)), "CRC mismatch"),
    "no copy": (lambda r: (r / COPY).unlink(), "missing"),
    "the marker": (lambda r: (r / names.CLEAN_SHUTDOWN).write_bytes(b"?"), "holds no number"),
}


def flipped(path: Path, at: int, bit: int) -> bytes:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    return bytes(data)


def line(root: Path, name: str, topic: str, offset: int) -> None:
    """Let a checkpoint's text say another offset of a topic."""
    held = [row.split() for row in (root / name).read_text().splitlines()[2:]]
    rows = [f"{t} {p} {offset if t == topic else at}" for t, p, at in held]
    (root / name).write_text("\n".join(["0", str(len(rows)), *rows, ""]))


@pytest.mark.parametrize("name", TOLD)
def test_damage_is_told_by_open_and_check_and_mended_by_repair(
    stores: dict[str, tuple[Path, Seen]],
    store_dir: Path,
    tmp_path: Path,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    damage, shown = TOLD[name]
    source, held = stores["clean"]
    shutil.copytree(source, store_dir)
    damage(store_dir)
    findings = segstore.check(store_dir)
    assert findings
    other = killed(store_dir, tmp_path / "other")
    with caplog.at_level(logging.WARNING, "segstore"):
        told = judge(store_dir, held)
    assert any(shown in one for one in told), told
    assert shown in caplog.text
    assert repair(other)
    assert segstore.check(other) == []
    judge(other, held)


@pytest.mark.parametrize("value", [128, 1, 2**40, 2**62])
@pytest.mark.parametrize("delay", [0, 60_000])
def test_a_flipped_log_start_unlinks_nothing(store_dir: Path, value: int, delay: int) -> None:
    """One bit of a slot's log start offset, after a clean close."""
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"segment.bytes": 2000, "file.delete.delay.ms": delay})
        for i in range(200):
            store.partition("t").append(b"v%d" % i * 20)
    before = logs(store_dir)
    data = bytearray(ends_path(store_dir).read_bytes())
    struct.pack_into("<q", data, 64 + 8, value)
    ends_path(store_dir).write_bytes(data)
    assert segstore.check(store_dir)
    for mode in ("r", "rw"):
        with segstore.open(store_dir, mode=mode) as store:
            log = store.partition("t")
            assert (log.start_offset, log.end_offset, len(values(log))) == (0, 200, 200)
            assert mode == "r" or store.mended
    assert logs(store_dir) == before
    assert segstore.check(store_dir) == []


# --- several files that say the same wrong thing ---------------------------------------------

UP = (1, 20, 2**31, 2**62)


@pytest.mark.parametrize("up", UP)
def test_a_recovery_point_without_checksum_makes_no_hole(state: tuple[Path, Seen], up: int) -> None:
    """The log's own end counts, where nothing with a checksum says otherwise."""
    root, held = state
    ends_path(root).unlink()
    (root / COPY).unlink()
    line(root, names.RECOVERY_POINTS, "u", held["u"][1] + up)
    told = judge(root, held)
    assert any("is above the log's end" in one for one in told), told


def test_below_a_log_start_without_checksum_no_file_is_touched(state: tuple[Path, Seen]) -> None:
    """Only the text says so: records are hidden, their files stay."""
    root, held = state
    ends_path(root).unlink()
    (root / COPY).unlink()
    line(root, names.LOG_STARTS, "u", 25)
    there = segments(root)
    with segstore.open(root, config=QUIET) as store:
        assert store.partition("u").start_offset == 25
        assert any("they stay" in done.reason for done in store.recovered)
    assert set(segments(root)) >= set(there)
    with segstore.open(root, mode="r") as store:
        assert seen(store)["u"][1] == held["u"][1]


def test_below_a_log_start_without_checksum_no_close_nor_kill_lets_files_go(
    state: tuple[Path, Seen], tmp_path: Path
) -> None:
    """What only a text said does not become evidence by being written with a checksum. Whoever moves the log
    start lets them go.
    """
    root, held = state
    ends_path(root).unlink()
    (root / COPY).unlink()
    line(root, names.LOG_STARTS, "u", 25)
    there = segments(root)
    for n in range(4):
        with segstore.open(root, config=QUIET) as store:
            log = store.partition("u")
            assert (log.start_offset, log.end_offset) == (25, held["u"][1])
            assert (n == 0) == any("they stay" in done.reason for done in store.recovered)
            store.sweep()
            store.flush()
            dead = killed(root, tmp_path / f"killed-{n}")
        assert set(segments(root)) >= set(there)
        root = dead if n % 2 else root
    with segstore.open(root, config=QUIET) as store:
        store.partition("u").delete_records(26)
        assert len([one for one in segments(root) if "u-0" in one]) < len([o for o in there if "u-0" in o])


def test_records_hidden_by_a_log_start_without_checksum_come_back(state: tuple[Path, Seen]) -> None:
    """As docs/reliability.md says: without the files that say it, the log starts with its first segment."""
    root, held = state
    ends_path(root).unlink()
    (root / COPY).unlink()
    line(root, names.LOG_STARTS, "u", 25)
    with segstore.open(root, config=QUIET) as store:
        assert store.partition("u").start_offset == 25
    for path in (ends_path(root), root / COPY, root / names.LOG_STARTS):
        path.unlink()
    for mode in ("r", "rw"):
        with segstore.open(root, mode=mode) as store:
            assert seen(store)["u"] == held["u"]


@pytest.mark.parametrize("value", [0, 3, 11, 42, 44, 59, 2**40])
def test_a_log_start_of_the_text_alone_is_not_believed_beside_a_whole_copy(
    state: tuple[Path, Seen], value: int
) -> None:
    """Found by the seed 733184112: "rw" began at 40 for a text that said 3, "r" at 43."""
    root, held = state
    line(root, names.LOG_STARTS, "t", value)
    told = judge(root, held)
    assert any(f"says {value} of t-0: its copy" in one for one in told), told


def test_the_copy_of_an_older_writer_is_not_believed(state: tuple[Path, Seen]) -> None:
    """A segstore of before there were copies has written the text and the published ends since."""
    root, held = state
    without_checks(root)
    line(root, names.LOG_STARTS, "t", held["t"][0] - 1)
    there = segments(root)
    start = max(held["t"][0] - 1, min(int(Path(one).stem) for one in there if "t-0" in one))
    for mode in ("r", "rw"):
        with segstore.open(root, mode=mode) as store:
            log = store.partition("t")
            assert (log.start_offset, log.end_offset) == (start, held["t"][1])
    assert set(segments(root)) >= set(there)


def test_published_ends_without_checks_are_read_and_get_checks(state: tuple[Path, Seen]) -> None:
    """As segstore wrote them before there were checks: no copy of the checkpoints either."""
    root, held = state
    without_checks(root)
    (root / COPY).unlink()
    assert not [found for found in segstore.check(root) if ".deleted" not in found.path]
    assert not any("/.segstore/" in one for one in judge(root, held))
    assert (root / COPY).exists()
    assert struct.unpack_from("<I", ends_path(root).read_bytes(), 12) != (0x53454731,)


@pytest.mark.parametrize("what", ["log start", "log end", "recovery point"])
@pytest.mark.parametrize("bit", [0, 4, 33, 62])
def test_published_ends_without_checks_are_not_believed_alone(
    stores: dict[str, tuple[Path, Seen]], store_dir: Path, what: str, bit: int
) -> None:
    source, held = stores["clean"]
    shutil.copytree(source, store_dir)
    without_checks(store_dir)
    (store_dir / COPY).unlink()
    field = {"log start": START, "log end": END, "recovery point": RECOVERY_POINT}[what]
    for slot in used(store_dir):
        at = 64 + 64 * slot + 8 * field
        ends_path(store_dir).write_bytes(flipped(ends_path(store_dir), at + bit // 8, bit % 8))
    if what == "log start":  # of t it may have become smaller: what is left of the first segment comes back
        assert segstore.check(store_dir)
        with segstore.open(store_dir, config=QUIET) as store:
            assert seen(store) | {"t": ()} == held | {"t": ()}
            assert seen(store)["t"][2][-len(held["t"][2]) :] == held["t"][2]
    else:
        judge(store_dir, held)


@pytest.mark.parametrize("kind", STATES)
def test_the_smaller_of_two_log_starts_counts_and_is_told(
    stores: dict[str, tuple[Path, Seen]], store_dir: Path, kind: str
) -> None:
    """Both have right checks."""
    source, held = stores[kind]
    shutil.copytree(source, store_dir)
    for slot in used(store_dir):
        publish(store_dir, START, held["t"][0] + 8, slot)
    with segstore.open(store_dir, mode="r") as store:
        assert {topic: seen(store)[topic] for topic in "tu"} == {topic: held[topic] for topic in "tu"}
    told = {done.partition: done.reason for done in told_by(store_dir, held)}
    assert "0 is taken" in told["u-0"]


def told_by(root: Path, held: Seen) -> Any:
    there = segments(root)
    with segstore.open(root, config=QUIET) as store:
        assert {topic: seen(store)[topic] for topic in "tu"} == {topic: held[topic] for topic in "tu"}
        told = store.recovered
    assert segments(root) == there
    return told


# --- segments below a log start ------------------------------------------------------------


def buried(root: Path) -> int:
    return len(list(root.glob("t-0/*.log.deleted")))


def test_what_a_killed_delete_has_left_is_put_aside_and_no_crash_shortens_its_delay(
    store_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, delay = Clock(), 60_000
    live = tmp_path / "live"
    with segstore.open(live, config=QUIET, clock=clock) as store:
        store.create_topic("t", config={"segment.bytes": 500, "file.delete.delay.ms": delay})
        for i in range(30):
            store.partition("t").append(b"value %d" % i * 5)
        with monkeypatch.context() as patch:
            patch.setattr(LogStart, "_remove", lambda *_: None)
            store.partition("t").delete_records(20)
        state = killed(live, tmp_path / "killed-0")
    there = len(logs(state))
    for n in (1, 2):
        with segstore.open(state, config=QUIET, clock=clock) as store:
            assert store.partition("t").start_offset == 20
            gone = buried(state)
            assert gone
            assert len(logs(state)) == there - gone
            assert (n == 2) or "put aside" in store.recovered[0].reason
            clock.now += delay // 2 - 1
            store.sweep()
            assert buried(state) == gone
            state = killed(state, tmp_path / f"killed-{n}")
    with segstore.open(state, config=QUIET, clock=clock) as store:
        clock.now += delay
        store.sweep()
        assert buried(state) == 0
        assert values(store.partition("t")) == [b"value %d" % i * 5 for i in range(20, 30)]
    assert segstore.check(state) == []


@pytest.mark.parametrize("ends", ["closes", "kills", "both"])
def test_no_close_shortens_the_delay_of_what_an_open_has_put_aside(
    store_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """It is counted from the putting aside, over opens that are each shorter than it."""
    clock, delay = Clock(), 60_000
    live = tmp_path / "live"
    with segstore.open(live, config=QUIET, clock=clock) as store:
        store.create_topic("t", config={"segment.bytes": 500, "file.delete.delay.ms": delay})
        for i in range(30):
            store.partition("t").append(b"value %d" % i * 5)
        with monkeypatch.context() as patch:
            patch.setattr(LogStart, "_remove", lambda *_: None)
            store.partition("t").delete_records(20)
        state = killed(live, tmp_path / "killed-0")
    gone = 0
    for n in range(6):
        with segstore.open(state, config=QUIET, clock=clock) as store:
            assert store.partition("t").start_offset == 20
            gone = gone or buried(state)
            assert buried(state) == gone > 0
            clock.now += delay // 6 - 1
            store.sweep()
            dead = killed(state, tmp_path / f"killed-{n + 1}")
        assert buried(state) == gone
        state = dead if ends == "kills" or (ends == "both" and n % 2) else state
    clock.now += 6
    with segstore.open(state, config=QUIET, clock=clock) as store:
        assert values(store.partition("t")) == [b"value %d" % i * 5 for i in range(20, 30)]
        assert buried(state) == 0
    assert segstore.check(state) == []


# --- the lock, and who has the file mapped -----------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"\0" * 9, b"?" * 70_000])
def test_any_content_of_the_lock_file_does(state: tuple[Path, Seen], content: bytes) -> None:
    root, held = state
    (root / names.LOCK).write_bytes(content)
    judge(root, held)


def test_a_directory_in_place_of_the_lock_says_what_to_do(state: tuple[Path, Seen]) -> None:
    root, held = state
    (root / names.LOCK).unlink()
    (root / names.LOCK).mkdir()
    with segstore.open(root, mode="r") as store:
        assert seen(store) == held
    with pytest.raises(StorageError, match="move it away, and open the store again"):
        segstore.open(root)
    assert "move it away" in str(segstore.check(root)[0])
    (root / names.LOCK).rmdir()
    judge(root, held)


@pytest.mark.parametrize("at", [12, 16, 40, 64 + 8, 64 + 16, 64 + 56], ids=str)
def test_a_reader_that_has_the_file_mapped_goes_on(
    stores: dict[str, tuple[Path, Seen]], store_dir: Path, at: int
) -> None:
    """The file is damaged in place between two writers; the second one makes it anew in place."""
    source, held = stores["clean"]
    shutil.copytree(source, store_dir)
    with segstore.open(store_dir, mode="r") as reader:
        assert seen(reader) == held
        with open(ends_path(store_dir), "r+b") as file:
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 4]))
        with segstore.open(store_dir, config=QUIET) as store:
            for topic in TOPICS:
                store.partition(topic).append(b"more", key=b"k")
            assert seen(reader) == seen(store)


def test_what_lay_in_a_file_s_place_is_kept(state: tuple[Path, Seen]) -> None:
    root, held = state
    for name in (ENDS, COPY, *names.OFFSET_CHECKPOINTS):
        if os.path.lexists(root / name):
            (root / name).unlink()
        (root / name).mkdir()
        (root / name / "mine").write_text(name)
    with segstore.open(root, config=QUIET) as store:
        assert seen(store)["u"] == held["u"]
        assert len({done.path for done in store.mended if "moved to" in done.done}) == 6
    kept = (root / names.OURS / names.QUARANTINE).glob("*/mine")
    assert len(list(kept)) == 6
