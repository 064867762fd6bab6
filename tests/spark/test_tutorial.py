"""The tutorial of Spark works when it is followed from top to bottom."""

from __future__ import annotations

from pathlib import Path

import pages
import pytest
from places import REPOSITORY

import segstore

pytestmark = pytest.mark.judge("spark")


def test_the_tutorial_works_when_it_is_followed(tmp_path: Path) -> None:
    pages.walk(REPOSITORY / "docs" / "tutorials" / "spark.md", tmp_path)
    assert segstore.check(tmp_path / "flights-log") == []
