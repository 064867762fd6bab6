"""Each kind of append beside a plain one, or another kind that it is compared with (`append_kinds`): ratios
of medians in the same round.

All kinds are measured by turns in one run, of which each bench here tells one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import Results, keep_ratios

from benchmarks.append_kinds import CALLS, KINDS, P50, RATIO, measured
from segstore.bench import Figure

ROUNDS = 5
Figures = dict[str, dict[str, Figure]]
COMPARED = [name for name, kind in KINDS.items() if kind.of != name]


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    directory: Path = tmp_path_factory.mktemp("append")
    return measured(list(KINDS), ROUNDS, CALLS, str(directory), lambda _: None)


@pytest.mark.parametrize("name", COMPARED)
def test_append(benchmark: Any, results: Results, figures: Figures, name: str) -> None:
    found, kind = figures[name], KINDS[name]
    benchmark.pedantic(lambda: None, rounds=1)
    keep_ratios(benchmark, [1 / ratio for ratio in found[RATIO].runs])
    theirs = figures[kind.of][P50].median
    note = f"of {kind.of!r}; {found[P50].median:.1f} to {theirs:.1f} us"
    wanted = float("inf") if kind.wanted is None else kind.wanted
    results.add(benchmark, f"append: {name}", found[RATIO].median, wanted, "x", False, note)
