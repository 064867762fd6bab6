"""Fixtures and reports that all tests share.

Every test that draws at random takes `rng`, whose seed is printed when it fails; SEGSTORE_SEED=N replays
it. Every test that writes a store takes `store_dir`, which is checked when the test is over.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from partitions import GOLDEN, SHARED, Partition, broker_partitions, materialize
from spark import spark as spark

SEED = int(os.environ.get("SEGSTORE_SEED") or random.SystemRandom().randrange(1 << 32))

hypothesis.settings.register_profile("segstore", deadline=None, print_blob=True)
hypothesis.settings.register_profile(
    "ci", parent=hypothesis.settings.get_profile("segstore"), derandomize=True, database=None
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") == "true" else "segstore")


def pytest_report_header() -> list[str]:
    lines = [f"random seed: SEGSTORE_SEED={SEED}"]
    expected = os.environ.get("SEGSTORE_EXPECT_BUILD")
    if expected:
        from segstore._native import _segstore

        if not _segstore.__file__.startswith(expected):
            raise pytest.UsageError(f"{_segstore.__file__} is loaded in place of the build in {expected}")
        lines.append(f"native build under test: {_segstore.__file__}")
    return lines


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()
    if report.failed and {"rng", "seed"} & set(getattr(item, "fixturenames", ())):
        report.sections.append(("random seed", f"replay with SEGSTORE_SEED={SEED} pytest '{item.nodeid}'"))
    report.judges = [mark.args[0] for mark in item.iter_markers("judge")]


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


@pytest.fixture(scope="session")
def seed() -> int:
    """For generators that outlive one test; a test on its own takes `rng`."""
    return SEED


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """A generator of this test's own: the same for the same SEGSTORE_SEED, whatever else runs."""
    return random.Random(f"{SEED} {request.node.nodeid}")


@pytest.fixture
def store_dir(tmp_path: Path) -> Iterator[Path]:
    """Where a test writes its store. When the test is over `segstore.check` must find nothing wrong."""
    path = tmp_path / "store"
    yield path
    if path.exists():
        import segstore

        findings = list(segstore.check(path))
        assert findings == [], "\n".join(map(str, findings))


@pytest.fixture(scope="session")
def golden() -> Path:
    """tests/golden: `clean/` is a broker's log directory, `records/` what a consumer read from it."""
    return GOLDEN


@pytest.fixture(scope="session")
def kafka_segments() -> Path:
    """The full set of broker-written partitions, beside the repository."""
    if not SHARED.is_dir():
        pytest.skip(
            f"the full set of broker-written partitions is not at {SHARED.name}/ beside the repository"
        )
    return SHARED


@pytest.fixture(scope="session", params=broker_partitions(), ids=lambda source: source.id)
def broker_partition(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Partition:
    """Each partition that a broker wrote, clean and as under a running broker, one after the other."""
    return materialize(request.param, tmp_path_factory)


if sys.platform != "linux":
    raise pytest.UsageError("segstore is for Linux")
