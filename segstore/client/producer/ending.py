"""`ProducerEnding`: closes a producer when the application calls `close`, when the store is closed, or when
the interpreter exits.

Threads: any. The producer and its running sender both refer to the `ProducerEnding`, so that a producer that
is dropped while its sender runs is closed, too.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable

from segstore.client.producer.accumulator import Accumulator
from segstore.client.producer.batch import ProducerBatch
from segstore.client.producer.intake import Intake
from segstore.client.producer.partitioner import Routing
from segstore.client.producer.sender import Sender
from segstore.errors import (
    ClientClosedError,
    ForkedError,
    KafkaTimeoutError,
    SegstoreError,
    StoreClosedError,
)
from segstore.logger import Logger
from segstore.mutex import check_apart
from segstore.storage.store.clients import CLOSE_TIMEOUT, Turn, Unwritten
from segstore.threads import LiveSet

log = Logger("segstore")

# Closing waits for a running append up to this many seconds.
_LAST_APPEND = 5.0
_live: LiveSet[ProducerEnding] = LiveSet()


class ProducerEnding:
    """The producer as a `storage.store.clients.Client` of its store. `name` is the producer's name, and
    `store` is the path of the producer's store.
    """

    turn = Turn.WRITER

    def __init__(
        self,
        name: str,
        store: str,
        accumulator: Accumulator,
        routing: Routing,
        intake: Intake,
        sender: Sender,
    ) -> None:
        self._name, self._store = name, store
        self._accumulator, self._routing, self._intake = accumulator, routing, intake
        # The reference is weak, because a running sender refers to this object.
        self._sender = weakref.ref(sender)
        # These batches waited when the store began to close.
        self._held: list[ProducerBatch] = []
        self._are_parts_closed = False
        sender.ending = self
        _live.add(self)

    # --- closing ------------------------------------------------------------------------------

    def close(self, timeout: float | None) -> None:
        """Close the producer, and wait up to `timeout` seconds until the waiting records are written. A call
        within a callback does not wait.
        """
        if self._forked():
            return
        waits = not self.entered()
        if waits:
            check_apart("close()")
        held = self._refuse(ClientClosedError(f"{self._name} is closed"))
        if waits:
            error = ClientClosedError("the producer was closed before the record was written")
            deadline = None if timeout is None else time.monotonic() + timeout
            self._finish(held, deadline, error)
            self._warn(held)
        self._close_parts()

    def _forked(self) -> bool:
        return isinstance(self._accumulator.refusal, ForkedError)

    def _refuse(self, error: SegstoreError) -> list[ProducerBatch]:
        """Refuse new records, and make the waiting batches due. Return the batches without an outcome."""
        if self._accumulator.refusal is not None:
            return self._accumulator.hand_over()
        held = self._accumulator.refuse(error)
        self._routing.clear()
        return held

    def _finish(self, held: list[ProducerBatch], deadline: float | None, error: SegstoreError) -> None:
        """Wait until the batches `held` are sent, and until the sender has stopped. A sender that stops
        aborts an open transaction. Batches that are unwritten at `deadline` (monotonic seconds) fail with
        `error`.
        """
        sender = self._sender()
        if sender is None:
            return  # the sender's thread has ended, which it does only when no record is unsent
        with contextlib.suppress(KafkaTimeoutError):
            self._accumulator.incomplete.wait(held, _left(deadline))
        self._give_up(sender, held, error)
        sender.join(_left(deadline))

    def _give_up(self, sender: Sender, held: list[ProducerBatch], error: SegstoreError) -> None:
        """Fail all unwritten records with `error`."""
        if not self._accumulator.idle():
            error.__cause__ = sender.last_error(held)
            sender.abort(error)

    def _close_parts(self) -> None:
        """Close the application's serializers and interceptors, unless they were closed before."""
        are_closed, self._are_parts_closed = self._are_parts_closed, True
        if not are_closed:
            self._intake.close()

    def _warn(self, held: list[ProducerBatch]) -> None:
        """Log a warning with the number of records that were not written. Records of an append that is still
        running are not counted.
        """
        self._await_append()
        unwritten = self._count([batch for batch in held if batch.done])
        lost = sum(unwritten.counts.values())
        if lost:
            log.warning("%s was closed before %d records were written: %s", self._name, lost, unwritten.error)

    # --- with the store -------------------------------------------------------------------------

    def entered(self) -> bool:
        """Return whether this thread is the sender, or runs a callback. If so, it can't wait for the
        sender.
        """
        return self._accumulator.incomplete.in_callback() or threading.current_thread() is self._sender()

    def begin_to_close(self) -> None:
        """Refuse new records, because the store begins to close. If a waiting record fails after this call,
        `unwritten` counts it.
        """
        self._held = self._refuse(StoreClosedError(f"{self._store} is closed"))

    def close_with_store(self, deadline: float, orderly: bool) -> None:
        """Close the producer because its store is closed. If an interrupt comes, fail the unwritten records
        at once.
        """
        if self._forked():
            return
        error = StoreClosedError(f"{self._store} was closed before the record was written")
        try:
            self._finish(self._held, deadline, error)
        except BaseException:
            if (sender := self._sender()) is not None:
                self._give_up(sender, self._held, error)
            raise
        finally:
            self._close_parts()

    def unwritten(self) -> Unwritten:
        """Return how many records waited when the store began to close and are not in the log now."""
        self._await_append()
        held, self._held = self._held, []
        return self._count(held)

    def _await_append(self) -> None:
        """Wait until the sender's current append has an outcome."""
        sender, last = self._sender(), time.monotonic() + _LAST_APPEND
        while sender is not None and sender.is_sending() and time.monotonic() < last:
            time.sleep(0.001)

    def _count(self, batches: list[ProducerBatch]) -> Unwritten:
        counts: Counter[tuple[str, int]] = Counter()
        error: BaseException | None = None
        for batch in batches:
            count, failed = batch.unwritten()
            counts[batch.topic_partition] += count
            if failed is not None:
                error = failed.__cause__ or failed
        return Unwritten(+counts, error)

    def abandon(self) -> None:
        """Fail all records. Called in a forked child."""
        self._routing.clear()
        self._accumulator.abandon(
            ForkedError(f"{self._name} belongs to the parent of process {os.getpid()}: make one there")
        )


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


# --- the exit of the interpreter, and forks ------------------------------------------------------


class _InterpreterEndsError(ClientClosedError):
    """Raised in a daemon thread that continues to send while the interpreter exits."""


def _quietly(
    hook: Callable[[threading.ExceptHookArgs], object],
) -> Callable[[threading.ExceptHookArgs], object]:
    """Return a wrapper of `threading`'s `hook` that ignores _InterpreterEndsError of daemon threads."""

    def excepthook(args: threading.ExceptHookArgs) -> object:
        ended = issubclass(args.exc_type, _InterpreterEndsError)
        return None if ended and args.thread is not None and args.thread.daemon else hook(args)

    return excepthook


def _end_all() -> None:
    """Close all producers when the interpreter exits. If a daemon thread continues to send, `send` raises an
    error in that thread. If the thread does not catch the error, the thread ends silently, because the
    exiting interpreter also stops daemon threads silently.
    """
    threading.excepthook = _quietly(threading.excepthook)
    live = _live.all()
    deadline = time.monotonic() + CLOSE_TIMEOUT
    for ending in live:
        if not ending._forked():
            ending._refuse(_InterpreterEndsError(f"{ending._name}: the interpreter ends"))
    for ending in live:
        ending.close(max(deadline - time.monotonic(), 0.0))


def _forked() -> None:
    for ending in _live.all():
        ending.abandon()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_forked)
