"""The studies of why a log is fast. Each study is one module. On disk: a study makes a directory below the
caller's directory, and removes it at the end, also after Ctrl-C. Threads: one thread runs a study. If a study
has child processes, they are stopped when it ends.

Each module has NAME, QUESTION (one sentence), ABOUT (what is measured, and what the study can't show), SHOWN
(the figures that a terminal's table shows), `run`, `findings` and `plot`. `findings` reads only the results
that are its argument, so that its sentences follow only from these results.
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
