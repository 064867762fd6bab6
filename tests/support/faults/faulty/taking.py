"""Collects what power cuts at each change of a world's disk would leave: all images, or some."""

from __future__ import annotations

import random
from typing import NamedTuple

from .cuts import MODES
from .files import Call
from .image import Image
from .ledger import Told
from .world import World


class Cut(NamedTuple):
    """An image that a cut leaves, at which call and by which kind of cut, and what had been acknowledged when
    the image was first and last drawn.
    """

    image: Image
    where: str
    first: Told
    last: Told


class Watching:
    """Draws images of a world's disk at each change of it. `cut` is the one that the world began with, if
    any.
    """

    def __init__(self, world: World, rng: random.Random, before: str = "", cut: Cut | None = None) -> None:
        self._world, self._rng, self._before, self._cut = world, rng, before, cut
        world.files.watch = self._watch

    def _watch(self, call: Call) -> None:
        self.take(f"call {len(self._world.files.calls)}, {call.name} {call.path}")

    def take(self, where: str) -> None:
        """Draw all kinds of cuts now."""
        raise NotImplementedError

    def _drawn(self, mode: str, where: str) -> Cut:
        image, told = self._world.files.image(mode, self._rng), self._world.told.freeze()
        return Cut(image, f"{self._before}{where} ({mode})", self._cut.first if self._cut else told, told)


class Collected(Watching):
    """Collects all images, each once."""

    def __init__(self, world: World, rng: random.Random) -> None:
        super().__init__(world, rng)
        self._cuts: dict[tuple[tuple[str, ...], tuple[bytes | None, ...]], Cut] = {}

    def take(self, where: str) -> None:
        for mode in MODES:
            cut = self._drawn(mode, where)
            key = tuple(cut.image), tuple(cut.image.values())
            self._cuts[key] = cut._replace(first=self._cuts[key].first) if key in self._cuts else cut

    def cuts(self) -> list[Cut]:
        self._world.files.watch = None
        return list(self._cuts.values())


class Some(Watching):
    """Collects `most` of the images, none of them twice; each change and kind has the same chance (Vitter's
    algorithm R). The other images are not made.
    """

    def __init__(
        self, world: World, rng: random.Random, most: int, before: str = "", cut: Cut | None = None
    ) -> None:
        super().__init__(world, rng, before, cut)
        self._most, self._seen = most, 0
        self.cuts: list[Cut] = []

    def take(self, where: str) -> None:
        for mode in MODES:
            self._seen += 1
            slot = self._rng.randrange(self._seen)
            if slot < self._most or len(self.cuts) < self._most:
                self._put(slot, self._drawn(mode, where))

    def _put(self, slot: int, drawn: Cut) -> None:
        known = [cut.image for cut in (*self.cuts, *([self._cut] if self._cut else ()))]
        if drawn.image not in known:
            slot = slot if len(self.cuts) == self._most else len(self.cuts)
            self.cuts[slot : slot + 1] = [drawn]
