"""Fixtures of replicated stores: three directories, or two and a witness. Each test is run with followers
that fetch in threads, and with appends that write all replicas by themselves (`inline`), but for those in
which a disk hangs: such appends wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from replicated_stores import Directories


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "inline" in metafunc.fixturenames:
        hangs = metafunc.definition.get_closest_marker("hangs") is not None
        metafunc.parametrize("inline", [False] if hangs else [False, True], ids=lambda it: WAYS[it])


WAYS = {False: "by threads", True: "inline"}


@pytest.fixture
def three(tmp_path: Path, inline: bool) -> Iterator[Directories]:
    """Three directories, which must be sound and equal when the test is over."""
    yield from _judged(Directories(tmp_path, 3, inline=inline))


@pytest.fixture
def two(tmp_path: Path, inline: bool) -> Iterator[Directories]:
    """Two directories, and a witness."""
    yield from _judged(Directories(tmp_path, 2, witness=True, inline=inline))


def _judged(directories: Directories) -> Iterator[Directories]:
    try:
        yield directories
    finally:
        directories.close()
    if directories.judged:
        directories.judge()
