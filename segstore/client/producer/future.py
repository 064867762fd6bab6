"""`FutureRecordMetadata`: the result of `send`: the record's metadata, or the record's error. Before the
outcome is known, `is_done` is False.

Before the future's record is in a sealed batch, the future has the record's value, key and time. After that
it has the record's index in the batch. The future also refers to the object that gets the outcome, its
holder: first the partition's queue, then the batch.

The garbage collector does not track futures (`_native/future.c`), so it could not free a future in a
reference cycle. A future with a known outcome is in no cycle: a batch that is done refers to no future and no
callback, and only copies of the error that it stores are raised, so that the stored error gets no traceback
with frames of the application. A queue refers to futures until their records are in a sealed batch, at the
latest until the producer is closed or dropped.

Threads: any. Callbacks run in the sender's thread, or at once if the outcome is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from segstore._native._producer import FutureRecordMetadata as Untracked
from segstore.client.producer.lock import ProducerLock
from segstore.client.producer.record import RecordMetadata
from segstore.config import arguments
from segstore.config.options import shown
from segstore.errors import InvalidTypeError, KafkaTimeoutError, copy_of
from segstore.logger import Logger
from segstore.mutex import calls_out
from segstore.threads import Latch

if TYPE_CHECKING:
    from typing_extensions import Self

log = Logger("segstore")
_Class = TypeVar("_Class")
Callback = Callable[[Any], object]


class Holder(Protocol):
    """The object to which a future refers: first the queue of the future's record, then the record's batch.
    The batch gets the outcome.
    """

    latch: Latch | None
    callbacks: list[Any] | None
    """A flat list: future, callback, errback, future, ... It has no tuple for each record, because the
    garbage collector would have to scan the tuples.
    """

    @property
    def lock(self) -> ProducerLock:
        """Return the producer's lock."""

    @property
    def done(self) -> bool:
        """Return whether the outcome is known."""

    def error_of(self, at: Any) -> BaseException | None:
        """Return the error of the record with index `at`, or None. Called only after `done` is True."""


def untracked(native: Any) -> Callable[[type[_Class]], type[_Class]]:
    """Return a class decorator. The decorator copies the members of the class into the type `native`, whose
    objects the garbage collector does not track, and returns `native` in place of the class.
    """

    def defined(body: type[_Class]) -> type[_Class]:
        for name, value in vars(body).items():
            if name != "__dict__" and not isinstance(value, MemberDescriptorType):
                setattr(native, name, value)
        return native  # type: ignore[no-any-return]

    return defined


@untracked(Untracked)
class FutureRecordMetadata:
    """The outcome of one `send`: a `RecordMetadata` or an error."""

    __slots__ = ("_at", "_holder", "_key", "_time", "_value")
    _holder: Holder
    # The next three attributes are used while the holder is a queue. `_value` may be a Headed; `_time` is in
    # ms.
    _value: Any
    _key: bytes | None
    _time: int
    # `_at` is the record's index in the batch, if the holder is a batch.
    _at: int

    def __repr__(self) -> str:
        """Return the class's name and the outcome, which may be "pending"."""
        error = self._error()
        if error is not None:
            return f"<FutureRecordMetadata {type(error).__name__}: {error}>"
        return f"<FutureRecordMetadata {self.value or 'pending'}>"

    @property
    def is_done(self) -> bool:
        """Return whether the outcome is known."""
        return self._holder.done

    @property
    def exception(self) -> BaseException | None:
        """Return a copy of the record's error, or None if the record has not failed so far."""
        error = self._error()
        return None if error is None else copy_of(error)

    def _error(self) -> BaseException | None:
        holder = self._holder
        return holder.error_of(self._at) if holder.done else None

    @property
    def value(self) -> RecordMetadata | None:
        """Return the record's metadata; None if the record has failed or is not in the log yet."""
        return self._metadata() if self.succeeded() else None

    def succeeded(self) -> bool:
        """Return whether the record is in the log."""
        return self._holder.done and self._error() is None

    def failed(self) -> bool:
        """Return whether the record has failed."""
        return self._error() is not None

    def get(self, timeout: float | None = None) -> RecordMetadata:
        """Wait up to `timeout` seconds, and return the record's metadata. Raises InvalidTypeError,
        InvalidArgumentError, the record's error, and KafkaTimeoutError after `timeout`.
        """
        if timeout is not None:
            timeout = arguments.seconds("timeout", timeout, 0.0)
        if not self._holder.done:
            self._holder.lock.check_wait("get()")
            self._wait(timeout)
        error = self._error()
        if error is not None:
            raise copy_of(error)
        return self._metadata()

    def _metadata(self) -> RecordMetadata:
        # The holder is a batch, because the record is written.
        batch: Any = self._holder
        made: RecordMetadata = batch.metadata(self._at)
        return made

    def _wait(self, timeout: float | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            # While this thread holds the lock, no other thread completes the holder, or replaces it by a
            # batch.
            with self._holder.lock:
                holder = self._holder
                if holder.done:
                    return
                latch = holder.latch
                if latch is None:
                    latch = holder.latch = Latch()
            if not latch.wait(None if end is None else end - time.monotonic()) and not self._holder.done:
                raise KafkaTimeoutError(f"the record was not acknowledged within {timeout} s")

    # --- callbacks ----------------------------------------------------------------------

    def add_callback(self, f: Callable[..., object], *args: Any, **kwargs: Any) -> Self:
        """Call f(*args, RecordMetadata, **kwargs) when the record is in the log. Raises InvalidTypeError."""
        plain = callable(f) and not args and not kwargs
        return self._when_done(f if plain else _prepared(f, args, kwargs), None)

    def add_errback(self, f: Callable[..., object], *args: Any, **kwargs: Any) -> Self:
        """Call f(*args, exception, **kwargs) when the record has failed. Raises InvalidTypeError."""
        return self._when_done(None, _prepared(f, args, kwargs))

    def add_both(self, f: Callable[..., object], *args: Any, **kwargs: Any) -> Self:
        """Call f(*args, RecordMetadata or exception, **kwargs) when the outcome is known. Raises
        InvalidTypeError.
        """
        prepared = _prepared(f, args, kwargs)
        return self._when_done(prepared, prepared)

    def _when_done(self, callback: Callback | None, errback: Callback | None) -> Self:
        with self._holder.lock:
            holder = self._holder
            if not holder.done:
                if holder.callbacks is None:
                    holder.callbacks = []
                holder.callbacks += (self, callback, errback)
                return self
        run_callback(self, callback, errback)
        return self


def _prepared(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callback:
    if not callable(f):
        raise InvalidTypeError(f"f={shown(f)} must be a callable, not {type(f).__name__}")
    return partial(f, *args, **kwargs) if args or kwargs else f


@calls_out
def run_callback(future: FutureRecordMetadata, callback: Callback | None, errback: Callback | None) -> None:
    """Call the callback, or after a failure the errback. An exception of the called function is logged, even
    SystemExit and CancelledError, because other records wait for their outcomes. Only KeyboardInterrupt is
    raised.
    """
    # The holder is a batch, because the future is done.
    batch: Any = future._holder
    error = batch.error_of(future._at)
    try:
        if error is not None:
            if errback is not None:
                errback(copy_of(error))
        elif callback is not None:
            callback(batch.metadata(future._at))
    except KeyboardInterrupt:
        raise
    except BaseException:
        log.exception("a producer's callback failed")
