"""Gathers the counts of what tests have tried from the processes of a run, and prints them. Writes
build/counts.json.

A run of `--tier all` or `--tier test` replaces the file, one of `--tier rest` adds to it; other runs, and
those that name files, or use -k, -m and the like, write nothing. `make reliability` makes a table of the
file, and `make counts` compares the file with that table. No count makes a run of pytest fail.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from faulty import counts, report

PARTIAL = ("keyword", "markexpr", "lf", "failedfirst", "stepwise", "deselect", "maxfail", "collectonly")
WRITING = ("test", "rest", "all")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Gathered(config), "counts of what tests have tried")


class Gathered:
    """The counts of one run. A worker sends them to the controller, which prints and writes them."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.counts: counts.Counts = {}
        self.incomplete: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.incomplete.add(report.nodeid.partition("::")[0])

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._add(getattr(node, "workeroutput", {}).get("counts", {}))

    def _add(self, counted: dict[str, dict[str, int]]) -> None:
        for file, kinds in counted.items():
            self.counts.setdefault(file, Counter()).update(kinds)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["counts"] = counts.taken()
            return
        self._add(counts.taken())
        if self._whole():
            self._write(self.config.rootpath / report.WRITTEN)

    def _whole(self) -> bool:
        option = self.config.option
        named = self.config.args_source is pytest.Config.ArgsSource.ARGS
        narrowed = named or any(getattr(option, name, None) for name in PARTIAL)
        return option.tier in WRITING and not narrowed and "SEGSTORE_FAULTS" not in os.environ

    def _write(self, path: Path) -> None:
        run = report.Run({file: dict(kinds) for file, kinds in self.counts.items()}, self.incomplete)
        tiers = [self.config.option.tier]
        if tiers == ["rest"] and path.exists():
            before = report.Run.read(path)
            run, tiers = before + run, [*before.tiers, *tiers]
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(run._replace(tiers=tiers).plain(), indent=1, sort_keys=True) + "\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        tried: Counter[str] = Counter()
        for kinds in self.counts.values():
            tried.update(kinds)
        if tried:
            terminalreporter.section("tried")
        for kind, words in report.KINDS.items():
            if tried[kind]:
                terminalreporter.write_line(f"{tried[kind]:>9,}  {words}")
