"""The disks of a replicated store: each directory is one. A disk can be broken for a while, and at the death
of the process some disks can lose what was not synced.
"""

from __future__ import annotations

import errno
import os
import random
from typing import Any

from faulty import Image
from simulation.files import SimulatedFiles

from segstore import names
from segstore.files import Files, Handle


class Disks(SimulatedFiles):
    """`broken` are names of directories below the root whose every call fails. `lose` has those which lose
    their unsynced bytes when the process dies by a power cut, by default all.
    """

    def __init__(self, root: str, seed: int) -> None:
        super().__init__(root, seed)
        self.broken: set[str] = set()
        self.lose: frozenset[str] = frozenset()

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.broken and not self.dead and not self.quiet:
            for arg in args:
                path = arg.path if isinstance(arg, Handle) else arg
                if isinstance(path, str | os.PathLike) and self.disk_of(os.fspath(path)) in self.broken:
                    raise OSError(errno.EIO, "the disk is broken", os.fspath(path))
        super().before(name, args, kwargs)

    def _account(self, name: str, args: tuple[Any, ...]) -> None:
        """Calls are counted only: the trace of a run says what else it has done."""
        self.count += 1

    @property
    def planned_cut(self) -> bool:
        """Whether the death that is planned is a power cut."""
        return self._until > 0 and self._death != "kill"

    @property
    def to_lose(self) -> list[int]:
        """The ids of the directories that `lose`."""
        return sorted(int(name.removeprefix("d")) for name in self.lose)

    def disk_of(self, path: str) -> str:
        """The directory in which a path lies."""
        return self.disk.shown(path).partition(os.sep)[0]

    def image(self, mode: str, rng: random.Random) -> Image:
        """What a cut leaves: disks that lose nothing have all."""
        cut = super().image(mode, rng)
        if not self.lose:
            return cut
        whole = super().image("all", rng)
        kept = {path: data for path, data in whole.items() if path.partition(os.sep)[0] not in self.lose}
        lost = {path: data for path, data in cut.items() if path.partition(os.sep)[0] in self.lose}
        return Image(dict(sorted({**kept, **lost}.items())))

    def _ends(self) -> Any:
        """The published ends of each directory, which a death leaves as they are."""
        found = {}
        for disk in sorted(os.listdir(self.disk.root)):
            path = os.path.join(self.disk.root, disk, names.OURS, names.ENDS)
            if os.path.exists(path):
                found[path] = Files.read_file(Files(), path)
        return found

    def bury(self) -> bool:
        left, self._left = self._left, self._left if isinstance(self._left, Image) else None
        for path, data in (left if isinstance(left, dict) and not isinstance(left, Image) else {}).items():
            with open(path, "r+b") as file:
                file.write(data)
        return super().bury()
