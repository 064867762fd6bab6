"""Promise: where no thread can be started, calls that need one raise a named error, and all others work.

CPython 3.12.0 and 3.12.1 start no thread once the main thread has come to its end, even for threads that go
on; nor does a system that is out of threads.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from stores import values

import segstore
from segstore import threads
from segstore.errors import IllegalStateError

REASON = "can't create new thread at interpreter shutdown"


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    def refused(*_: object) -> int:
        raise RuntimeError(REASON)

    monkeypatch.setattr(threads._thread, "start_new_thread", refused)
    return monkeypatch


def test_an_open_is_refused_and_the_next_one_is_done(store_dir: Path, no_threads: pytest.MonkeyPatch) -> None:
    with pytest.raises(IllegalStateError, match=f"segstore-.* can't be started: {REASON}.*before the main"):
        segstore.open(store_dir)
    no_threads.undo()
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        assert store.partition("t").append(b"x") == 0


def test_a_producer_is_refused_and_the_next_one_is_made(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        request.getfixturevalue("no_threads")
        with pytest.raises(IllegalStateError, match=f"producer.* can't be started: {REASON}.*make producers"):
            segstore.Producer(store)
        monkeypatch.undo()
        with segstore.Producer(store) as producer:
            producer.send("t", b"x")
        assert values(store.partition("t")) == [b"x"]


def test_an_open_store_sweeps_and_appends_at_length_all_the_same(
    store_dir: Path, request: pytest.FixtureRequest
) -> None:
    # Random bytes would do as well: what counts is that one append is written in several chunks.
    batch = [b"%d" % n * 1000 for n in range(5000)]
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = store.partition("t")
        request.getfixturevalue("no_threads")
        assert log.append_batch(batch, compression="zstd") == range(5000)
        store.sweep()
        log.flush()
        store.create_topic("u", 3)
        store.delete_topic("u")
        assert values(log) == batch
