"""What a coordinator loads is what was committed, whoever leads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from segstore.coordinator.loader import committed


@pytest.mark.parametrize("field", ["source", "leader_epoch"])
def test_a_load_that_meets_an_election_is_done_again(field: str) -> None:
    source: Any = SimpleNamespace(source=object(), leader_epoch=1)
    calls: list[str] = []

    def load() -> int:
        calls.append("load")
        if len(calls) == 2:  # the first load
            setattr(source, field, 2)
        return len(calls)

    assert committed(source, lambda: calls.append("check"), load) == 4
    assert calls == ["check", "load"] * 2
