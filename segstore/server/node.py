"""`Node`: the common objects of a listener's handlers: the store, the settings, the event loop, and the
node's address.
"""

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
"""The id of the only node, which is also the controller."""
T = TypeVar("T")


class Timer(Protocol):
    """A call that is to be made later."""

    def cancel(self) -> None:
        """Cancel the call. A second `cancel` does nothing."""


class LoopWatch(Protocol):
    """A thread that waits, in place of the loop, for the store's publications: changes that readers see.
    `ask` begins one wait.
    """

    def ask(self, sleep: Callable[[], object]) -> None:
        """Call `sleep`, such as `Store.wait`, in the thread; `sleep` returns after a publication, or earlier.
        If the preceding call of `sleep` is not over, do nothing.
        """


class NodeLoop(Protocol):
    """The event loop, whose thread owns all connections. Other threads may call only `soon`."""

    def later(self, seconds: float, call: Callable[[], object]) -> Timer:
        """Make a call in the loop's thread after `seconds`."""

    def soon(self, call: Callable[[], object]) -> None:
        """Queue a call, which the loop's thread makes as soon as it can. If the loop has stopped, the call is
        not made. Any thread may call this method.
        """

    def work(
        self, run: Callable[[], T], done: Callable[[T | BaseException], object], waits: bool = False
    ) -> None:
        """Call `run`, which may wait for disks or compute long, in a worker thread; then call `done` in the
        loop's thread, with what `run` returned or raised. `waits` says that `run` may wait for replicas: such
        calls have a separate pool of threads. In a common pool they could occupy all threads, and the
        replicas' requests, for which they wait, would not be handled.
        """

    def every_turn(self, call: Callable[[], object]) -> None:
        """Make a call at the end of each turn (iteration) of the loop, after the requests of that turn."""

    def watch(self, wake: Callable[[], object], then: Callable[[], object]) -> LoopWatch:
        """Return a watch: a thread that sleeps. After each sleep, `then` is called in the loop's thread.
        `wake()` must end a sleep early.
        """


class Endpoint(NamedTuple):
    """The host and port of a listener."""

    host: str
    port: int


class Node:
    """The state of one listener's handlers. `endpoint` is the advertised address; `apis` are the APIs with a
    handler. If `authorizer` is None, all clients may do everything. `part(kind)` returns the node's only
    object of the class `kind`; the first call makes it by `kind(node)`. Only the loop's thread may call
    `part`.
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
        """Return whether the current authorizer allows a principal an operation on a resource."""
        authorizer = self.authorizer
        return authorizer is None or authorizer.allows(principal, operation, resource, name)

    def part(self, kind: Callable[[Node], T]) -> T:
        """Return the node's object of a class, such as `Fetches`. The first call makes the object."""
        if kind not in self._parts:
            self._parts[kind] = kind(self)
        found: T = self._parts[kind]
        return found

    def metrics(self) -> dict[str, float]:
        """Return Kafka's name of a metric -> value, for all parts with a method `metrics`. Any thread may
        call this method.
        """
        found: dict[str, float] = {}
        for part in list(self._parts.values()):
            if hasattr(part, "metrics"):
                found.update(part.metrics())
        return found

    def close(self) -> None:
        """Close all parts with a method `close`; the part that was made last is closed first."""
        while self._parts:
            _, part = self._parts.popitem()
            if hasattr(part, "close"):
                part.close()
