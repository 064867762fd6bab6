"""What a seed fails with, and a short run that fails so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulation.model import Wrong
from simulation.shrink import kind, shrink

from .play import play
from .steps import Step, draw, with_beats


def failing(seed: object, like: str = "") -> Callable[[Sequence[Step]], str | None]:
    """What a run of these steps fails with; None where it does not, or not `like` that."""

    def fails(steps: Sequence[Step]) -> str | None:
        try:
            play(steps, seed)
        except Wrong as error:
            return str(error) if not like or kind(str(error)) == kind(like) else None
        return None

    return fails


def report(seed: object, n: int, most: int = 60) -> str:
    """The failure of a seed, and its steps, after `most` tries to make them fewer."""
    steps = with_beats(draw(seed, n))
    wrong = failing(seed)(steps)
    if wrong is None:
        return f"seed {seed!r} fails, and not when it is run again"
    shortest = shrink(steps, failing(seed, wrong), most)
    lines = "".join(f"    {step!r},\n" for step in shortest)
    return f"seed {seed!r}, {n} steps: {wrong}\nA short run that fails so:\n{lines}"
