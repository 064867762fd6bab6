"""What tests of the members of a shared store have in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sharing import made, made_root

from segstore.files import Files
from segstore.storage.shared.members import Members


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Return the directory of a store that has no files but its own room."""
    return made_root(tmp_path / "store")


@pytest.fixture
def host(root: str) -> Iterator[Members]:
    """Return the members of a store as its host has them."""
    files = Files()
    members = Members(files, root, made(files, root), may_host=True)
    members.become_host()
    yield members
    members.close()
