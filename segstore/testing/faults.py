"""`Faults`: errors, delays and disconnections that a test injects into requests.

Threads: any may add and remove faults; the server's loop counts and applies them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from threading import Lock
from types import TracebackType
from typing import Any

from segstore.config import arguments
from segstore.config.options import did_you_mean
from segstore.errors import InvalidArgumentError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api, write_response
from segstore.server.error_answers import error_answer
from segstore.server.node import Node
from segstore.server.request import LATER, Handler, Request

from .request_log import RequestLog

Apply = Callable[[Node, Request, Handler], Any]
"""A function that answers a request in place of its handler."""
NO_ACKS = 0


class Fault:
    """A fault that applies to `times` requests of an API. The first of them is the `nth` request after the
    fault was added. `hits` counts the requests to which the fault has applied. A fault is a context manager:
    it is removed at the end of the `with` block.
    """

    def __init__(self, api: Api, apply: Apply, nth: int, times: int | None, remove: Callable[[Fault], None]):
        self.api, self.hits = api, 0
        self.apply = apply
        self._before, self._times, self._remove = nth - 1, times, remove

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the fault: later requests are handled normally. A second call does nothing."""
        self._remove(self)

    def meets(self, request: Request) -> bool:
        """Count a request, and return whether the fault applies to this request."""
        if request.api is not self.api or (self._times is not None and self.hits >= self._times):
            return False
        if self._before:
            self._before -= 1
            return False
        self.hits += 1
        return True


class Faults:
    """The faults of a broker. `error`, `delay`, `drop`, `half` and `throttle` each add a fault, and return
    it. `api` is the API's name ("Produce" or "PRODUCE"), its api key, or a `segstore.server.apis.Api`. The
    fault applies to `times` requests of this API. The first of them is the `nth` request after the call. If
    `times` is None, the fault applies until it is removed. If several faults apply to a request, the fault
    that was added first is called first, and calls the next fault in place of the handler. Invalid arguments
    raise InvalidArgumentError or InvalidTypeError.
    """

    def __init__(self) -> None:
        self._faults: tuple[Fault, ...] = ()
        self._lock = Lock()

    def error(self, api: Api | str | int, code: int | str, nth: int = 1, times: int | None = 1) -> Fault:
        """Answer the error code `code`, a name or a number, for every item of the request, and don't execute
        the request. If a Produce request expects no answer (acks=0), close its connection.
        """
        # The API is checked before `code`, so that errors come in the order of the arguments.
        known = _api(api)
        return self._add(known, partial(_fail, _code(code)), nth, times)

    def delay(self, api: Api | str | int, seconds: float, nth: int = 1, times: int | None = 1) -> Fault:
        """Execute the request at once, and answer `seconds` later."""
        return self._add(api, partial(_delay, arguments.seconds("seconds", seconds, 0.0)), nth, times)

    def drop(self, api: Api | str | int, nth: int = 1, times: int | None = 1) -> Fault:
        """Close the connection, and don't execute the request."""
        return self._add(api, _drop, nth, times)

    def half(self, api: Api | str | int, nth: int = 1, times: int | None = 1) -> Fault:
        """Execute the request, send the first half of the answer, and close the connection."""
        return self._add(api, _half, nth, times)

    def throttle(self, api: Api | str | int, ms: int, nth: int = 1, times: int | None = 1) -> Fault:
        """Execute the request. Tell the client in the answer that it has exceeded its quota, and read nothing
        from the connection for `ms` milliseconds (KIP-219).
        """
        ms = arguments.whole("ms", ms, 0, _MOST_MS)
        if "throttle_time_ms" not in structs(f"{_api(api).message}Response").__slots__:
            raise InvalidArgumentError(f"the answer of {_api(api).message} has no throttle_time_ms")
        return self._add(api, partial(_throttle, ms), nth, times)

    def clear(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._faults = ()

    def met(self, request: Request) -> Iterator[Fault]:
        """Yield the faults that apply to a request; count the request for each fault."""
        return (fault for fault in self._faults if fault.meets(request))

    def _add(self, api: Api | str | int, apply: Apply, nth: int, times: int | None) -> Fault:
        nth = arguments.whole("nth", nth, 1, _MOST_REQUESTS)
        times = None if times is None else arguments.whole("times", times, 1, _MOST_REQUESTS)
        fault = Fault(_api(api), apply, nth, times, self._remove)
        with self._lock:
            self._faults = (*self._faults, fault)
        return fault

    def _remove(self, fault: Fault) -> None:
        with self._lock:
            self._faults = tuple(each for each in self._faults if each is not fault)


_MOST_MS = (1 << 31) - 1
_MOST_REQUESTS = 1 << 62


def intercepted(handlers: Mapping[Api, Handler], faults: Faults, log: RequestLog) -> dict[Api, Handler]:
    """Return handlers that log each request, and apply its faults before they call the original handler."""
    return {api: partial(_handle, handler, faults, log) for api, handler in handlers.items()}


def _handle(handler: Handler, faults: Faults, log: RequestLog, node: Node, request: Request) -> Any:
    log.add(request)
    # If a request has a frame, the server may learn from it to answer similar requests without a handler, and
    # so without faults.
    request.frame = None
    for fault in reversed([*faults.met(request)]):
        handler = partial(_apply, fault.apply, handler)
    return handler(node, request)


def _apply(apply: Apply, handler: Handler, node: Node, request: Request) -> Any:
    return apply(node, request, handler)


def _answered(node: Node, request: Request, handler: Handler, take: Callable[[Any], None]) -> Any:
    """Call the handler. When the handler answers, at once or later, call `take(answer)` instead of sending
    the answer. Return LATER, or None if the request needs no answer.
    """
    request.answer = take
    body = handler(node, request)
    if body is None:
        return None
    if body is not LATER:
        take(body)
    return LATER


def _fail(code: int, node: Node, request: Request, handler: Handler) -> Any:
    if request.api is Api.PRODUCE and request.body.acks == NO_ACKS:
        return _drop(node, request, handler)
    return error_answer(request, code)


def _drop(node: Node, request: Request, handler: Handler) -> Any:
    request.channel.close()
    return LATER


def _delay(seconds: float, node: Node, request: Request, handler: Handler) -> Any:
    send = request.answer

    def take(body: Any) -> None:
        node.loop.later(seconds, lambda: send(body))

    return _answered(node, request, handler, take)


def _half(node: Node, request: Request, handler: Handler) -> Any:
    def take(body: Any) -> None:
        out, slices = write_response(request.api, request.version, request.correlation_id, body)
        for _, part in slices:
            part.release()
        request.channel.send_last(out[: len(out) // 2])

    return _answered(node, request, handler, take)


def _throttle(ms: int, node: Node, request: Request, handler: Handler) -> Any:
    send = request.answer

    def take(body: Any) -> None:
        body.throttle_time_ms = max(body.throttle_time_ms, ms)
        send(body)

    return _answered(node, request, handler, take)


def _api(named: Api | str | int) -> Api:
    for api in Api:
        if named in (api, api.name, api.message):
            return api
    names = [api.message for api in Api]
    hint = did_you_mean(str(named), names) or f"allowed are {', '.join(names)}"
    raise InvalidArgumentError(f"api is {named!r}; {hint}")


_FEW = 3


def _nearest(named: int | str) -> list[str]:
    """Return texts "NAME (number)" of a few error codes: those with the nearest numbers, or with the most
    similar names.
    """
    # `difflib` is imported here, because only the text of an error needs it.
    import difflib

    codes = [code for code in Code if code]
    if isinstance(named, int):
        nearest = sorted(codes, key=lambda code: abs(code - named))[:_FEW]
        return [f"{code.name} ({code})" for code in nearest]
    names = {code.name: f"{code.name} ({code})" for code in codes}
    return [names[name] for name in difflib.get_close_matches(str(named), names, _FEW, cutoff=0)]


def _code(named: int | str) -> Code:
    for code in Code:
        if named in (code, code.name) and code is not Code.NONE:
            return code
    known = {code.name: f"{code.name} ({code})" for code in Code if code}
    begun = [name for name in known if isinstance(named, str) and named and name.startswith(named)]
    hint = did_you_mean(str(named), known) or f"the nearest of Kafka's codes are {', '.join(_nearest(named))}"
    if 1 <= len(begun) <= _FEW:
        hint = f"did you mean {' or '.join(begun)}?"
    raise InvalidArgumentError(f"code is {named!r}; {hint}")
