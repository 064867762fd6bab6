"""Promise: a wait with a time-out ends, however late its thread gets the processor."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from segstore import threads


def used_before() -> SimpleQueue[int]:
    """A queue whose inner lock is free again."""
    queue: SimpleQueue[int] = SimpleQueue()
    with contextlib.suppress(Empty):
        queue.get_nowait()
    queue.put(1)
    queue.get()
    return queue


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [SimpleQueue, used_before])
def test_a_short_wait_for_an_item_ends(make: Callable[[], SimpleQueue[int]]) -> None:
    """CPython's own wait never ends where the thread had to give way for so long meanwhile."""
    for seconds in (1e-6, 0.0, -1.0):
        for _ in range(100):
            with pytest.raises(Empty):
                threads.take(make(), seconds)
    queue = make()
    queue.put(7)
    assert threads.take(queue, 1e-6) == 7


@pytest.mark.timeout(60)
def test_a_short_wait_for_a_latch_ends() -> None:
    for _ in range(100):
        assert not threads.Latch().wait(1e-6)


@pytest.mark.timeout(60)
def test_a_signal_handler_may_take_longer_than_the_wait() -> None:
    came: list[int] = []

    def handler(number: int, frame: object) -> None:
        came.append(number)
        time.sleep(0.2)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        timer = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
        timer.start()
        assert not threads.Latch().wait(0.15)
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert came == [signal.SIGUSR1]


def test_a_latch_may_be_opened_twice_while_one_waits() -> None:
    latch = threads.Latch()
    waiting = threading.Thread(target=latch.wait)
    waiting.start()
    while not latch._waiting:
        time.sleep(0.001)
    latch.open()
    latch.open()
    waiting.join(30)
    assert not waiting.is_alive()


def test_no_source_waits_for_a_queue_by_itself() -> None:
    """All timed waits for queues are `take`; futures of producers have a `get` of their own."""
    package = Path(threads.__file__).parent
    found = {str(p.relative_to(package)) for p in package.rglob("*.py") if ".get(timeout=" in p.read_text()}
    assert found == {"threads.py", "bench/studies/batching.py"}
