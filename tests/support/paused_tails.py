"""Keeps the tails of logs from opening: every append is then made by Python, with the append token held."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from segstore.storage.log.tail import Tail


def _stay_paused(self: Tail, *args: object, **options: object) -> None:
    """Open nothing."""


@contextmanager
def paused_tails() -> Iterator[None]:
    """Let no tail be opened within; one that is open stays so until the append token is taken."""
    with mock.patch.object(Tail, "_open", _stay_paused):
        yield
