"""`ProducerEnding`: how a producer ends: it is closed, or its store is, or the interpreter ends.

Threads: any. A `ProducerEnding` lives as long as the producer or its sender, so that a producer that was
dropped ends as well.
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

_LAST_APPEND = 5.0  # seconds that the sender's current append may take once the store is closed
_live: LiveSet[ProducerEnding] = LiveSet()


class ProducerEnding:
    """Implements `storage.store.clients.Client`. `name` is the producer's, `store` the path of its store."""

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
        self._sender = weakref.ref(sender)  # which keeps this one while it runs
        self._held: list[ProducerBatch] = []  # when the store began to close
        self._parts_told = False
        sender.ending = self
        _live.add(self)

    # --- closing ------------------------------------------------------------------------------

    def close(self, timeout: float | None) -> None:
        """See `Producer.close`."""
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
            self._tell(held)
        self._close_parts()

    def _forked(self) -> bool:
        return isinstance(self._accumulator.refusal, ForkedError)

    def _refuse(self, error: SegstoreError) -> list[ProducerBatch]:
        """Take no more records; return the batches that wait, which are sent at once."""
        if self._accumulator.refusal is not None:
            return self._accumulator.hand_over()
        held = self._accumulator.refuse(error)
        self._routing.clear()
        return held

    def _finish(self, held: list[ProducerBatch], deadline: float | None, error: SegstoreError) -> None:
        """Wait until these batches are sent, and abort an open transaction. What is not written by
        `deadline` (monotonic seconds) fails with `error`.
        """
        sender = self._sender()
        if sender is None:
            return  # it has ended, and nothing is left
        with contextlib.suppress(KafkaTimeoutError):
            self._accumulator.incomplete.wait(held, _left(deadline))
        self._give_up(sender, held, error)
        sender.join(_left(deadline))

    def _give_up(self, sender: Sender, held: list[ProducerBatch], error: SegstoreError) -> None:
        """Fail what is not written by now."""
        if not self._accumulator.idle():
            error.__cause__ = sender.last_error(held)
            sender.abort(error)

    def _close_parts(self) -> None:
        """Close the application's serializers, partitioner and interceptors, once."""
        told, self._parts_told = self._parts_told, True
        if not told:
            self._intake.close()

    def _tell(self, held: list[ProducerBatch]) -> None:
        """Warn of records that are known not to be written; an append that takes too long may still be
        running.
        """
        self._await_append()
        found = self._count([batch for batch in held if batch.done])
        lost = sum(found.counts.values())
        if lost:
            log.warning("%s was closed before %d records were written: %s", self._name, lost, found.error)

    # --- with the store -------------------------------------------------------------------------

    def entered(self) -> bool:
        """See `Client`: the producer's callbacks run in the sender, which would wait for itself."""
        return self._accumulator.incomplete.in_callback() or threading.current_thread() is self._sender()

    def begin_to_close(self) -> None:
        """See `Client`. Failures from here on are counted."""
        self._held = self._refuse(StoreClosedError(f"{self._store} is closed"))

    def close_with_store(self, deadline: float, orderly: bool) -> None:
        """Close as `close` does; an interrupt ends the wait, and what waits then fails."""
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
        """Return which of the records that were there when it was closed are not in the log."""
        self._await_append()
        held, self._held = self._held, []
        return self._count(held)

    def _await_append(self) -> None:
        """Wait until the sender knows the outcome of its current append."""
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
        """Send nothing ever again, in a forked child."""
        self._routing.clear()
        self._accumulator.abandon(
            ForkedError(f"{self._name} belongs to the parent of process {os.getpid()}: make one there")
        )


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


# --- the end of the interpreter, and forks ------------------------------------------------------


class _InterpreterEndsError(ClientClosedError):
    """Raised to a daemon thread that goes on sending while the interpreter ends."""


def _quietly(
    hook: Callable[[threading.ExceptHookArgs], object],
) -> Callable[[threading.ExceptHookArgs], object]:
    """Return a hook that calls `threading`'s `hook`, but is silent for daemon threads that end by that
    error.
    """

    def excepthook(args: threading.ExceptHookArgs) -> object:
        ended = issubclass(args.exc_type, _InterpreterEndsError)
        return None if ended and args.thread is not None and args.thread.daemon else hook(args)

    return excepthook


def _end_all() -> None:
    """Write what was sent, as the interpreter ends. A daemon thread that goes on sending is refused; if it
    does not catch that, it ends silently, as the interpreter would have ended it.
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
