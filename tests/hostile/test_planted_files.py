"""A store is opened from a directory that somebody else wrote: nothing outside of it is opened, written or
deleted, nothing hangs, nothing crashes. The tests run every operation, with every kind of thing in the place
of every file.

By default the seed draws some of the cases; SEGSTORE_FAULTS=all (`make faults`) tries them all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TypeVar

import hostile
import memory
import pytest
from faulty.counts import record

from segstore import names

pytestmark = pytest.mark.kind("damage")

FEW = {name: hostile.OPERATIONS[name] for name in hostile.FEW}
ALL = hostile.OPERATIONS
SOME = {"files": 8, "directories": 4, "odd": 8, "traced": 10}
C = TypeVar("C")


@pytest.fixture
def place() -> Iterator[Path]:
    """In memory: nothing here asks for what a disk does, and thousands of syncs take their time."""
    with memory.directory() as made:
        yield Path(made)


def some(rng: Random, kind: str, cases: list[C]) -> list[C]:
    """Those that the seed draws, or all."""
    return cases if "SEGSTORE_FAULTS" in os.environ else rng.sample(cases, min(SOME[kind], len(cases)))


def judge(
    place: Path,
    cases: list[tuple[str, Callable[[Path, Path], None]]],
    operations: dict[str, Callable[[Path], object]] = FEW,
) -> list[str]:
    """What went wrong in which case."""
    wrong = []
    for number, (case, change) in enumerate(cases):
        root, outside = hostile.made(place, number)
        change(root, outside)
        before = hostile.seen(outside)
        said = hostile.work(root, operations)
        if said:
            wrong.append(f"{case}: {said}")
        if hostile.seen(outside) != before:
            wrong.append(f"{case}: something outside was changed")
        shutil.rmtree(root.parent)
    record("hostile: entries", len(cases))
    record("hostile: operations", len(cases) * len(operations))
    return wrong


@pytest.mark.parametrize("way", hostile.WAYS)
def test_in_place_of_each_file(way: str, place: Path, rng: Random) -> None:
    if not hostile.possible(place, way):
        pytest.skip(f"{way} can't be made here")
    cases = [
        (name, lambda r, o, n=name: hostile.plant(r, o, n, way))
        for name in some(rng, "files", [*hostile.files_for(way)])
    ]
    assert judge(place, cases, ALL if way == "a link" else FEW) == []


@pytest.mark.parametrize("way", hostile.OF_DIRECTORIES)
def test_in_place_of_each_directory(way: str, place: Path, rng: Random) -> None:
    if not hostile.possible(place, way):
        pytest.skip(f"{way} can't be made here")
    cases = [
        (name, lambda r, o, n=name: hostile.plant(r, o, n, way))
        for name in some(rng, "directories", [*hostile.DIRECTORIES])
    ]
    assert judge(place, cases, ALL if way == "a link" else FEW) == []


OURS = f"{names.OURS}/{names.TOPICS}/"
SEGMENT = "t-0/00000000000000000000"
STEM = f"{'0' * 19}1-{'0' * 16}-{'0' * 16}"
ODD_FILES = {
    "settings of a topic named ..": (f"{OURS}...json", b"t"),
    "settings of a topic with a line break": (f"{OURS}a\nb.json", b"t"),
    "settings of a topic of 250 characters": (f"{OURS}{'a' * 250}.json", b"t"),
    "settings of a topic that is no UTF-8": (f"{OURS}".encode() + b"\xff\xfe.json", b"t"),
    "settings without a name": (f"{OURS}.json", b"t"),
    "a segment at 2^63": ("t-0/09223372036854775808.log", b"log"),
    "a segment at 2^63 - 1": ("t-0/09223372036854775807.log", b"log"),
    "a segment at 2^63 - 2 without bytes": ("t-0/09223372036854775806.log", b""),
    "a segment at 10^20 - 1": ("t-0/99999999999999999999.log", b"log"),
    "a snapshot at 2^63 - 1": ("t-0/09223372036854775807.snapshot", b""),
    "a swap at 2^62": ("t-0/04611686018427387904.log.swap", b"log"),
    "a swapped index alone": ("t-0/04611686018427387904.index.swap", b"\xff" * 64),
    "a cleaned segment": ("t-0/00000000000000000005.log.cleaned", b"log"),
    "an offset of 2^63 - 1 in a checkpoint": (names.LOG_STARTS, b"0\n1\nt 0 9223372036854775807\n"),
    "an offset of 2^63 in a checkpoint": (names.LOG_STARTS, b"0\n1\nt 0 9223372036854775808\n"),
    "a recovery point of 2^63 - 1": (names.RECOVERY_POINTS, b"0\n1\nt 0 9223372036854775807\n"),
    "a cleaner's offset of 2^63 - 1": (names.CLEANER_OFFSETS, b"0\n1\nt 0 9223372036854775807\n"),
    "a count of 2^63 - 1 in a checkpoint": (names.RECOVERY_POINTS, b"0\n9223372036854775807\nt 0 1\n"),
    "a topic .. in a checkpoint": (names.RECOVERY_POINTS, b"0\n1\n../outside 0 1\n"),
    "an epoch of 2^31 - 1": ("t-0/leader-epoch-checkpoint", b"0\n1\n2147483647 0\n"),
    "an epoch from 2^63 - 1 on": ("t-0/leader-epoch-checkpoint", b"0\n1\n3 9223372036854775807\n"),
    "an index of 2^31 - 1": (f"{SEGMENT}.index", b"\x7f\xff\xff\xff" * 64),
    "an index of negative numbers": (f"{SEGMENT}.index", b"\xff" * 512),
    "a time index of 2^63 - 1": (f"{SEGMENT}.timeindex", b"\x7f" + b"\xff" * 11),
    "published ends of 2^63 - 1": (f"{names.OURS}/{names.ENDS}", b"ends"),
    "a manifest of nobody's": (f"{names.OURS}/inbox/sealed/{STEM}.manifest", b"x\n"),
    "an intent of nobody's": (f"{names.OURS}/inbox/{'0' * 19}1-{'0' * 16}-{'0' * 16}.intent", b"x\n"),
    "a stager's name with a file": (f"{names.OURS}/inbox/{'b' * 32}", b"x"),
    "a partition's name with a file": ("x-0", b"x"),
    "a grave's name with a file": (f"x-0.{'0' * 32}-delete", b"x"),
}  # fmt: skip


def put(root: Path, name: str | bytes, content: bytes) -> None:
    """`t`, `log`, `ends`: what a file of that kind holds, numbers as large as can be in the last."""
    path = os.path.join(os.fsencode(root), os.fsencode(name))
    known = {b"t": root / OURS / "t.json", b"log": root / f"{SEGMENT}.log"}
    if content in known:
        content = known[content].read_bytes()
    elif content == b"ends":
        held = (root / names.OURS / names.ENDS).read_bytes()
        content = bytes(held[:64])
        for at in range(64, len(held) - 63, 64):
            key = held[at : at + 8]
            content += held[at : at + 64] if key == bytes(8) else key + (b"\xff" * 7 + b"\x7f") * 7
    with open(path, "wb") as file:
        file.write(content)


def test_odd_names_and_numbers(place: Path, rng: Random) -> None:
    cases = [
        (case, lambda r, o, a=arguments: put(r, *a))
        for case, arguments in some(rng, "odd", [*ODD_FILES.items()])
    ]
    assert judge(place, cases) == []


ODD_DIRECTORIES = (
    "..-0", ".-0", "-0", "a b-0", "a\nb-0", "t-00", "t-2147483647", "t-2147483648", "t-99999999999999999999",
    "a" * 249 + "-0", "a" * 250 + "-0", b"\xff\xfe-0", "t--1", "t-0-0", f"..-0.{'0' * 32}-delete",
)  # fmt: skip


def test_odd_names_of_directories(place: Path, rng: Random) -> None:
    def make(root: Path, name: str | bytes) -> None:
        shutil.copytree(os.fsencode(root / "t-0"), os.path.join(os.fsencode(root), os.fsencode(name)))

    cases = [(repr(name), lambda r, o, n=name: make(r, n)) for name in some(rng, "odd", [*ODD_DIRECTORIES])]
    assert judge(place, cases) == []


def test_repair_mends_nothing_behind_a_link(place: Path) -> None:
    """It read the epochs of a linked partition, and wrote them anew where they were damaged."""
    root, outside = hostile.made(place, 0)
    (root / "t-0" / names.LEADER_EPOCHS).write_text("damaged")
    hostile.plant(root, outside, "t-0", "a link")
    (root / names.CLEAN_SHUTDOWN).unlink()
    before = hostile.seen(outside)
    assert hostile.work(root, {"repair": ALL["repair"]}) == ""
    assert hostile.seen(outside) == before


TRACED = (
    "open,openat,creat,unlink,unlinkat,rename,renameat,renameat2,mkdir,mkdirat,rmdir,truncate,chmod,fchmodat"
)
UNDER_STRACE = """
import sys
from pathlib import Path
import hostile
operations = {name: hostile.OPERATIONS[name] for name in (*hostile.FEW, "copy", "stage", "delete")}
for place in sys.argv[1:]:
    print(hostile.work(Path(place), operations))
"""


@pytest.mark.judge("strace")
def test_the_kernel_is_asked_for_nothing_outside(place: Path, rng: Random) -> None:
    """By the descriptors' own paths: a link does not show in what was asked for."""
    if shutil.which("strace") is None:
        pytest.skip("there is no strace")
    places = []
    for number, name in enumerate([*some(rng, "traced", [*hostile.FILES]), *hostile.DIRECTORIES]):
        root, outside = hostile.made(place, number)
        hostile.plant(root, outside, name, "a link")
        places.append(str(root))
    command = ["strace", "-f", "-y", "-qq", "-o", str(place / "trace"), "-e", f"trace={TRACED}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [*command, sys.executable, "-c", UNDER_STRACE, *places],
        capture_output=True,
        text=True,
        env=environment,
        timeout=500,
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr
    lines = (place / "trace").read_text(errors="replace").splitlines()
    assert len(lines) > 1000
    assert [line for line in lines if "/outside" in line] == []
