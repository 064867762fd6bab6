"""Describes a fuzzed parser."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from fuzz.mutate import ANY, MOST_BYTES, Mutator
from segstore.errors import SegstoreError
from segstore.files import Files


@dataclass(frozen=True)
class Target:
    """`run` gives an outcome in words, or raises one of `allowed`; all else that it raises is a bug.

    `seeds` gives sound inputs; `fixed` mends an input's CRCs, so that a change reaches what lies behind them.
    """

    run: Callable[[bytes], str]
    seeds: Callable[[], list[bytes]]
    mutators: tuple[Mutator, ...] = ANY
    fixed: Callable[[bytes], bytes] = bytes
    allowed: tuple[type[Exception], ...] = (SegstoreError,)

    def outcome(self, data: bytes) -> str:
        """Inputs of different outcomes are worth keeping."""
        try:
            return self.run(data)
        except self.allowed as error:
            # What the bytes themselves say is no outcome of its own.
            text = re.sub(r"-?[0-9]+", "_", re.split(r"['\"\[{]", str(error))[0])
            return f"{type(error).__name__}: {text[:60]}"

    def mutated(self, rng: Random, inputs: list[bytes]) -> bytes:
        """One of the inputs after a few changes."""
        data = rng.choice(inputs)
        for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
            data = rng.choice(self.mutators)(rng, data, rng.choice(inputs))
        data = data[:MOST_BYTES]
        return self.fixed(data) if rng.random() < 0.8 else data


class Given(Files):
    """Each file that is read whole has this content."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_file(self, path: object, limit: int = 1 << 26) -> bytes:
        return self._data

    def exists(self, path: object) -> bool:
        return True
