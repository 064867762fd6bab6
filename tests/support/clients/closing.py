"""Stores that are closed while their clients are at work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from consumers import LONG_MS, tp
from stores import values

import segstore
from segstore import errors
from segstore.client.consumer import Consumer

SMALL = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with segstore.open(store_dir, config=SMALL) as store:
        store.create_topic("t")
        yield store


def committed(store: segstore.Store, **options: Any) -> list[bytes | None]:
    return values(store.partition("t"), isolation_level="read_committed", **options)


def committed_of(store: segstore.Store) -> int | None:
    with Consumer(store, group_id="g") as look:
        return look.committed(tp())


class Reader(threading.Thread):
    """Polls until an error of ours, or the end of an iteration, ends it; `began` once it has read all."""

    def __init__(self, consumer: Consumer, how: str) -> None:
        super().__init__(daemon=True)
        self.consumer, self.how, self.began = consumer, how, threading.Event()
        self.read: list[Any] = []
        self.ended: object = None

    def run(self) -> None:
        try:
            if self.how == "iterate":
                for record in self.consumer:
                    self.note([record])
                self.ended = "the end"
            while self.how != "iterate":
                if self.how == "poll":
                    for records in self.consumer.poll(LONG_MS).values():
                        self.note(records)
                else:
                    self.note(self.consumer.poll_arrow(LONG_MS)["offset"].to_pylist())
        except errors.SegstoreError as error:
            self.ended = error

    def note(self, records: list[Any]) -> None:
        self.read += records
        if len(self.read) >= 10:
            self.began.set()
