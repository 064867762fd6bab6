"""CHANGELOG, CONTRIBUTING, SECURITY and the forge's CI agree with the code that they name."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import PurePath

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


# --- files that are cited ------------------------------------------------------------------------

MADE = {"first-day.md", "page.md", "readme.md", "served.md", "_segstore.c"}
"""Names of files that tests, a bench and the build make."""
_PAGE = re.compile(r"(?<![\w*{}.-])(?:[\w-]+/)*[A-Za-z][\w-]*\.md\b")
_FOLDERS = "segstore|tests|docs|tools|examples|benchmarks|notebooks|operate"
_PATH = re.compile(rf"(?<![\w*{{}}/.:-])(?:{_FOLDERS})/[\w/-]+\.(?:md|py|c|h|sh)\b")


@cache
def tracked() -> dict[str, str]:
    """Return the text files in git, by path. The test is skipped without git."""
    asked = ["git", "-C", str(REPOSITORY), "ls-files", "-z", "--cached"]
    try:
        listed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"which files are in git is not known: {error}")
    written = (".py", ".c", ".h", ".md", ".sh", ".toml", ".yml", "Makefile")
    paths = [name for name in listed.split("\0") if name.endswith(written) and (REPOSITORY / name).is_file()]
    return {path: text(path) for path in paths}


@cache
def names() -> frozenset[str]:
    """Return the names of the files in git, and of files that are made."""
    return frozenset({PurePath(each).name for each in tracked()} | MADE)


def cited(path: str, held: str) -> set[str]:
    """Return the files that a clone lacks, of those that a file cites: pages, and in code and documentation
    paths from the root. Tests have paths of trees that they make.
    """
    found = {page for page in _PAGE.findall(held) if PurePath(page).name not in names()}
    if not path.startswith("tests/"):
        known = tracked().keys() | MADE
        found |= {each for each in _PATH.findall(held) if not {each, PurePath(each).name} & known}
    return found


def test_nothing_cites_a_file_that_a_clone_lacks() -> None:
    assert len(tracked()) > 2000
    assert {path: lacking for path, held in tracked().items() if (lacking := cited(path, held))} == {}


LOST = "lost"
CITATIONS = {
    "a page": ("tests/a.py", f"see {LOST}.md, section 2", {f"{LOST}.md"}),
    "a page in a folder": ("segstore/a.py", f"docs/{LOST}.md", {f"docs/{LOST}.md"}),
    "pages that are there": ("segstore/a.py", "docs/engine.md, ../README.md", set()),
    "a module": ("tools/a.py", f"segstore/{LOST}.py", {f"segstore/{LOST}.py"}),
    "a module of a tree that a test makes": ("tests/a.py", f"segstore/{LOST}.py", set()),
}


@pytest.mark.parametrize("name", CITATIONS)
def test_a_citation_is_found(name: str) -> None:
    path, said, lacking = CITATIONS[name]
    assert cited(path, said) == lacking


def test_the_forge_runs_what_a_change_must_pass() -> None:
    assert "run: bash .ci/run\n" in text(".github/workflows/ci.yml")
