"""Power cuts below the C: programs are recorded there, and what a cut may leave is built and opened.

Which layer of faults is for what is told in docs/reliability.md. The seed draws some calls and kinds of cuts;
SEGSTORE_FAULTS=<n> takes n times as many, SEGSTORE_FAULTS=all takes 40 times as many.
"""

from __future__ import annotations

import random
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty.counts import record
from faulty.driver import ALL, FACTOR
from recorded import rebuild, trace
from recorded.planted import PLANTS
from recorded.programs import PROGRAMS, SCENARIOS
from recorded.recording import Cut, Recording
from stores import tree

from segstore.files import Files
from segstore.storage.meta import ends_header

pytestmark = pytest.mark.kind("power cuts below C")

TIMES = 40 if ALL else FACTOR
MOST, SECOND, BEHIND = 8 * TIMES, 2, 4


@pytest.fixture
def seed(rng: random.Random) -> str:
    return f"{rng.getrandbits(40)}"


def judge(program: str, recording: Recording, cut: Cut, at: Path, note: object = None) -> None:
    """Judge what a cut has left; a failure keeps it, and tells how the same state is built again."""
    cut.image.write(at)
    record("recorded power cuts")
    try:
        PROGRAMS[program].judge(at, cut.note if note is None else note)
        shutil.rmtree(at)
    except Exception as error:
        again = shlex.join(map(str, (recording.trace, recording.seed, cut.call, cut.mode)))
        disks = ",".join(PROGRAMS[program].disks)
        raise AssertionError(
            f"{program}: cut at {cut.where}; this was left in {at}, and is built again by "
            f"`python -m recorded.rebuild {again} TARGET {disks}`"
        ) from error


def recorded(program: str, root: Path, seed: str, **how: object) -> Recording:
    recording = Recording(root, seed)
    recording.run(program, **how)
    record("recorded calls", sum(event.op != trace.NOTED for event in recording.events()))
    return recording


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_power_cut_leaves(tmp_path: Path, rng: random.Random, seed: str, program: str) -> None:
    recording = recorded(program, tmp_path / "root", seed)
    record("recorded programs")
    disks = PROGRAMS[program].disks
    for n, cut in enumerate(recording.cuts(rng, MOST, disks)):
        if PROGRAMS[program].recover is not None and n % 8 == 0:
            recovery = Recording(cut.image.write(tmp_path / f"recovered {n}"), seed)
            recovery.run(program, recover=True)
            for m, second in enumerate(recovery.cuts(rng, SECOND, disks)):
                record("recorded second cuts")
                judge(program, recovery, second, tmp_path / f"second {n}.{m}", cut.note)
        judge(program, recording, cut, tmp_path / f"cut {n}")
    recording.assert_complete()


@pytest.mark.parametrize("program", SCENARIOS)
def test_what_a_cut_behind_a_failed_sync_leaves(
    tmp_path: Path, rng: random.Random, seed: str, program: str
) -> None:
    """The kernel calls the pages clean: their bytes are lost, unless they are written again."""
    syncs = recorded(program, tmp_path / "counted", seed).syncs()
    for nth in rng.sample(range(1, syncs + 1), min(TIMES, syncs)):
        failing = recorded(program, tmp_path / f"{nth}", seed, refuse=nth)
        for n, cut in enumerate(failing.cuts(rng, BEHIND)):
            judge(program, failing, cut, tmp_path / f"{nth} cut {n}")


FOUND = {
    "a directory that is not synced after a roll": ("flush", 0),
    "bytes of a failed sync that are not written again": ("append", 1),
}
"""By planted bug the program that shows it, and which of its syncs fails."""


def failures(recording: Recording, program: str, rng: random.Random, most: int) -> Iterator[str]:
    """Yield what the judge says of states that cuts have left."""
    for n, cut in enumerate(recording.cuts(rng, most)):
        try:
            judge(program, recording, cut, recording.root.parent / f"{recording.root.name} cut {n}")
        except AssertionError as error:
            yield f"{error.__cause__}: {error}"


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found(tmp_path: Path, rng: random.Random, seed: str, plant: str) -> None:
    program, refuse = FOUND[plant]
    sound = recorded(program, tmp_path / "sound", seed, refuse=refuse)
    assert list(failures(sound, program, rng, 10)) == []
    planted = recorded(program, tmp_path / "planted", seed, refuse=refuse, plant=plant)
    assert next(failures(planted, program, rng, 40), "") != "", f"nobody has found {plant}"
    record("planted bugs found")


def boot_in(root: Path) -> int:
    """Return the start of the machine in which a store has published its ends."""
    header = ends_header.parse((root / "s" / ".segstore" / "ends").read_bytes()[: ends_header.SIZE])
    assert header is not None
    return header.boot


def test_a_recovery_comes_after_another_start_of_the_machine(tmp_path: Path, seed: str) -> None:
    """Else it believes published ends of which a cut may have left an old page: their recovery point may be
    below that of the checkpoints, which the next recovery goes by.
    """
    recording = recorded("roll", tmp_path / "root", seed)
    left = recording.rebuild(len(recording.events()), "all")
    recovery = Recording(left.write(tmp_path / "recovered"), seed)
    before = boot_in(recovery.root)
    recovery.run("roll", recover=True)
    assert len({before, boot_in(recovery.root), Files().boot()}) == 3


def test_a_state_is_built_again(tmp_path: Path, rng: random.Random, seed: str) -> None:
    """Also from a trace that was moved."""
    recording = recorded("roll", tmp_path / "root", seed)
    cuts = list(recording.cuts(rng, 5))
    moved = recording.trace.rename(tmp_path / "elsewhere")
    for cut in cuts:
        rebuild.main(str(moved), seed, str(cut.call), cut.mode, str(tmp_path / "target"))
        assert tree(tmp_path / "target") == cut.image
