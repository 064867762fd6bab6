"""A share consumer belongs to one thread, which a signal's handler or a wakeup may interrupt (rule Q9 of
docs/queues.md).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from consumers import LONG_MS, append
from late_signals import send_to_this_thread, sent
from share_consumers import offsets, opened, worker
from share_consumers import store as store
from waiting import PATIENCE, until

import segstore
from segstore import ShareConsumer
from segstore.errors import ClientClosedError, ConcurrentModificationError, ReentrantCallError, WakeupError

SLOW_MS = int(100 * LONG_MS)
"""An interval between polls of which no wait takes a third."""


def test_q9_a_second_thread_is_refused(store_dir: Path) -> None:
    with (
        opened(store_dir, records=0) as store,
        worker(store) as queue,
        ThreadPoolExecutor(1) as thread,
    ):
        waiting = thread.submit(queue.poll_flat, LONG_MS)
        until(lambda: queue._wait._may_wait)
        for call in (queue.poll, queue.commit_sync, queue.close, queue.subscription):
            with pytest.raises(ConcurrentModificationError):
                call()
        append(store, 1)
        assert offsets(waiting.result(PATIENCE)) == [0]


@pytest.fixture
def on_signal() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Sets what the handler of SIGUSR1 calls."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda call: signal.signal(signal.SIGUSR1, lambda *_: call())
    signal.signal(signal.SIGUSR1, before)


SENDERS: dict[str, Callable[[], None]] = {
    "within the sleep": lambda: os.kill(os.getpid(), signal.SIGUSR1),
    "just before the sleep": lambda: send_to_this_thread(signal.SIGUSR1),
}
"""What another thread does to send the signal."""


def poll_with_a_signal(store: segstore.Store, queue: ShareConsumer, send: Callable[[], None]) -> Any:
    """A poll within whose wait the signal comes. A record ends the poll if the signal does not."""

    def ring() -> None:
        until(lambda: queue._wait._may_wait)
        send()

    with sent(ring, lambda: append(store, 1)):
        return queue.poll(timeout_ms=10 * LONG_MS)


@pytest.mark.parametrize("send", SENDERS.values(), ids=SENDERS)
def test_a_handler_wakes_a_poll(
    store_dir: Path, on_signal: Callable[..., None], send: Callable[[], None]
) -> None:
    with opened(store_dir, records=0) as store, worker(store, max_poll_interval_ms=SLOW_MS) as queue:
        on_signal(queue.wakeup)
        with pytest.raises(WakeupError):
            poll_with_a_signal(store, queue, send)


@pytest.mark.parametrize("send", SENDERS.values(), ids=SENDERS)
def test_a_handler_within_a_wait_may_close(
    store_dir: Path, on_signal: Callable[..., None], send: Callable[[], None]
) -> None:
    with opened(store_dir, records=0) as store, worker(store, max_poll_interval_ms=SLOW_MS) as queue:
        on_signal(queue.close)
        assert poll_with_a_signal(store, queue, send) == {}
        with pytest.raises(ClientClosedError):
            queue.poll()


def test_a_handler_elsewhere_in_a_call_is_refused(
    store: segstore.Store, on_signal: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    with worker(store) as queue:

        def commit() -> None:
            try:
                queue.commit_sync()
            except ReentrantCallError as error:
                refused.append(str(error))

        on_signal(commit)
        beat = queue._membership.poll

        def interrupted() -> None:
            os.kill(os.getpid(), signal.SIGUSR1)
            beat()

        monkeypatch.setattr(queue._membership, "poll", interrupted)
        assert len(queue.poll_flat()) == 10
    (text,) = refused
    assert "a consumer's method was refused" in text
    assert "ShareConsumer.poll_flat()" in text


def test_a_wakeup_before_a_poll_ends_the_next_one(store: segstore.Store) -> None:
    with worker(store) as queue:
        queue.wakeup()
        with pytest.raises(WakeupError):
            queue.poll(timeout_ms=LONG_MS)
        assert len(queue.poll_flat()) == 10
