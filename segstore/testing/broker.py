"""`Broker`: a server with a store of its own, for one test or for a whole run of tests. On disk: the store.
It is in a given directory, or in a temporary directory, which `close` removes and which is in memory if
memory is sufficient. No file is synced, because a test's data need not survive a power cut. Threads: any.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from segstore.choices import HOST, PORT
from segstore.closing import Closing
from segstore.coordinator.open import open
from segstore.errors import (
    ClientClosedError,
    ConfigError,
    IllegalStateError,
    InvalidArgumentError,
    InvalidTypeError,
)
from segstore.files import Files, Handle
from segstore.server.handlers import HANDLERS
from segstore.server.network.server import Server, address_text, start
from segstore.server.node import Endpoint
from segstore.server.security.listeners import ListenerSpec
from segstore.server.settings import ServerConfig, parted
from segstore.storage.context import wall_clock
from segstore.storage.store.store import Store

from .faults import Faults, intercepted
from .request_log import LoggedRequest, RequestLog

if TYPE_CHECKING:
    from .clock import Clock

MEMORY = "/dev/shm"
ENOUGH = 512 << 20
"""The number of free bytes that the file system in memory must have. In containers it often has only 64 MiB.
"""
DEFAULTS = {
    "group_consumer_heartbeat_interval_ms": 200,
    "group_initial_rebalance_delay_ms": 0,
}
_NODES = frozenset({"brokers", "num_brokers", "nodes", "num_nodes", "replicas"})
"""Names that mock clusters of other packages use for the number of brokers."""


class Broker(Closing):
    """A running server on a port of 127.0.0.1, with its store.

    `directory` is the path of the store, which `close` does not remove. If it is None, the store is
    temporary. `topics` are names, or a mapping of names to numbers of partitions; missing topics are created.
    `port` is the server's port, by default a free port. `clock` is a `segstore.testing.Clock`, whose time the
    broker uses in place of the machine's. `settings` are settings of the server and of the store, with
    underscores in place of dots: `num_partitions=4`. By default groups don't wait for more members, members
    of consumer groups (KIP-848) send a heartbeat five times a second, and the internal topics have one
    partition each.

    Raises ConfigError, InvalidArgumentError, InvalidTypeError, InvalidTopicError, ListenError,
    StoreLockedError, StorageError.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        topics: Iterable[str] | Mapping[str, int] | None = None,
        *,
        port: int | None = None,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        _check_one_node(settings)
        _check_clock(clock)
        self._of_store, of_server = parted({**DEFAULTS, **settings})
        self._config = ServerConfig.parse(of_server)
        if port is not None and self._config.specs:
            raise InvalidArgumentError(f"port={port!r}: each of the listeners says its own")
        self._port = 0 if port is None else port
        wanted = _partitions(topics)
        self.faults = Faults()
        """Faults to inject (`segstore.testing.Faults`)."""
        self._log, self._clock, self._lock = RequestLog(), clock, threading.RLock()
        self._running: tuple[Store, Server] | None = None
        self._closed = False
        self._temporary = _temporary() if directory is None else None
        path = self._temporary.name if self._temporary else directory
        assert path is not None
        self._path = path
        try:
            self._start(wanted)
        except BaseException:
            self._remove()
            raise
        if clock is not None:
            clock.attach(self._run_due)

    def __repr__(self) -> str:
        state = "" if self._running else ", closed" if self._closed else ", stopped"
        return f"{type(self).__name__}({self.bootstrap_servers!r}{state})"

    @property
    def store(self) -> Store:
        """Return the open store, which is a new object after each `start`. Tests may read and change its
        topics and records. Raises IllegalStateError if the broker is stopped.
        """
        running = self._running
        if running is None:
            raise IllegalStateError(f"{self!r} has no open store: {'' if self._closed else 'start() it'}")
        return running[0]

    @property
    def bootstrap_servers(self) -> str:
        """Return "host:port" for clients. The address is the same after `stop` and `start`."""
        return self._servers

    @property
    def requests(self) -> list[LoggedRequest]:
        """Return the last requests of clients, at most 10,000; the oldest request is first."""
        return self._log.all()

    def clear(self) -> None:
        """Remove all faults and all logged requests, for example between two tests."""
        self.faults.clear()
        self._log.clear()

    # --- stop and start -----------------------------------------------------------------------

    def stop(self) -> None:
        """Stop like a broker that is shut down: close all connections, refuse new connections, and close the
        store. The data, the faults and the logged requests are kept. A second call does nothing.
        """
        with self._lock:
            self._stop()

    def start(self) -> None:
        """After `stop`, start again at the same address and with the same data. Open transactions and group
        members continue, as after the restart of a Kafka broker. If the broker is running, do nothing. Raises
        ClientClosedError after `close`, and ListenError if another program uses the port.
        """
        with self._lock:
            if self._closed:
                raise ClientClosedError(f"{self!r} can't be started again")
            if self._running is None:
                self._start({})

    def close(self) -> None:
        """Stop for good, and remove a temporary store. A second call does nothing."""
        with self._lock:
            if self._clock is not None and not self._closed:
                self._clock.detach(self._run_due)
            self._closed = True
            try:
                self._stop()
            finally:
                self._remove()

    def _start(self, topics: Mapping[str, int]) -> None:
        clock = self._clock or wall_clock
        store = open(self._path, config=self._of_store, files=UnsyncedFiles(), clock=clock)
        try:
            server = self._served(store, topics)
        except BaseException:
            store.close()
            raise
        self._running = store, server

    def _served(self, store: Store, topics: Mapping[str, int]) -> Server:
        if self._clock is not None:
            self._clock.govern(store)
        for name in topics.keys() - store.topics().keys():
            store.create_topic(name, topics[name])
        handlers = intercepted(HANDLERS, self.faults, self._log)
        place = (HOST, PORT) if self._config.specs else (HOST, self._port)
        server = start(store, *place, None, self._config, handlers)
        self._servers, self._port = server.bootstrap_servers, server.port
        if self._config.specs:
            self._config = replace(self._config, listeners=_at(self._config.specs, server.ports))
        return server

    def _stop(self) -> None:
        if self._running is None:
            return
        store, server = self._running
        try:
            server.close()
        finally:
            self._running = None
            store.close()

    def _run_due(self) -> None:
        with self._lock:
            if self._running is not None and self._clock is not None:
                self._clock.run_due(self._running[0])

    def _remove(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()


def _check_clock(clock: Any) -> None:
    if clock is None:
        return
    # The clock is imported here and not above, because its module imports the coordinators.
    from .clock import Clock

    if not isinstance(clock, Clock):
        raise InvalidTypeError(f"clock must be a segstore.testing.Clock, not {type(clock).__name__}")


def _at(specs: Sequence[ListenerSpec], ports: Sequence[int]) -> str:
    """Return the setting `listeners` with the ports in `ports`, which the system has chosen."""
    places = [
        f"{spec.name}://{address_text(Endpoint(spec.host, port))}"
        for spec, port in zip(specs, ports, strict=True)
    ]
    return ",".join(places)


class UnsyncedFiles(Files):
    """Files that are never synced. The kernel decides when bytes are written to the disk."""

    def sync(self, handle: Handle) -> None:
        """Do nothing."""

    def start_sync(self, handle: Handle, position: int, length: int) -> None:
        """Do nothing."""

    def sync_dir(self, path: str | os.PathLike[str]) -> None:
        """Do nothing."""


def _temporary() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="segstore-", dir=_in_memory(), ignore_cleanup_errors=True)


def _in_memory() -> str | None:
    """Return the path of the file system in memory if it is writable and has ENOUGH free bytes, else None."""
    if not os.access(MEMORY, os.W_OK | os.X_OK):
        return None
    space = os.statvfs(MEMORY)
    return MEMORY if space.f_bavail * space.f_frsize >= ENOUGH else None


def _check_one_node(settings: Mapping[str, Any]) -> None:
    """Raise ConfigError if `settings` contain a number of brokers, under one of the names in `_NODES`."""
    for name in _NODES & settings.keys():
        raise ConfigError(
            f"{name}={settings[name]!r}: a Broker is one node, of which no leader moves and no replica falls "
            "behind; leave it out"
        )


def _partitions(topics: Iterable[str] | Mapping[str, int] | None) -> dict[str, int]:
    if isinstance(topics, str):
        raise InvalidTypeError(f"topics is {topics!r}: must be names, or a mapping of names to partitions")
    if isinstance(topics, Mapping):
        return dict(topics)
    return dict.fromkeys(topics or (), 1)
