"""Reports which outside judges ran, and refuses skips of those that must run. Writes nothing.

A test that needs a tool which a machine may lack is skipped, with the reason. SEGSTORE_REQUIRE names the
tools that this machine has, separated by spaces: a skip because one of them is missing is a failure.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Generator

import pytest

# A skip because of a missing tool has a reason that matches one of these.
TOOLS = {
    "java": r"\bjava\b",
    "maven": r"\b(mvn|maven)\b",
    "spark": r"spark",
    "go": r"\bgo\b",
    "node": r"\bnpm\b",
    "kcat": r"\bkcat\b",
    "strace": r"strace",
    "tmpfs": r"tmpfs",
}
REQUIRED = os.environ.get("SEGSTORE_REQUIRE", "").split()


def pytest_configure(config: pytest.Config) -> None:
    if unknown := sorted({*REQUIRED} - TOOLS.keys()):
        raise pytest.UsageError(f"SEGSTORE_REQUIRE names {unknown}; known are {sorted(TOOLS)}")


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure where its reason names a tool that is required."""
    if not report.skipped or hasattr(report, "wasxfail") or not isinstance(report.longrepr, tuple):
        return
    path, line, reason = report.longrepr
    for tool in REQUIRED:
        if re.search(TOOLS[tool], reason, re.IGNORECASE):
            report.outcome = "failed"
            report.longrepr = (
                f"{path}:{line}: {reason}\nSEGSTORE_REQUIRE does not allow that: it names {tool!r}"
            )
            return


def pytest_itemcollected(item: pytest.Item) -> None:
    fixtures = getattr(item, "fixturenames", ())
    if "spark" in fixtures:
        item.add_marker(pytest.mark.judge("spark"))
    if "s3_server" in fixtures:
        item.add_marker(pytest.mark.judge("versitygw"))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    report.judges = sorted({mark.args[0] for mark in item.iter_markers("judge")})
    refuse_skip(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which outside judges ran, so that a green run without Java can't be taken for one with it."""
    ran: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            counter = skipped if outcome == "skipped" else ran
            counter.update(getattr(report, "judges", []))
    if ran or skipped:
        terminalreporter.section("judges")
        for name in sorted(ran | skipped):
            terminalreporter.write_line(f"{name}: {ran[name]} tests ran, {skipped[name]} were skipped")
