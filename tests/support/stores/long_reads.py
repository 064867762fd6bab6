"""Keeps reads from the short ways of C: the code that can read all logs reads each record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from segstore.storage.log import point_read, range_read, read_many


def _nothing(*_: object) -> None:
    """Find nothing."""


@contextmanager
def long_reads() -> Iterator[None]:
    """Read so within."""
    short_ways = (
        *((point_read, "read_one"), (point_read, "read_batch")),
        *((range_read, "read_range"), (read_many, "_by_short_way")),
    )
    with pytest.MonkeyPatch.context() as patch:
        for module, name in short_ways:
            patch.setattr(module, name, _nothing)
        yield
