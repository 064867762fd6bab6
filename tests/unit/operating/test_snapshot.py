"""Snapshots: gathered once a second at most, only if asked for, and by one thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import pytest
from scrapes import OPENMETRICS, samples, value
from waiting import PATIENCE, until

from segstore.errors import StorageError
from segstore.operating import snapshot as module
from segstore.operating.exposition import Encoding, encoding_for
from segstore.operating.families import gauge
from segstore.operating.snapshot import MetricsSnapshots
from segstore.storage.store.stats import Family

PLAIN = ""


class Gatherer:
    """Counts its calls; `errors` are raised first, and a call waits while `free` is not set."""

    def __init__(self) -> None:
        self.calls = 0
        self.errors: list[Exception] = []
        self.free = threading.Event()
        self.free.set()

    def __call__(self) -> list[Family]:
        self.calls += 1
        assert self.free.wait(PATIENCE)
        if self.errors:
            raise self.errors.pop()
        return [gauge("calls", "", self.calls)]


@contextmanager
def running(gather: Gatherer) -> Iterator[MetricsSnapshots]:
    made = MetricsSnapshots(gather)
    made.start()
    try:
        yield made
    finally:
        gather.free.set()
        made.close()
        made._thread.join(PATIENCE)
        assert not made._thread.is_alive()


def asked(snapshots: MetricsSnapshots, *accepts: str) -> list[Encoding]:
    """Ask for these formats together, and wait for the answers."""
    told: SimpleQueue[None] = SimpleQueue()
    found = [encoding_for(accept) for accept in accepts]
    for encoding in found:
        snapshots.ask(encoding, lambda: told.put(None))
    for _ in found:
        told.get(timeout=PATIENCE)
    return found


def calls(snapshots: MetricsSnapshots, encoding: Encoding) -> float | None:
    return value(samples(encoding.joined([snapshots.text(encoding)]).decode()), "calls")


def test_nothing_is_gathered_before_somebody_asks() -> None:
    gather = Gatherer()
    with running(gather) as snapshots:
        encoding = encoding_for(PLAIN)
        assert (snapshots.text(encoding), snapshots.is_fresh(encoding), gather.calls) == (b"", False, 0)


def test_one_snapshot_a_second_serves_all_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH", PATIENCE)
    gather = Gatherer()
    with running(gather) as snapshots:
        for _ in range(3):
            for encoding in asked(snapshots, PLAIN, OPENMETRICS, PLAIN):
                assert calls(snapshots, encoding) == 1
                assert snapshots.is_fresh(encoding)
        assert gather.calls == 1
        monkeypatch.setattr(module, "FRESH", 0.0)
        (encoding,) = asked(snapshots, PLAIN)
        assert not snapshots.is_fresh(encoding)
        assert calls(snapshots, encoding) == 2


def test_while_one_is_gathered_the_last_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH", 0.0)
    gather = Gatherer()
    with running(gather) as snapshots:
        (encoding,) = asked(snapshots, PLAIN)
        gather.free.clear()
        snapshots.ask(encoding, lambda: None)
        until(lambda: gather.calls == 2)
        age = snapshots.age
        assert calls(snapshots, encoding) == 1
        assert until(lambda: snapshots.age > age)


def test_a_failure_is_counted_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FRESH", 0.0)
    gather = Gatherer()
    with running(gather) as snapshots:
        (encoding,) = asked(snapshots, PLAIN)
        for error in (StorageError(5, "gone"), StorageError(5, "gone"), StorageError(6, "away")):
            gather.errors.append(error)
            asked(snapshots, PLAIN)
            assert calls(snapshots, encoding) == 1
        assert snapshots.failures == 3
        gather.errors.append(StorageError(6, "away"))
        asked(snapshots, PLAIN)
        asked(snapshots, PLAIN)
        assert calls(snapshots, encoding) == 6
    told = [record.getMessage().partition("StorageError: ")[2] for record in caplog.records]
    assert told == ["[Errno 5] gone", "[Errno 6] away"]
