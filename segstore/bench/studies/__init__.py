"""The studies of why a log is fast; each is one module.

On disk: a study makes a directory of its own below the caller's directory, and removes it at the end of a
run, also after Ctrl-C. Threads: one thread runs a study; its child processes, if it has any, are stopped with
the study.

Each module has NAME, QUESTION (one sentence), ABOUT (the measurement and its limits), SHOWN (the figures that
fit into a table on a terminal), `run`, `findings` and `plot`. `findings` reads only the cells of its
argument, so that its sentences follow from the cells alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from segstore.bench.choices import STUDIES
from segstore.bench.results import ClaimFinding, Progress, Results
from segstore.errors import InvalidArgumentError
from segstore.files import Path

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture


class Study(Protocol):
    """The names that a study's module must have."""

    NAME: str
    QUESTION: str
    ABOUT: str
    SHOWN: tuple[str, ...]

    def run(self, directory: Path, quick: bool, runs: int, progress: Progress) -> Results:
        """Measure and return the results. If `quick`, this takes seconds and little data, which is enough for
        a trial.
        """

    def findings(self, results: Results) -> list[ClaimFinding]:
        """Return a finding for each common claim, from the cells."""

    def plot(self, results: Results) -> Picture:
        """Return one picture of all results."""


def study(name: str) -> Study:
    """Return the study with this name. Raises InvalidArgumentError if there is none."""
    if name not in STUDIES:
        raise InvalidArgumentError(f"no study is named {name!r}; there are {', '.join(STUDIES)}")
    return cast("Study", import_module(f"{__name__}.{STUDIES[name]}"))
