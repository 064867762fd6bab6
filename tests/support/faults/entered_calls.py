"""Calls that are made within a call of a log, at a chosen place of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import segstore


@pytest.fixture
def log(store_dir: Path) -> Iterator[segstore.PartitionLog]:
    with segstore.open(store_dir) as store:
        store.create_topic("t", partitions=2)
        yield store.partition("t")


@contextmanager
def entered(owner: Any, name: str, come: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Within, `come` is called once, in the midst of a call of `owner.name`: what it raised."""
    plain = getattr(owner, name)
    raised: list[BaseException] = []
    left = [1]

    def handler() -> None:
        try:
            come()
        except BaseException as error:
            raised.append(error)

    def calling(*args: Any, **kwargs: Any) -> Any:
        if left:
            left.clear()
            handler()
        return plain(*args, **kwargs)

    setattr(owner, name, calling)
    try:
        yield raised
    finally:
        setattr(owner, name, plain)
