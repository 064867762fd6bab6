"""Keeps the tails of logs from opening: every append is then made by Python, with the append token held."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from segstore.storage.log.tail import Tail

_open = Tail._open


def _stay_paused(self: Tail, *args: object, **options: object) -> None:
    """Open nothing."""


def let_tails_open(patch: pytest.MonkeyPatch, opens: bool) -> None:
    """Say whether tails are opened from now on. One that is open stays so until the append token is taken."""
    patch.setattr(Tail, "_open", _open if opens else _stay_paused)


@contextmanager
def paused_tails() -> Iterator[None]:
    """Let no tail be opened within."""
    with pytest.MonkeyPatch.context() as patch:
        let_tails_open(patch, False)
        yield
