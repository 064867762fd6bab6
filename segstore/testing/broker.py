"""`Broker`: a server with a store of its own, for one test or a whole run of tests.

On disk: a store in a temporary directory, in memory where there is room, which is removed at the end;
or in a directory that is given, and stays. Nothing is synced: a test's data need not survive a power cut.
Threads: any.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from tempfile import TemporaryDirectory
from typing import Any

from segstore.closing import Closing
from segstore.coordinator.open import open
from segstore.errors import ConfigError, InvalidTypeError
from segstore.files import Files, Handle
from segstore.server.handlers import HANDLERS
from segstore.server.network.server import Server, start
from segstore.server.settings import ServerConfig, parted

from .faults import Faults, intercepted
from .request_log import LoggedRequest, RequestLog

MEMORY = "/dev/shm"
ENOUGH = 512 << 20
"""Bytes that must be free in memory; containers often have 64 MiB there."""
DEFAULTS = {
    "group_consumer_heartbeat_interval_ms": 200,
    "group_initial_rebalance_delay_ms": 0,
}
_NODES = frozenset({"brokers", "num_brokers", "nodes", "num_nodes", "replicas"})


class Broker(Closing):
    """A running server on a free port of 127.0.0.1, and the store behind it.

    `directory` is a path of a store that stays after the end, None for a temporary one. `topics` are names,
    or a mapping of names to numbers of partitions; those that are there already are left as they are.
    `settings` are a server's and a store's, with underscores for dots: `num_partitions=4`. By default groups
    don't wait for more members, members of consumer groups (KIP-848) send a heartbeat five times a
    second, and the internal topics have one partition each.

    Raises ConfigError, InvalidTypeError, InvalidTopicError, StoreLockedError, StorageError.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        topics: Iterable[str] | Mapping[str, int] | None = None,
        **settings: Any,
    ) -> None:
        _check_one_node(settings)
        of_store, of_server = parted({**DEFAULTS, **settings})
        wanted = _partitions(topics)
        self.faults = Faults()
        """What shall go wrong: see `segstore.testing.Faults`."""
        self._log = RequestLog()
        self._temporary = _temporary() if directory is None else None
        path = self._temporary.name if self._temporary else directory
        assert path is not None
        try:
            self.store = open(path, config=of_store, files=UnsyncedFiles())
            """The open store; what it holds may be asserted on, and changed."""
            self._server = self._serving(wanted, of_server)
        except BaseException:
            self._remove()
            raise

    def _serving(self, topics: Mapping[str, int], settings: Mapping[str, Any]) -> Server:
        try:
            for name in topics.keys() - self.store.topics().keys():
                self.store.create_topic(name, topics[name])
            handlers = intercepted(HANDLERS, self.faults, self._log)
            return start(self.store, "127.0.0.1", 0, None, ServerConfig.parse(settings), handlers)
        except BaseException:
            self.store.close()
            raise

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.bootstrap_servers!r})"

    @property
    def bootstrap_servers(self) -> str:
        """Return "host:port", as clients take it."""
        return self._server.bootstrap_servers

    @property
    def requests(self) -> list[LoggedRequest]:
        """Return what clients have asked, the oldest first, 10,000 requests at most."""
        return self._log.all()

    def clear(self) -> None:
        """Forget all requests and faults, as between two tests."""
        self.faults.clear()
        self._log.clear()

    def close(self) -> None:
        """End all connections and the server, close the store, remove it where it is temporary. A second
        time does nothing.
        """
        try:
            self._server.close()
        finally:
            try:
                self.store.close()
            finally:
                self._remove()

    def _remove(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()


class UnsyncedFiles(Files):
    """Files whose bytes are left to the kernel."""

    def sync(self, handle: Handle) -> None:
        """Do nothing."""

    def start_sync(self, handle: Handle, position: int, length: int) -> None:
        """Do nothing."""

    def sync_dir(self, path: str | os.PathLike[str]) -> None:
        """Do nothing."""


def _temporary() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="segstore-", dir=_in_memory(), ignore_cleanup_errors=True)


def _in_memory() -> str | None:
    """Return a directory that lies in memory and has room; None where there is none."""
    if not os.access(MEMORY, os.W_OK | os.X_OK):
        return None
    found = os.statvfs(MEMORY)
    return MEMORY if found.f_bavail * found.f_frsize >= ENOUGH else None


def _check_one_node(settings: Mapping[str, Any]) -> None:
    """Raise ConfigError for a number of nodes, as mock clusters of other packages take it."""
    for name in _NODES & settings.keys():
        raise ConfigError(f"{name}={settings[name]!r}: a Broker is a cluster of one node; leave it out")


def _partitions(topics: Iterable[str] | Mapping[str, int] | None) -> dict[str, int]:
    if isinstance(topics, str):
        raise InvalidTypeError(f"topics is {topics!r}: must be names, or a mapping of names to partitions")
    if isinstance(topics, Mapping):
        return dict(topics)
    return dict.fromkeys(topics or (), 1)
