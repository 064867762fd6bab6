"""CHANGELOG, CONTRIBUTING, SECURITY and the forge's CI agree with the code that they name."""

from __future__ import annotations

import re

import pytest
from places import REPOSITORY

from segstore.version import VERSION

PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def text(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def test_the_newest_entry_is_this_version() -> None:
    versions = re.findall(r"^## (\d+\.\d+\.\d+) - \d{4}-\d\d-\d\d$", text("CHANGELOG.md"), re.MULTILINE)
    assert versions == sorted(versions, key=lambda v: tuple(map(int, v.split("."))), reverse=True)
    assert versions[0] == VERSION


@pytest.mark.parametrize("page", PAGES)
def test_what_is_named_is_there(page: str) -> None:
    paths = set(re.findall(r"`((?:segstore|tests|docs|tools|examples|\.ci)/[\w./]*)`", text(page)))
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []
    targets = {word for run in re.findall(r"`make ([a-z -]+)`", text(page)) for word in run.split()}
    makefile = text("Makefile")
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_the_forge_runs_what_a_change_must_pass() -> None:
    assert "run: bash .ci/run\n" in text(".github/workflows/ci.yml")
