"""Locks that a call within another call of its thread asks for: it waits within bounds, or is refused."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from entered_calls import entered
from entered_calls import log as log

import segstore
from segstore import mutex
from segstore.errors import ConcurrentModificationError, OffsetNotAvailableError, ReentrantCallError
from segstore.mutex import BoundedLock, Mutex

pytestmark = pytest.mark.kind("interrupts")


def test_a_lock_of_another_thread_is_waited_for(rng: random.Random) -> None:
    lock, order = Mutex(), []

    def other() -> None:
        with lock:
            order.append("second")

    with lock:
        thread = threading.Thread(target=other)
        thread.start()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert not lock.owned


def _bounded(kind: type[BoundedLock] = BoundedLock) -> BoundedLock:
    return kind(lambda: OffsetNotAvailableError("it is late"))


@pytest.mark.parametrize(
    ("kind", "make"), [(Mutex, lambda kind: kind()), (BoundedLock, _bounded)], ids=lambda it: it.__name__
)
@pytest.mark.parametrize("is_taken", [True, False])
def test_an_interrupt_of_the_taking_of_a_lock_leaves_it_free(kind: Any, make: Any, is_taken: bool) -> None:
    class Interrupted(kind):  # type: ignore[misc]
        def acquire(self, *args: Any, **kwargs: Any) -> bool:
            if is_taken:
                super().acquire(*args, **kwargs)
            raise KeyboardInterrupt

    lock = make(Interrupted)
    with pytest.raises(KeyboardInterrupt), lock:
        pass
    assert not lock._is_owned()


def test_a_bounded_lock_is_waited_for_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, told = _bounded(), list[object]()

    def other() -> None:
        try:
            with lock:
                told.append("taken")
        except OffsetNotAvailableError as error:
            told.append(str(error))

    def ask() -> threading.Thread:
        thread = threading.Thread(target=other)
        thread.start()
        return thread

    with lock, lock:  # its owner may take it again
        monkeypatch.setattr(mutex, "PATIENCE", 0.02)
        ask().join()
        monkeypatch.setattr(mutex, "PATIENCE", 120)
        waiting = ask()
    waiting.join()
    assert told == ["it is late", "taken"]
    assert not lock._is_owned()


def test_a_lock_that_is_held_for_who_waits_is_not_waited_for_for_ever(
    log: segstore.PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread has it, and may wait for the call that the handler came into."""
    monkeypatch.setattr(mutex, "PATIENCE", 0.05)
    other, free = log.store.partition("t", 1), threading.Event()
    held = threading.Event()

    def hold() -> None:
        with other.source.token:  # type: ignore[union-attr]
            held.set()
            free.wait(120)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(120)
    with entered(log.source.writer, "write", lambda: other.append(b"inner")) as raised:  # type: ignore[union-attr]
        log.append(b"outer")
    free.set()
    thread.join()
    assert isinstance(raised[0], ReentrantCallError)
    assert [r.value for r in log.read(0)] == [b"outer"]
    assert other.append(b"later") == 0


def test_another_thread_s_consumer_is_told_so_still(log: segstore.PartitionLog) -> None:
    consumer = segstore.Consumer(log.store, "t")
    said: list[BaseException] = []

    def poll() -> None:
        try:
            consumer.poll(0)
        except ConcurrentModificationError as error:
            said.append(error)

    thread = threading.Thread(target=poll)
    with consumer._guard:
        thread.start()
        thread.join()
    assert len(said) == 1
    consumer.close()
