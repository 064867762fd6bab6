"""docs/architecture.md names files of the source: each of them is there."""

from __future__ import annotations

import re

from places import REPOSITORY

PACKAGE = REPOSITORY / "segstore"
NAMED = re.compile(r"`([\w/]+\.(?:py|c|h))`")


def exists(name: str) -> bool:
    """Return whether a name is a path below the package or the repository, or ends one in the package."""
    return any((place / name).exists() for place in (PACKAGE, REPOSITORY)) or any(PACKAGE.rglob(name))


def test_every_file_that_it_names_is_there() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(NAMED.findall(text))
    assert len(named) > 100
    assert [name for name in sorted(named) if not exists(name)] == []


def test_a_file_that_is_gone_is_noticed() -> None:
    assert exists("storage/log/append.py")
    assert exists("append.c")
    assert not exists("storage/log/append_of_old.py")
