"""Reduces a failing run to the shortest one that still fails, by delta debugging (Zeller: ddmin).

On disk: nothing of its own. Any part of a run is a run: a step whose objects do not exist is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from .model import Wrong
from .play import play
from .steps import draw
from .world import Step

Fails = Callable[[Sequence[Step]], "str | None"]


def failing(seed: object, like: str = "") -> Fails:
    """What a run of these steps fails with; None where it does not, or not `like` that."""

    def fails(steps: Sequence[Step]) -> str | None:
        try:
            play(steps, seed)
        except Wrong as error:
            return str(error) if not like or kind(str(error)) == kind(like) else None
        return None

    return fails


def kind(told: str) -> str:
    """What is wrong, without where: the words of a message that are neither names nor numbers."""
    words = re.findall(r"(?<![\w.'/-])[A-Za-z]{3,}(?![\w'/-])", told.partition("): ")[2] or told)
    return " ".join(words[:6])


def shrink(steps: Sequence[Step], fails: Fails, most: int = 400) -> list[Step]:
    """Steps none of which can be left out, after at most so many runs. Those given fail."""
    steps, size = _upto_failure(list(steps), fails), 0
    size = len(steps) // 2
    while size and most > 0:
        before = len(steps)
        at = 0
        while at < len(steps) and most > 0:
            tried = steps[:at] + steps[at + size :]
            most -= 1
            if fails(tried) is not None:
                steps = tried
            else:
                at += size
        if len(steps) == before or size > 1:
            size = size // 2 if size > 1 or len(steps) == before else 1
    return steps


def _upto_failure(steps: list[Step], fails: Fails) -> list[Step]:
    """What comes behind the step that failed is of no matter."""
    told = (fails(steps) or "").split()
    if told[:1] == ["step"]:
        steps = steps[: int(told[1]) + 1]
    return steps


def as_case(steps: Sequence[Step], seed: object) -> str:
    """A named case, as it is written in `cases`."""
    lines = "".join(f"        {step!r},\n" for step in steps)
    return f'    "a name": ({seed!r}, [\n{lines}    ]),\n'


def report(seed: object, n: int) -> str:
    """What a seed fails with, and the shortest run that fails so."""
    steps = draw(seed, n)
    wrong = failing(seed)(steps)
    if wrong is None:
        return f"seed {seed!r} fails, and not when it is run again"
    shortest = shrink(steps, failing(seed, wrong))
    again = failing(seed)(shortest)
    return f"seed {seed!r}, {n} steps: {wrong}\nThe shortest: {again}\n{as_case(shortest, seed)}"
