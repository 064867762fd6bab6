"""Logs whose tail C appends to, and files that write half of an append."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import FailingFiles

import segstore
from segstore.storage.segment.native_tail import NativeTail


@pytest.fixture
def log(store_dir: Path) -> Iterator[segstore.PartitionLog]:
    with segstore.open(store_dir) as store:
        store.create_topic("t", 1, {"index.interval.bytes": 200})
        yield begun(store.partition("t"))


def begun(log: segstore.PartitionLog) -> segstore.PartitionLog:
    """Append the long way until C appends."""
    for n in range(2):
        assert log.append(b"before %d" % n) == n
    assert tail_of(log).c.open
    return log


def tail_of(log: segstore.PartitionLog) -> NativeTail:
    assert log._own is not None
    assert log._own.tail.may_be_open
    return log._own.tail.native


def values(log: segstore.PartitionLog, offset: int = 2) -> list[bytes | None]:
    return [record.value for record in log.read(offset, 1 << 30)]


def appends_of_c(log: segstore.PartitionLog) -> int:
    return int(tail_of(log).c.appends)


class HalfWritten(FailingFiles):
    """Files of which a failing `pwrite` has written a half."""

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            super().before(name, args, kwargs)
        except OSError:
            handle, data, position = args
            os.pwrite(handle.fd, data[: len(data) // 2], position)
            raise
