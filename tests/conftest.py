"""Fixtures and reports that all tests share.

Every test with random choices takes `rng`, whose seed is printed when the test fails; SEGSTORE_SEED=N repeats
it. Every test that writes a store takes `store_dir`, which is checked after the test.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from partitions import SHARED, Partition, broker_partitions, materialize
from places import GOLDEN
from s3_server import s3_bucket as s3_bucket
from s3_server import s3_server as s3_server
from spark import spark as spark

if TYPE_CHECKING:
    import segstore

pytest_plugins = ["surroundings", "tiers", "judges", "parallel", "counted", "memory", "cputimes", "one_copy"]

SEED = int(os.environ.get("SEGSTORE_SEED") or random.SystemRandom().randrange(1 << 32))
os.environ["SEGSTORE_SEED"] = str(SEED)  # of all processes of a run

hypothesis.settings.register_profile("segstore", deadline=None, print_blob=True)
hypothesis.settings.register_profile(
    "ci", parent=hypothesis.settings.get_profile("segstore"), derandomize=True, database=None
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") == "true" else "segstore")


def pytest_configure(config: pytest.Config) -> None:
    expected = os.environ.get("SEGSTORE_EXPECT_BUILD")
    if expected and not _native_build().startswith(expected):
        raise pytest.UsageError(f"{_native_build()} is loaded in place of the build in {expected}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    gc.disable()  # all that is collected stays: looking for garbage among it takes a sixth of the time


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.enable()
    _freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is not None and nextitem.path != item.path:
        _freeze()


def _freeze() -> None:
    """Thousands of tests, and what is told of each, are objects that stay: garbage is looked for among what
    came since, in a hundredth of the time. Hundreds of tests ask for it, and forked children copy what it
    touches.
    """
    gc.collect()
    gc.freeze()


def pytest_report_header() -> list[str]:
    lines = [f"random seed: SEGSTORE_SEED={SEED}"]
    if os.environ.get("SEGSTORE_EXPECT_BUILD"):
        lines.append(f"native build under test: {_native_build()}")
    return lines


def _native_build() -> str:
    from segstore._native import _segstore

    return str(_segstore.__file__)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and {"rng", "seed"} & set(getattr(item, "fixturenames", ())):
        report.sections.append(("random seed", _replay(item)))
    return report


def _replay(item: pytest.Item) -> str:
    tier = "" if item.config.option.tier == "all" else f"--tier {item.config.option.tier} "
    return f"replay with SEGSTORE_SEED={SEED} pytest {tier}'{item.nodeid}'"


@pytest.fixture(scope="session")
def seed() -> int:
    """For generators that outlive one test; a test on its own takes `rng`."""
    return SEED


@pytest.fixture(autouse=True)
def _dropped(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where a test lets exceptions pass that nobody can raise, as in coroutines that an interrupt left, the
    garbage goes with that test: collected in a later one, it would be that one's failure.
    """
    yield
    marks = request.node.iter_markers("filterwarnings")
    if any("PytestUnraisableExceptionWarning" in argument for mark in marks for argument in mark.args):
        gc.collect()


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


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    """An open store without topics; committed offsets get two partitions, which are made faster than 50."""
    import segstore

    with segstore.open(store_dir, config={"offsets.topic.num.partitions": 2}) as store:
        yield store


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
