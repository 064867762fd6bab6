"""Holds docs/reliability.md to the counts of the tests that it names. Writes build/counts.json.

A row of its table is judged when all of its files have run whole: nothing deselected, skipped or failed.
A count below what the row says fails the run. `make reliability` writes the table anew, from the latest
counts of each file that ran whole. What is asked for by -k, -m, a test's name and the like judges nothing.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from faulty import counts, report

WRITTEN = Path("build/counts.json")
PARTIAL = ("keyword", "markexpr", "lf", "failedfirst", "stepwise", "deselect", "maxfail", "collectonly")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Gathered(config), "counts of what tests have tried")


class Gathered:
    """Counts of one run: in a worker sent to the controller, there judged."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.counts: counts.Counts = {}
        self.ran: set[str] = set()
        self.incomplete: set[str] = set()
        self.said: list[str] = []
        self.untold: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self.ran.add(file)
        if not report.passed:
            self.incomplete.add(file)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._add(getattr(node, "workeroutput", {}).get("counts", {}))

    def _add(self, counted: dict[str, dict[str, int]]) -> None:
        for file, kinds in counted.items():
            self.counts.setdefault(file, Counter()).update(kinds)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["counts"] = counts.taken()
            return
        self._add(counts.taken())
        if self._partial():
            return
        whole = self.ran - self.incomplete
        self._write(whole)
        document = self.config.rootpath / report.DOCUMENT
        rows = report.rows(document.read_text(encoding="utf-8")) if document.exists() else []
        told = {(row.kind, file) for row in rows for file in row.files}
        found = {(kind, file) for file in whole for kind in self.counts.get(file, {})} if rows else set()
        self.untold = [f"{kind}: {file}" for kind, file in sorted(found - told)]
        self.said = [said for row in rows if row.files <= whole and (said := row.wrong(self.counts))]
        if self.said and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _partial(self) -> bool:
        option = self.config.option
        named = any("::" in str(argument) for argument in self.config.args)
        more = "SEGSTORE_FAULTS" in os.environ  # asks for more than the default
        return named or more or any(getattr(option, name, None) for name in PARTIAL)

    def _write(self, whole: set[str]) -> None:
        path = self.config.rootpath / WRITTEN
        known = json.loads(path.read_text()) if path.exists() else {}
        known |= {file: dict(self.counts.get(file, {})) for file in whole}
        kept = {file: kinds for file, kinds in known.items() if kinds}
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.said:
            terminalreporter.section("docs/reliability.md says more than was tried", red=True)
            for said in self.said:
                terminalreporter.write_line(said)
        if self.untold:
            terminalreporter.section("counted, and not in docs/reliability.md: make reliability")
            for untold in self.untold:
                terminalreporter.write_line(untold)
