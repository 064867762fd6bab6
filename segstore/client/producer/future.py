"""`FutureRecordMetadata`: what `send` returns, and where the record was written or what failed, once that
is known.

A future has the record's value, key and time until it lies in a batch, then its place there; and the holder
that knows the outcome, first the partition's queue, then the batch.

The garbage collector does not know futures (`_native/future.c`), and would free none that lies in a
reference cycle. None does once its outcome is known: a batch that is done refers to no future and no
callback, and the error that it stores is given out as a copy, so it gets no traceback with frames of the
application. A queue refers to its futures until they lie in a batch, which closing or dropping the producer
brings about.
Threads: any. Callbacks run in the sender's thread, or at once where the outcome is known.
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
    """Has a record until its outcome is known, and then the outcome: first a queue, then a batch."""

    latch: Latch | None
    callbacks: list[Any] | None
    """A future, its callback and its errback, one behind the other: a tuple for each record would be one
    more object for the garbage collector to look at.
    """

    @property
    def lock(self) -> ProducerLock:
        """Return the producer's lock."""

    @property
    def done(self) -> bool:
        """Return whether the outcome is known."""

    def error_of(self, at: Any) -> BaseException | None:
        """Return the error of the record in this place, once it is done."""


def untracked(native: Any) -> Callable[[type[_Class]], type[_Class]]:
    """Have a class be a native type that the garbage collector does not know, with what the class defines."""

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
    # While the holder is a queue; `_value` may be a Headed, `_time` is in ms.
    _value: Any
    _key: bytes | None
    _time: int
    _at: int  # the place in the batch, afterwards

    def __repr__(self) -> str:
        """Show the outcome."""
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
        """Return a copy of the error; None as long as there is none."""
        error = self._error()
        return None if error is None else copy_of(error)

    def _error(self) -> BaseException | None:
        holder = self._holder
        return holder.error_of(self._at) if holder.done else None

    @property
    def value(self) -> RecordMetadata | None:
        """Return where the record was written; None as long as that is not known."""
        return self._metadata() if self.succeeded() else None

    def succeeded(self) -> bool:
        """Return whether the record is in the log."""
        return self._holder.done and self._error() is None

    def failed(self) -> bool:
        """Return whether the record is known not to be in the log."""
        return self._error() is not None

    def get(self, timeout: float | None = None) -> RecordMetadata:
        """Wait up to `timeout` seconds for the outcome. Raises the record's error; KafkaTimeoutError when
        the time is over; InvalidTypeError, InvalidArgumentError.
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
        batch: Any = self._holder  # what has succeeded lies in a batch
        made: RecordMetadata = batch.metadata(self._at)
        return made

    def _wait(self, timeout: float | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            # Under the lock the holder does not become done, or hand its latch on, in between.
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
        """Call f(*args, exception, **kwargs) when the record is known not to get there. Raises
        InvalidTypeError.
        """
        return self._when_done(None, _prepared(f, args, kwargs))

    def add_both(self, f: Callable[..., object], *args: Any, **kwargs: Any) -> Self:
        """Call f with whichever it is. Raises InvalidTypeError."""
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
    """Log what a callback raises, also SystemExit or CancelledError: it is not the record's outcome, and
    other records wait for theirs. An interrupt is not caught.
    """
    batch: Any = future._holder  # what is done lies in a batch
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
