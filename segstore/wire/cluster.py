"""`Cluster`: the brokers of one cluster, and a connection to one of them for requests that any broker can
answer (Kafka: Metadata, NetworkClient, AdminClient).

Nothing is on disk. Threads: only one thread at a time may send requests; any thread may call `connect` and
`abort`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from segstore.errors import (
    AuthenticationFailedError,
    BrokerError,
    DisconnectedError,
    InvalidArgumentError,
    InvalidTypeError,
    RequestTimedOutError,
    SegstoreError,
    copy_of,
)
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code, broker_error
from segstore.wire.connection import Address, BrokerConnection
from segstore.wire.metadata import ClusterMetadata, read_metadata
from segstore.wire.settings import WireConfig
from segstore.wire.tls import client_context

_ADDRESS = re.compile(
    r"(?:[A-Za-z_]+://)?(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<host>[^:/\[\]\s]+)):(?P<port>[0-9]{1,5})"
)
_MOST_PORT = 65_535
_GROUP = 0
_BATCHED_SINCE = 4
PASSING = (DisconnectedError, RequestTimedOutError)
"""Errors after which the same request may succeed later, or at another broker."""


def addresses(bootstrap: object) -> tuple[Address, ...]:
    """Return the addresses in a value of bootstrap.servers: "HOST:PORT", or several of them with commas
    between. Raises InvalidArgumentError, InvalidTypeError.
    """
    if not isinstance(bootstrap, str):
        raise InvalidTypeError(f"bootstrap must be a str, not {type(bootstrap).__name__}")
    parts = [part.strip() for part in bootstrap.split(",") if part.strip()]
    return tuple(_address(part) for part in parts) or (_address(bootstrap),)


def _address(text: str) -> Address:
    found = _ADDRESS.fullmatch(text)
    if found is None or not 1 <= int(found["port"]) <= _MOST_PORT:
        raise InvalidArgumentError(f"bootstrap={text!r}: must be HOST:PORT, with commas between several")
    return Address(found["six"] or found["host"], int(found["port"]))


class Cluster:
    """One cluster. The first connection uses one of the bootstrap addresses; later connections may also use
    the addresses that the cluster's brokers advertise. The constructor raises InvalidArgumentError, and
    ConfigError if it can't use a file that the settings name.
    """

    def __init__(self, bootstrap: str, config: WireConfig) -> None:
        self.bootstrap, self.config = addresses(bootstrap), config
        self._context = client_context(config) if config.uses_tls else None
        self._brokers: Mapping[int, Address] = {}
        self._control: BrokerConnection | None = None
        self._coordinator: BrokerConnection | None = None
        self._aborted = False
        self.connections = 0
        """The number of connections that `ask` has made."""

    def connect(self, node: int) -> BrokerConnection:
        """Return a new connection to the broker `node`. Raises the errors of `BrokerConnection`, and
        DisconnectedError if the metadata have no such broker.
        """
        address = self._brokers.get(node)
        if address is None:
            raise DisconnectedError(f"broker {node} is not among those that the cluster tells of")
        return self._connected(address)

    def metadata(self, topics: Iterable[str] | None) -> ClusterMetadata:
        """Return the cluster's metadata of `topics`. None stands for all topics that this client may see. No
        topic is created. Raises the errors of `ask`.
        """
        asked = None
        if topics is not None:
            kind = structs("MetadataRequest").MetadataRequestTopic
            asked = [kind(name=name) for name in topics]
        found = read_metadata(self.ask("Metadata", topics=asked, allow_auto_topic_creation=False))
        self._brokers = found.brokers or self._brokers
        return found

    def ask(self, api: str, **fields: Any) -> Any:
        """Send a request to any broker, and return the answer's body. If there is no open connection, or the
        open connection fails, use a new connection. Raises AuthenticationFailedError,
        UnsupportedVersionError, and DisconnectedError or RequestTimedOutError if no broker answers.
        """
        connection = self._control
        if connection is not None:
            try:
                return connection.ask(api, **fields)
            except PASSING:
                self._drop()
        connection = self._control = self._any()
        try:
            return connection.ask(api, **fields)
        except PASSING:
            self._drop()
            raise

    def _any(self) -> BrokerConnection:
        """Connect to one of the known brokers, or to one of the bootstrap addresses."""
        failed: list[str] = []
        refused: AuthenticationFailedError | None = None
        for address in dict.fromkeys((*self._brokers.values(), *self.bootstrap)):
            try:
                made = self._connected(address)
                self.connections += 1
                return made
            except PASSING as error:
                failed.append(str(error))
            except AuthenticationFailedError as error:
                refused = error
        if refused is not None:
            raise copy_of(refused)
        raise DisconnectedError(f"no broker answers: {'; '.join(failed)}")

    def _connected(self, address: Address) -> BrokerConnection:
        if self._aborted:
            raise DisconnectedError(f"{address}: the client is closed")
        return BrokerConnection(address, self.config, self._context)

    # --- groups -----------------------------------------------------------------------------------

    def ask_coordinator(self, group: str, api: str, **fields: Any) -> Any:
        """Send a request to the coordinator of a group, and return the answer's body. Raises the errors of
        `ask`, and BrokerError if the group has no coordinator now.
        """
        if self._coordinator is not None:
            self._coordinator.close()
        connection = self._coordinator = self._connected(self._coordinator_of(group))
        return connection.ask(api, **fields)

    def ask_each(self, api: str, **fields: Any) -> Iterable[Any]:
        """Send a request to each broker, one after another, and yield the bodies of the answers. Raises the
        errors of `ask`.
        """
        for node in sorted(self._brokers):
            connection = self.connect(node)
            try:
                yield connection.ask(api, **fields)
            finally:
                connection.close()

    def _coordinator_of(self, group: str) -> Address:
        answer = self.ask("FindCoordinator", key=group, key_type=_GROUP, coordinator_keys=[group])
        found = answer.coordinators[0] if answer.coordinators else answer
        if found.error_code:
            raise broker_error(found.error_code, f"the coordinator of group {group!r}")
        return Address(found.host, found.port)

    # --- ending -----------------------------------------------------------------------------------

    def _drop(self) -> None:
        if self._control is not None:
            self._control.close()
        self._control = None

    def abort(self) -> None:
        """Abort the request that another thread has sent, and refuse new connections."""
        self._aborted = True
        for connection in (self._control, self._coordinator):
            if connection is not None:
                connection.abort()

    def close(self) -> None:
        """Close all connections except those that `connect` has returned."""
        self._aborted = True
        self._drop()
        if self._coordinator is not None:
            self._coordinator.close()


def is_passing(error: SegstoreError) -> bool:
    """Return whether a request that failed with `error` may succeed later."""
    if isinstance(error, BrokerError):
        return error.code in _RETRIABLE
    return isinstance(error, PASSING)


_RETRIABLE = frozenset(
    {
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REQUEST_TIMED_OUT,
        Code.REPLICA_NOT_AVAILABLE,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.KAFKA_STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.OFFSET_NOT_AVAILABLE,
        Code.UNKNOWN_TOPIC_ID,
        Code.INCONSISTENT_TOPIC_ID,
        Code.UNSTABLE_OFFSET_COMMIT,
        Code.THROTTLING_QUOTA_EXCEEDED,
    }
)
