"""What all tests of transfers share."""

from __future__ import annotations

import pytest

from segstore.storage.transfer import short_way


@pytest.fixture(autouse=True)
def enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The short way is tested also where all tests run with SEGSTORE_LONG_WAY."""
    monkeypatch.setattr(short_way, "enabled", True)
