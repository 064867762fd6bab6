"""The bytes of a file: those that are certainly on the disk, and those written since the last sync.

`Draw` decides what a power cut leaves of the second part, as kernels and disks do it. Pages are written back
in any order and at any time, so a sector (the unit that a disk writes whole) has the content that it had at
some moment. Changes of a file's size go through the journal, in their order, independent of the data. A
sector that is inside the size and was never written reads as zeros.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

PAGE = 4096
_NOWHERE = 1 << 62


class Draw(NamedTuple):
    """The fractions of data, sizes and names that survive: 0.0 none, 1.0 all, else some, drawn by `rng`.

    `grain` is the size of a sector. With `upto`, all that was before this moment survives instead, and a part
    of the write at it.
    """

    rng: random.Random
    data: float = 0.0
    sizes: float = 0.0
    names: float = 0.0
    grain: int = 512
    ordered: bool = True  # names survive in the order in which they were changed, as through one journal
    upto: int | None = None

    def some(self, share: float, most: int) -> int:
        """Return any number from 0 to `most`; 0 where the share is 0, `most` where it is 1."""
        return int(share) * most if share in (0.0, 1.0) else self.rng.randint(0, most)


class Written(NamedTuple):
    """The bytes of one write. `grain` is how many of them are written whole: a number that is stored in a
    mapping is, while a copy may end at any byte.
    """

    moment: int
    at: int
    data: bytes
    grain: int = 1


class Sized(NamedTuple):
    """The file was cut or extended, with zeros, to `size`."""

    moment: int
    size: int


class Content:
    """The bytes of one file; `size` is its present size."""

    def __init__(self, base: bytes = b"") -> None:
        self.base, self.size = base, len(base)
        self.pending: list[Written | Sized] = []

    def write(self, moment: int, at: int, data: bytes, grain: int = 1) -> None:
        """Write bytes, which are not synced."""
        if data:
            self.pending.append(Written(moment, at, data, grain))
            self.size = max(self.size, at + len(data))

    def resize(self, moment: int, size: int) -> None:
        """Truncate the file, or extend it with zeros."""
        if size != self.size:
            self.pending.append(Sized(moment, size))
            self.size = size

    def sync(self) -> None:
        """Put everything on the disk."""
        self.base, self.pending = self._applied(self.pending), []

    def lose(self, draw: Draw) -> None:
        """Fail a sync: the disk gets some of the pending writes, and the kernel marks all of them clean."""
        self.base, self.pending = self.after(draw), []

    def after(self, draw: Draw) -> bytes:
        """Return the bytes that a power cut leaves."""
        if not self.pending:
            return self.base
        if draw.upto is not None:
            return self._applied(_until(self.pending, draw))
        if draw.data == draw.sizes == 1:
            return self._applied(self.pending)
        return self._drawn(draw)

    def _applied(self, ops: list[Written | Sized]) -> bytes:
        if not ops:
            return self.base
        image = bytearray(self.base)
        for op in ops:
            if isinstance(op, Sized):
                _resize(image, op.size)
            else:
                _put(image, op.at, op.data)
        return bytes(image)

    def _drawn(self, draw: Draw) -> bytes:
        keep = self._versions(draw)
        sizes, size = self._sizes(), len(self.base)
        journaled = draw.some(draw.sizes, len(sizes))
        image, gone, seen = bytearray(self.base), _NOWHERE, 0
        for op in self.pending:
            if isinstance(op, Sized):
                if seen < journaled:
                    _resize(image, op.size)
                elif op.size < size:
                    # The blocks were freed: later writes to this range are elsewhere on the disk.
                    gone = min(gone, -(-op.size // PAGE) * PAGE)
                size, seen = op.size, seen + 1
                continue
            for at, data in pieces(op, draw.grain):
                if at < gone and keep(at // draw.grain):
                    _put(image, at, data)
            if op.at + len(op.data) > size:
                size, seen = op.at + len(op.data), seen + 1
        _resize(image, sizes[journaled - 1] if journaled else len(self.base))
        return bytes(image)

    def _versions(self, draw: Draw) -> Callable[[int], bool]:
        """Return a function that is called for each piece in turn, and says whether its sector was written
        back after it.
        """
        count: dict[int, int] = defaultdict(int)
        for op in self.pending:
            if isinstance(op, Written):
                for at, _ in pieces(op, draw.grain):
                    count[at // draw.grain] += 1
        left = {sector: draw.some(draw.data, n) for sector, n in count.items()}

        def keep(sector: int) -> bool:
            left[sector] -= 1
            return left[sector] >= 0

        return keep

    def _sizes(self) -> list[int]:
        """Return the sizes that the file had, in order."""
        found, size = [], len(self.base)
        for op in self.pending:
            end = op.size if isinstance(op, Sized) else max(size, op.at + len(op.data))
            if isinstance(op, Sized) or end != size:
                found.append(end)
            size = end
        return found


def pieces(op: Written, grain: int) -> list[tuple[int, bytes]]:
    """Return the pieces of a write, one for each sector."""
    first = (op.at // grain + 1) * grain - op.at
    cuts = [0, *range(first, len(op.data), grain), len(op.data)]
    return [(op.at + a, op.data[a:b]) for a, b in pairwise(cuts)]


def _until(ops: list[Written | Sized], draw: Draw) -> list[Written | Sized]:
    """Return the operations before the moment `upto`, and the beginning of the write at it."""
    upto = draw.upto or 0
    torn = [op for op in ops if op.moment == upto and isinstance(op, Written)]
    parts = [op._replace(data=op.data[: draw.rng.randrange(0, len(op.data), op.grain)]) for op in torn]
    return [*(op for op in ops if op.moment < upto), *parts]


def _resize(image: bytearray, size: int) -> None:
    del image[size:]
    image.extend(bytes(size - len(image)))


def _put(image: bytearray, at: int, data: bytes) -> None:
    if at > len(image):
        image.extend(bytes(at - len(image)))
    image[at : at + len(data)] = data
