"""`BrokerThread`: a thread that sends requests to one broker over one connection, and reconnects if the
connection is lost (Kafka: a ShutdownableThread that has a BlockingSend). Nothing is on disk. Threads: it runs
in its own thread; any thread may call `close`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from segstore.errors import SegstoreError
from segstore.logger import Logger
from segstore.threads import Background, Latch
from segstore.wire.backoff import Backoff
from segstore.wire.cluster import Cluster
from segstore.wire.connection import BrokerConnection

log = Logger("segstore")


class BrokerThread(ABC):
    """A thread that sends requests to the broker `node`, until there is nothing more to send, or until
    `close` is called.
    """

    def __init__(self, kind: str, node: int, cluster: Cluster) -> None:
        """`kind` is a part of the thread's name."""
        self._kind, self.node, self._cluster = kind, node, cluster
        self._config = cluster.config
        self._closing, self._ended = Latch(), Latch()
        self._connection: BrokerConnection | None = None
        self._backoff = Backoff(self._config.reconnect_backoff_ms, self._config.reconnect_backoff_max_ms)

    def start(self) -> None:
        """Start the thread. Raises IllegalStateError if the system allows no more threads."""
        Background(self._run, f"segstore-{self._kind}-{self.node}").start()

    def close(self, seconds: float) -> bool:
        """Stop the thread. Wait up to `seconds` until it has stopped, and return whether it has."""
        self._closing.open()
        if (connection := self._connection) is not None:
            connection.abort()
        return self._ended.wait(seconds)

    @abstractmethod
    def _is_idle(self) -> bool:
        """Return whether there is nothing more to send to this broker. If so, the thread stops."""

    @abstractmethod
    def _work(self, connection: BrokerConnection) -> None:
        """Send requests over `connection` until there is nothing more to send, or `close` is called. Raises
        SegstoreError if the connection is lost.
        """

    @abstractmethod
    def _lost(self, error: Exception) -> None:
        """Record `error`, the reason why the broker can't be reached."""

    def _run(self) -> None:
        try:
            while not self._closing.is_open and not self._is_idle():
                self._connect_and_work()
        finally:
            self._ended.open()

    def _connect_and_work(self) -> None:
        try:
            connection = self._connection = self._cluster.connect(self.node)
            self._work(connection)
        except Exception as error:
            if not isinstance(error, SegstoreError):
                log.exception("a defect, met by the %s of broker %d", self._kind, self.node)
            if not self._closing.is_open:
                self._lost(error)
                self._closing.wait(self._backoff.failed())
        finally:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
