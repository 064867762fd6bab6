"""The files of a simulated store: `FaultyFiles` that keep an account of all calls, and die.

A death, by kill or by power cut, is in the process itself: from that call on every call raises `Killed`, so
that nothing which is done on the way out changes a byte. `bury` puts in place what the death has left.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import zlib
from collections import Counter
from typing import Any

from faults import NAMES, READS, SYNCS, WRITES
from faulty import CHANGES, FaultyFiles, Image

from segstore import names
from segstore.files import Files, Handle

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
GROUPS = {
    "write": WRITES | {"truncate", "allocate"},
    "sync": SYNCS,
    "name": NAMES | {"open"},
    "read": READS | {"listdir"},
    "any": CHANGES,
}
_UNTOLD = (names.LOCK, "owner")


class Killed(BaseException):
    """The process is dead: nobody may catch it."""


class SimulatedFiles(FaultyFiles):
    """`plan` lets one call to come fail, or be the last. `digest` is of all calls so far."""

    deaths_of_the_process = (Killed,)

    def __init__(self, root: str, seed: int) -> None:
        super().__init__(root, seed)
        self.digest = self.count = 0
        self._outside = len(os.path.dirname(self.disk.root))  # of each path, what differs from run to run
        self.deaths = random.Random(f"death {seed}")
        self._left: bytes | Image | None = None
        self._death, self._until = "", 0
        self._locks: list[Handle] = []
        self.failures, self.impaired = 0, False
        self._touched: Counter[str] = Counter()  # by path, up to where the suffix of a segment's file begins
        self.watch = lambda call: self._touched.update((call.path.partition(".")[0],))
        self.quiet = False  # the judge looks: no fault is for it

    def changes_of(self, path: str) -> int:
        """How often one of a segment's files was changed."""
        return self._touched[self.disk.shown(path).partition(".")[0]]

    # --- plans ----------------------------------------------------------------------------------

    def plan(self, group: str, nth: int, error: str) -> None:
        """Let the `nth` call (1: the next) of a group fail with an error by its name."""
        part = 0.5 if nth % 2 else 0.0
        mode = "sectors" if nth % 3 else "none"
        self.fail(nth, getattr(errno, error), names=GROUPS[group], part=part, sync_mode=mode)

    def plan_death(self, nth: int, mode: str) -> None:
        """Let the `nth` change be the last that is begun: mode "kill", or that of a power cut."""
        self._until, self._death = nth, mode

    def forget_plans(self) -> None:
        self.arm(0)
        self._until = 0

    @property
    def planned(self) -> bool:
        return bool(self._until or self._times > self.hits)

    # --- every call -----------------------------------------------------------------------------

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.dead:
            raise Killed
        if self.quiet:
            return
        self._account(name, args)
        if self._until and name in CHANGES:
            self._until -= 1
            if not self._until:
                self.die(self._death)
                raise Killed
        try:
            super().before(name, args, kwargs)
        except OSError as error:
            self.failures += 1
            # Where there is no room all goes on once there is; what else fails may leave things undone.
            self.impaired |= error.errno not in NO_ROOM or name in SYNCS
            raise

    def _account(self, name: str, args: tuple[Any, ...]) -> None:
        """Names, places and lengths: not what differs from process to process, as its id."""
        self.count += 1
        told = name
        for arg in args:
            kind = type(arg)
            if kind is Handle:
                told += " " + arg.path[self._outside :]
            elif kind is str:
                told += " " + arg[self._outside :]
            elif kind is int and name != "set_modified":  # which is by the machine's clock
                told += f" {arg}"
            elif kind in (bytes, bytearray, memoryview):
                told += f" {len(arg)}"
        if names.INBOX in told:
            told = name  # names of manifests, and their lengths, tell of when files were changed
        if not any(word in told for word in _UNTOLD):
            self.digest = zlib.crc32(told.encode(), self.digest)

    def listdir(self, path: Any) -> list[str]:
        return sorted(super().listdir(path))

    def directories(self, path: Any) -> list[str]:
        return sorted(super().directories(path))

    def has_passed(self, handle: Handle, ns: int) -> bool:
        """One call in the account, however many the machine's clock needs."""
        passed = super().has_passed(handle, ns)
        return passed or any(Files.has_passed(self, handle, ns) for _ in itertools.count())

    # --- death ------------------------------------------------------------------------------------

    def lock(self, path: Any) -> Handle:
        handle = super().lock(path)
        self._locks.append(handle)
        return handle

    def let_go(self) -> None:
        """Locks go with their process."""
        while self._locks:
            self._locks.pop().close()

    def die(self, mode: str) -> None:
        """From now on nothing is done any more."""
        if not self.dead:
            self._left = self._ends() if mode == "kill" else self.image(mode, self.deaths)
            self.dead = True

    def bury(self) -> bool:
        """When the store is gone: put in place what its death has left. Whether it was a power cut; then
        these files are of no more use.
        """
        self.let_go()
        left = self._left
        if isinstance(left, Image):
            left.write(self.disk.root)
            return True
        if left is not None:  # what was stored through the mapping since did not happen
            with open(os.path.join(self.disk.root, names.OURS, names.ENDS), "r+b") as file:
                file.write(left)
        self.dead, self._left = False, None
        return False

    def _ends(self) -> bytes | None:
        path = os.path.join(self.disk.root, names.OURS, names.ENDS)
        return Files.read_file(Files(), path) if os.path.exists(path) else None
