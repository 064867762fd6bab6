"""Runs a program under the recorder, and draws what power cuts within it may leave."""

from __future__ import annotations

import atexit
import os
import pickle
import platform
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

import pytest
from faulty import MODES, Image
from places import SUPPORT, environment
from stores import tree
from waiting import PATIENCE

from . import trace
from .replay import Replay

_BOOTS = count(1)
"""Starts of the machine: no power cut keeps a boot id, so each run, a recovery too, has one of its own."""


@cache
def library() -> Path:
    """Return the recorder, compiled; skips the test if that is not possible here."""
    compiler = (os.environ.get("CC") or "cc").split()
    if not shutil.which(compiler[0]):
        pytest.skip("there is no C compiler")
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("the recorder wraps the calls of glibc")
    if os.environ.get("LD_PRELOAD"):
        pytest.skip("another library, the sanitizers' perhaps, is loaded before the recorder")
    made = Path(mkdtemp(prefix="segstore-recorder-")) / "recording.so"
    atexit.register(shutil.rmtree, made.parent, ignore_errors=True)
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-pthread"]
    sources = map(str, sorted((SUPPORT / "faults" / "recording").glob("*.c")))
    subprocess.run([*compiler, *flags, "-o", str(made), *sources], check=True)
    return made


class Cut(NamedTuple):
    """What a cut leaves: in front of the call of this number, in the trace, by this kind of cut. `where`
    names the call, `note` is the program's last note before it.
    """

    call: int
    mode: str
    image: Image
    where: str
    note: Any


class Recording:
    """A run of a program below `root`. What is there before counts as synced. The trace lies beside it."""

    def __init__(self, root: Path, seed: str) -> None:
        self.root, self.seed = root, seed
        self.trace = root.parent / f"{root.name}.trace"

    @classmethod
    def of(cls, path: Path, seed: str) -> Recording:
        """Return the recording whose trace is at `path`, where it may have been moved to."""
        found = cls(Path(next(trace.read(path)).path), seed)
        found.trace = path
        return found

    def run(self, program: str, *, recover: bool = False, refuse: int = 0, plant: str = "") -> None:
        """Run a program of `programs.PROGRAMS`, or its recovery. `refuse`: of its syncs the one of this
        number fails. `plant`: one of `planted.PLANTS`.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        self.trace.with_name(f"{self.trace.name}.guard").unlink(missing_ok=True)  # of an earlier run
        trace.begin(self.trace, self.root)
        boot = self.trace.with_suffix(".boot")
        boot.write_text(f"0b0e1de5-0000-4000-8000-{next(_BOOTS):012x}\n")
        variables = {
            **environment(),
            "LD_PRELOAD": str(library()),
            "SEGSTORE_RECORDING_ROOT": str(self.root),
            "SEGSTORE_RECORDING_TRACE": str(self.trace),
            "SEGSTORE_RECORDING_BOOT": str(boot),
            "SEGSTORE_RECORDING_REFUSE": str(refuse),
            "SEGSTORE_RECORDING_PLANT": plant,
        }
        command = [sys.executable, "-X", "faulthandler", "-m", "recorded.child"]
        command += ["recover" if recover else "run", program, str(self.root)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr[-4000:]

    # --- what was recorded ------------------------------------------------------------------------

    def events(self) -> list[trace.Event]:
        """Return the whole trace."""
        return list(trace.read(self.trace))

    def syncs(self) -> int:
        """Return how many syncs there are since the program said that it begins."""
        events = self.events()
        return sum(event.op in trace.SYNCS for event in events[_begun(events) :])

    def assert_complete(self) -> None:
        """The trace has all that was done: it leads to what lies in the directory."""
        replay = self._replay()
        for event in self.events():
            replay.apply(event)
        image, there = replay.disk.image(MODES["all"](random.Random(0), replay.disk)), tree(self.root)
        assert image.keys() == there.keys(), sorted(image.keys() ^ there.keys())
        differing = [path for path in there if image[path] != there[path]]
        assert differing == [], f"a change of these files is not in {self.trace}: {differing}"

    # --- what a cut leaves ------------------------------------------------------------------------

    def cuts(self, rng: random.Random, most: int | None = None, disks: Sequence[str] = ()) -> Iterator[Cut]:
        """Yield different states that cuts leave, at calls that are drawn: `most` of them, or all. If there
        are `disks`, which are directories, one of them is cut.
        """
        events = self.events()
        places = [(n, mode) for n in range(_begun(events), len(events) + 1) for mode in MODES]
        drawn = places if most is None or most >= len(places) else rng.sample(places, most)
        yield from self._states(events, set(drawn), disks)

    def rebuild(self, call: int, mode: str, disks: Sequence[str] = ()) -> Image:
        """Return the state that a cut has left, again."""
        return next(self._states(self.events(), {(call, mode)}, disks)).image

    def _replay(self) -> Replay:
        return Replay(str(self.root), random.Random(f"{self.seed} failed syncs"))

    def _states(
        self, events: Sequence[trace.Event], places: set[tuple[int, str]], disks: Sequence[str]
    ) -> Iterator[Cut]:
        replay, known = self._replay(), set()
        note, noted = None, -1
        for n, event in enumerate([*events, None]):
            for mode in MODES:
                if (n, mode) not in places:
                    continue
                image = _image(replay, mode, random.Random(f"{self.seed} {n} {mode}"), disks)
                if (state := (image.digest(), noted)) not in known:
                    known.add(state)
                    shown = "the end" if event is None else replay.shown(event)
                    yield Cut(n, mode, image, f"call {n}, {shown} ({mode})", note)
            if event is not None:
                replay.apply(event)
                if event.op == trace.NOTED:
                    note, noted = pickle.loads(event.first), n


def _begun(events: Sequence[trace.Event]) -> int:
    """Return the number of the first call behind the note with which cuts begin, or of the first of all."""
    notes = (n + 1 for n, e in enumerate(events) if e.op == trace.NOTED and pickle.loads(e.first)["begun"])
    before = sum(event.op in (trace.FILE_BEFORE, trace.DIRECTORY_BEFORE) for event in events)
    return next(notes, before)


def _image(replay: Replay, mode: str, rng: random.Random, disks: Sequence[str]) -> Image:
    disk = replay.disk
    cut = disk.image(MODES[mode](rng, disk))
    if not disks:
        return cut
    whole, of = disk.image(MODES["all"](rng, disk)), rng.choice(disks)
    kept = {path: data for path, data in whole.items() if path.split("/")[0] != of}
    return Image(kept | {path: data for path, data in cut.items() if path.split("/")[0] == of})
