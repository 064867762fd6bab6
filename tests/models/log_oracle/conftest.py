"""Prints a table after a run that names these tests: how often each kind of operation was played."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    total: dict[str, list[int]] = {}
    for report in terminalreporter.stats.get("passed", []):
        for kind, numbers in dict(report.user_properties).get("operations", {}).items():
            total[kind] = [a + b for a, b in zip(total.get(kind, [0, 0, 0]), numbers, strict=True)]
    if total:
        terminalreporter.section("operations on a log, and what the oracle says")
        terminalreporter.write_line(f"{'':<52}{'played':>8}{'refused':>8}{'by C':>8}")
        for kind, numbers in sorted(total.items()):
            terminalreporter.write_line(f"{kind:<52}" + "".join(f"{n:>8,}" for n in numbers))
