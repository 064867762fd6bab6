"""`Node`: what handlers share: the store, the settings, the loop, and the node's name in the cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Protocol, TypeVar

from segstore.storage.store.store import Store

from .apis import Api
from .authorized import AclOperation
from .security.allow_list import CLUSTER_NAME, ResourceType
from .security.authorizer import Authorizer
from .settings import ServerConfig

NODE_ID = 1
"""The only node, its own controller."""
T = TypeVar("T")


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Do not call; a second time does nothing."""


class LoopWatch(Protocol):
    """A thread that sleeps for the loop until there is news, and only while it is asked to."""

    def ask(self, sleep: Callable[[], object]) -> None:
        """Have the thread call `sleep`, such as `Store.wait`, which returns when there is news, or early.
        Where a sleep is under way already, this does nothing.
        """


class NodeLoop(Protocol):
    """The thread that owns all connections. Only `soon` may be called in other threads."""

    def later(self, seconds: float, call: Callable[[], object]) -> Timer:
        """Have `call` called in the loop's thread after so many seconds."""

    def soon(self, call: Callable[[], object]) -> None:
        """Have `call` called in the loop's thread, soon; from any thread. After the loop's end it is not."""

    def work(
        self, run: Callable[[], T], done: Callable[[T | BaseException], object], waits: bool = False
    ) -> None:
        """Have `run` called in one of a few worker threads, for what waits for disks or computes long; then
        `done` in the loop's thread, with its result or its exception. What `waits` for other replicas has
        threads of its own: a replica's requests, which end the waits, must not come behind it.
        """

    def every_turn(self, call: Callable[[], object]) -> None:
        """Have `call` called at the end of each of the loop's turns, when requests that came together were
        handled.
        """

    def watch(self, wake: Callable[[], object], then: Callable[[], object]) -> LoopWatch:
        """Return a watch: `then` is called in the loop's thread after each sleep, and `wake`, in any thread,
        lets a sleep return early.
        """


class Endpoint(NamedTuple):
    """What clients are told to connect to."""

    host: str
    port: int


class Node:
    """One server's shared parts; `apis` are those that it answers. Without an `authorizer` all clients may do
    everything.

    `part(kind)` is the one object of a class that this node has; it is made by `kind(node)` at the first
    call. Only the loop's thread calls it.
    """

    def __init__(
        self,
        store: Store,
        config: ServerConfig,
        loop: NodeLoop,
        endpoint: Endpoint,
        cluster_id: str,
        apis: Collection[Api],
        authorizer: Authorizer | None = None,
    ) -> None:
        self.store, self.config, self.loop, self.apis = store, config, loop, apis
        self.authorizer = authorizer
        self.endpoint, self.cluster_id, self.node_id = endpoint, cluster_id, NODE_ID
        self._parts: dict[Callable[[Node], Any], Any] = {}

    def allows(
        self, principal: str, operation: AclOperation, resource: ResourceType, name: str = CLUSTER_NAME
    ) -> bool:
        """Return whether a client may do something now: the authorizer may have changed since its request
        came.
        """
        authorizer = self.authorizer
        return authorizer is None or authorizer.allows(principal, operation, resource, name)

    def part(self, kind: Callable[[Node], T]) -> T:
        """Return the node's object of a class, such as its fetch sessions."""
        if kind not in self._parts:
            self._parts[kind] = kind(self)
        found: T = self._parts[kind]
        return found

    def metrics(self) -> dict[str, float]:
        """Return what the parts that have a `metrics` have counted, by Kafka's names. May be called in any
        thread.
        """
        found: dict[str, float] = {}
        for part in list(self._parts.values()):
            if hasattr(part, "metrics"):
                found.update(part.metrics())
        return found

    def close(self) -> None:
        """End the parts that have a `close`, the last made first."""
        while self._parts:
            _, part = self._parts.popitem()
            if hasattr(part, "close"):
                part.close()
