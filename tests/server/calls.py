"""Handlers, called without sockets: a node over a loop that works when it is told to, and requests and
answers that are encoded and decoded on their way, so that what a version can't hold is not seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import segstore
from segstore.protocol.codec import decode, encode, structs
from segstore.server.apis import Api
from segstore.server.handlers import HANDLERS
from segstore.server.network.request_metrics import ApiMetrics
from segstore.server.node import Endpoint, Node
from segstore.server.request import LATER, Request
from segstore.server.security.authorizer import authorizer_of
from segstore.server.settings import ServerConfig

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
ENDPOINT = Endpoint("broker.test", 9092)


@dataclass(eq=False)
class FakeTimer:
    """A call that is due at a time of the fake loop."""

    due: float
    call: Callable[[], object]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeWatch:
    def ask(self, sleep: Callable[[], object]) -> None:
        pass


@dataclass
class FakeLoop:
    """A loop whose calls and works are done by `run`, in the thread of the test, and whose timers by
    `pass_time`.
    """

    calls: deque[Callable[[], object]] = field(default_factory=deque)
    timers: list[FakeTimer] = field(default_factory=list)
    now: float = 0.0
    works: int = 0

    def later(self, seconds: float, call: Callable[[], object]) -> FakeTimer:
        self.timers.append(FakeTimer(self.now + seconds, call))
        return self.timers[-1]

    def soon(self, call: Callable[[], object]) -> None:
        self.calls.append(call)

    def watch(self, wake: Callable[[], object], then: Callable[[], object]) -> Any:
        """Nobody sleeps for this loop: what waits for news is looked at when its time is over."""
        return FakeWatch()

    def every_turn(self, call: Callable[[], object]) -> None:
        """There are no turns."""

    def work(self, run: Callable[[], Any], done: Callable[[Any], object], waits: bool = False) -> None:
        self.works += 1
        self.calls.append(lambda: self._work(run, done))

    def _work(self, run: Callable[[], Any], done: Callable[[Any], object]) -> None:
        try:
            result = run()
        except Exception as error:
            result = error
        done(result)

    def run(self) -> None:
        """Do all that is to be done now."""
        while self.calls:
            self.calls.popleft()()

    def pass_time(self, seconds: float) -> None:
        """Do what is due within so many seconds, in order."""
        end = self.now + seconds
        while due := [each for each in self.timers if each.due <= end and not each.cancelled]:
            first = min(due, key=lambda each: each.due)
            self.timers.remove(first)
            self.now = first.due
            first.call()
            self.run()
        self.now = end


@dataclass
class FakeChannel:
    """A connection without a socket."""

    principal: str = "ANONYMOUS"
    peer: str = "127.0.0.1"
    is_open: bool = True
    sasl: Any = None
    muted_ms: int = 0
    repeat: Any = None
    farewells: list[Callable[[], object]] = field(default_factory=list)
    rows: dict[Api, ApiMetrics] = field(default_factory=dict)

    def answer(self, api: Api, version: int, correlation_id: int, body: Any) -> None:
        raise AssertionError("a handler answers by its request")

    def give(self, out: bytearray, slices: Any, sent: int = 0) -> None:
        raise AssertionError("only a repeat gives bytes")

    def row(self, api: Api) -> ApiMetrics:
        return self.rows.setdefault(api, ApiMetrics(api))

    def mute(self, milliseconds: int) -> None:
        self.muted_ms = milliseconds

    def when_closed(self, call: Callable[[], object]) -> None:
        self.farewells.append(call)

    def close(self) -> None:
        was_open, self.is_open = self.is_open, False
        for farewell in self.farewells if was_open else ():
            farewell()


def node_of(store: segstore.Store, **settings: Any) -> Node:
    """Return a node that serves a store, with a fake loop."""
    config = ServerConfig(**settings)
    authorizer = authorizer_of(config)
    return Node(store, config, FakeLoop(), ENDPOINT, CLUSTER_ID, tuple(HANDLERS), authorizer)


@dataclass
class Sent:
    """A request that was sent; `answers` gets its answer, once."""

    request: Request
    answers: list[Any]

    @property
    def channel(self) -> Any:
        return self.request.channel


def send(node: Node, api: Api, version: int, client_id: str | None = "test", /, **fields: Any) -> Sent:
    """Call a handler, and have the loop do what it can do at once."""
    answers: list[Any] = []
    sent = coded(structs(f"{api.message}Request")(**fields), version)
    request = Request(api, version, client_id, sent, FakeChannel(), lambda body: answers.append(body))
    answer = HANDLERS[api](node, request)
    if answer is not LATER:
        answers.append(answer)
    assert isinstance(node.loop, FakeLoop)
    node.loop.run()
    assert len(answers) <= 1
    return Sent(request, [None if each is None else coded(each, version) for each in answers])


def call(node: Node, api: Api, version: int, client_id: str | None = "test", /, **fields: Any) -> Any:
    """Return the answer to a request, which must come at once; None where the channel was closed."""
    sent = send(node, api, version, client_id, **fields)
    assert sent.answers or not sent.channel.is_open
    return sent.answers[0] if sent.answers else None


def coded(body: Any, version: int) -> Any:
    """Return what is left of a message on its way over the wire. A message may be of no other version."""
    out = bytearray()
    encode(body, version, out)
    return decode(type(body).__name__, version, memoryview(out))


def versions(api: Api) -> range:
    """Return all versions of an API that are served."""
    from segstore.server.apis import served

    low, high = served(api)
    return range(low, high + 1)
