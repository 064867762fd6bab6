"""Fixtures of replicated stores: three directories, or two and a witness."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from replicated_stores import Directories


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Directories]:
    """Three directories, which must be sound and equal when the test is over."""
    yield from _judged(Directories(tmp_path, 3))


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Directories]:
    """Two directories, and a witness."""
    yield from _judged(Directories(tmp_path, 2, witness=True))


def _judged(directories: Directories) -> Iterator[Directories]:
    try:
        yield directories
    finally:
        directories.close()
    if directories.judged:
        directories.judge()
