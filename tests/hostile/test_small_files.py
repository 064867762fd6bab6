"""Promise: a damaged small file hides no intact log.

For each kind of file of a store that has everything, for each damage, after a clean close and after a kill,
opened to read and to write: every record is where it was, the groups' offsets and the settings too, `check`
finds it, an open for writing mends it and tells, `repair` mends it.

By default the places are drawn: two bits of each kind of file. SEGSTORE_FLIPS=<number> flips so many of each
kind. SEGSTORE_FLIPS=all tries every combination, and each bit that is used of one file of each kind, one way
each of the four (after a clean close or a kill, to read or to write), and as many again of those that are not
used, up to 100: 20,000 bits, one to two hours of a core.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from places import REPOSITORY
from small_damage import CONFIG, DAMAGES, KINDS, ROWS, Kind, flip, make, table, used_bits
from stores import records

import segstore
from segstore.coordinator.credentials import scram_credentials
from segstore.coordinator.quotas.quotas import quotas
from segstore.errors import StorageError
from segstore.storage.repair import repair

pytestmark = pytest.mark.kind("damage")

FLIPS = os.environ.get("SEGSTORE_FLIPS", "2")
ALL = FLIPS == "all"
Held = dict[str, Any]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    clean, killed = make(tmp_path_factory.mktemp("small"))
    return {"closed": clean, "killed": killed}


@pytest.fixture(scope="module")
def expected(stores: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Held]]:
    """By how the store was left and by mode."""
    found: dict[str, dict[str, Held]] = {}
    for left, source in stores.items():
        path = tmp_path_factory.mktemp("sound") / "store"
        found[left] = {}
        for mode in ("r", "rw"):
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(source, path)
            found[left][mode] = held(path, mode)
    return found


def held(path: Path, mode: str, told: list[str] | None = None) -> Held:
    """All that a store has to keep: records with their offsets, settings, the group's offsets, limits."""
    with segstore.open(path, mode, config=CONFIG) as store:
        found: Held = {}
        for name, info in store.topics().items():
            found[name] = info.config, info.topic_id, info.partition_ids
            for number in info.partition_ids:
                log = store.partition(name, number)
                rows = [(r.offset, r.key, r.value, r.timestamp) for r in records(log)]
                found[f"{name}-{number}"] = log.start_offset, log.end_offset, rows
        if mode == "rw":
            with segstore.Consumer(store, group_id="g") as consumer:
                found["g"] = [consumer.committed(segstore.TopicPartition("plain", n)) for n in (0, 1)]
        found["limits"] = quotas(store).describe()
        found["credentials"] = scram_credentials(store).all()
        if told is not None:
            told += [one.path for one in store.mended]
    return found


def files_of(path: Path, kind: Kind) -> list[Path]:
    found = sorted(path.glob(kind.pattern))
    assert found, f"the store has no {kind.name}"
    return found


def attack(
    store: Path, source: Path, which: int, kind: Kind, damage: str, left: str, mode: str, rng: random.Random,
    expected: Held, bit: int | None = None,
) -> None:  # fmt: skip
    shutil.rmtree(store, ignore_errors=True)
    shutil.copytree(source, store)
    file = files_of(store, kind)[which]
    before = file.read_bytes()
    if bit is None:
        DAMAGES[damage](file, rng)
    else:
        flip(file, bit)
    where = f"{file.relative_to(store)}, {damage}, {left}, mode {mode}, bit {bit}"
    same = file.is_file() and file.read_bytes() == before
    must = not same and not kind.may_be_silent(damage)
    found = [finding for finding in segstore.check(store) if finding.path == str(file)]
    assert found or not must, f"{where}: check finds nothing"
    if damage in kind.refused and mode == "rw":
        with pytest.raises(StorageError, match="move it away"):
            segstore.open(store)
        assert [one.path for one in repair(store)][:1] == [str(file)], where
        must = False  # to be told again
    told: list[str] = []
    kept = held(store, mode, told)
    assert {key: kept.get(key) for key in expected if kept.get(key) != expected[key]} == {}, where
    if mode == "rw":
        assert str(file) in told or not must, f"{where}: not told"
    else:
        done = repair(store)
        assert str(file) in {one.path for one in done} or not must, f"{where}: not repaired, {done}"
    if kind.lazy:
        repair(store)
    assert segstore.check(store) == [], where
    assert held(store, "r").keys() == expected.keys() - {"g"}, where


def ways(kind: Kind) -> list[tuple[str, str]]:
    return list(itertools.product(kind.left, ("r", "rw")))


def combinations(kind: Kind, rng: random.Random) -> Iterator[tuple[str, str]]:
    yield from ways(kind) if ALL else rng.sample(ways(kind), 1)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ROWS)
def test_a_damaged_file_hides_nothing(
    tmp_path: Path, name: str, damage: str, stores: dict[str, Path], expected: dict[str, dict[str, Held]],
    rng: random.Random,
) -> None:  # fmt: skip
    kind = ROWS[name]
    for left, mode in combinations(kind, rng):
        every = range(len(files_of(stores[left], kind)))
        for which in every if ALL else rng.sample(every, 1):
            args = which, kind, damage, left, mode, rng, expected[left][mode]
            attack(tmp_path / "store", stores[left], *args)


@pytest.mark.parametrize("name", [kind.name for kind in KINDS if not kind.name.startswith("`.index")])
def test_flipped_bits(
    tmp_path: Path, name: str, stores: dict[str, Path], expected: dict[str, dict[str, Held]],
    rng: random.Random,
) -> None:  # fmt: skip
    """Of one file of each kind, each bit in one way that is drawn; see above for how many."""
    kind = ROWS[name]
    files = {left: files_of(stores[left], kind) for left in kind.left}
    which = rng.randrange(min(map(len, files.values())))
    for bit in bits_of(files[kind.left[0]][which], rng):
        left, mode = rng.choice(ways(kind))
        if bit < files[left][which].stat().st_size * 8:
            args = which, kind, "flipped", left, mode, rng, expected[left][mode]
            attack(tmp_path / "store", stores[left], *args, bit=bit)


def bits_of(path: Path, rng: random.Random) -> list[int]:
    used = used_bits(path)
    if not ALL:
        return rng.sample(used, min(len(used), int(FLIPS)))
    unused = sorted(set(range(path.stat().st_size * 8)) - set(used))
    return used + rng.sample(unused, min(len(unused), 100))


def test_the_table_of_the_documentation_is_this_one() -> None:
    text = (REPOSITORY / "docs" / "reliability.md").read_text()
    begin, end = "<!-- small files: begin -->\n", "<!-- small files: end -->"
    assert text[text.index(begin) + len(begin) : text.index(end)] == table()
