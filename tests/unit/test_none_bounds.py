"""An offset or a time that is None, as `offset_for_time` and others return it for none, is refused wherever
it is given as a bound: it never stands for all records, nor for the beginning or the end of a log.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import segstore
from segstore import Groups, OffsetAndMetadata, Reset, TopicPartition, filetree
from segstore.errors import InvalidArgumentError, InvalidTypeError

TP = TopicPartition("t", 0)
LATE = 10**13


class Given:
    """What a call may use: a log with records, none of which is as late as LATE."""

    def __init__(self, store: segstore.Store) -> None:
        store.create_topic("t")
        self.store, self.log = store, store.partition("t")
        self.log.append_batch([b"x"] * 10, timestamps=[1] * 10)
        self.none: Any = self.log.offset_for_time(LATE)
        self.files = filetree.file_tree(store, "files", None).log

    def consumer(self) -> segstore.Consumer:
        made = segstore.Consumer(self.store, group_id="g", auto_offset_reset="earliest")
        made.assign([TP])
        return made

    def transfer(self) -> object:
        with open(os.devnull, "wb") as sink:
            return self.log.transfer(sink, self.none)

    def seek_in_asyncio(self) -> object:
        async def run() -> None:
            async with segstore.AsyncConsumer(self.store, group_id="g") as consumer:
                consumer.assign([TP])
                consumer.seek(TP, self.none)

        return asyncio.run(run())


CALLS: dict[str, Callable[[Given], object]] = {
    "scan from": lambda it: it.log.scan(it.none),
    "scan to": lambda it: it.log.scan(0, it.none),
    "scan from, by name": lambda it: it.log.scan(start=it.none),
    "read": lambda it: it.log.read(it.none),
    "read_one": lambda it: it.log.read_one(it.none),
    "read_many": lambda it: it.log.read_many([it.none]),
    "read_many of None": lambda it: it.log.read_many(it.none),
    "read within times": lambda it: it.log.read(0, times=(it.none, it.none)),
    "offset_for_time": lambda it: it.log.offset_for_time(it.none),
    "transfer": lambda it: it.transfer(),
    "delete_records": lambda it: it.log.delete_records(it.none),
    "seek": lambda it: it.consumer().seek(TP, it.none),
    "seek to what was committed": lambda it: it.consumer().seek(TP, it.consumer().committed(TP)),
    "seek to an OffsetAndMetadata": lambda it: it.consumer().seek(TP, OffsetAndMetadata(it.none, "")),
    "seek in asyncio": lambda it: it.seek_in_asyncio(),
    "commit": lambda it: it.consumer().commit({TP: it.none}),
    "commit of an OffsetAndMetadata": lambda it: it.consumer().commit({TP: OffsetAndMetadata(it.none, "")}),
    "offsets_for_times": lambda it: it.consumer().offsets_for_times({TP: it.none}),
    "a group's reset to an offset": lambda it: Groups(it.store).reset("g", Reset.to_offset(it.none), [TP]),
    "a group's reset to a time": lambda it: Groups(it.store).reset("g", Reset.to_datetime(it.none), [TP]),
    "a group's shift": lambda it: Groups(it.store).reset("g", Reset.shift_by(it.none), [TP]),
    "an admin's delete_records": lambda it: segstore.AdminClient(it.store).delete_records({TP: it.none}),
    "the files as of": lambda it: filetree.snapshot(it.files, it.none),
    "the history of files from": lambda it: list(filetree.history(it.files, "/", it.none)),
    "the history of files to": lambda it: list(filetree.history(it.files, "/", end=it.none)),
}


@pytest.fixture
def given(store: segstore.Store) -> Iterator[Given]:
    it = Given(store)
    assert it.none is None
    yield it
    assert (it.log.start_offset, it.log.end_offset) == (0, 10)


@pytest.mark.parametrize("name", CALLS)
def test_none_is_no_bound(given: Given, name: str) -> None:
    with pytest.raises((InvalidTypeError, InvalidArgumentError), match="None"):
        CALLS[name](given)


def test_a_bound_that_is_left_out_is_the_log_s(given: Given) -> None:
    scans = given.log.scan(), given.log.scan(0), given.log.scan(end=10)
    assert [len(list(scan)) for scan in scans] == [10, 10, 10]
