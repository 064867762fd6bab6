"""`serve` and `Server`: a server of Kafka's wire protocol for a store, in threads of this process. Owns
nothing on disk; the handlers of requests write to the store. Threads: any thread may use a `Server`.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from segstore.choices import HOST, PORT
from segstore.closing import Closing
from segstore.config import arguments
from segstore.coordinator.shared import shared
from segstore.errors import InvalidArgumentError, InvalidTypeError, ListenError
from segstore.listening import listen
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.server.apis import Api
from segstore.server.cluster_id import cluster_id_of
from segstore.server.handlers import HANDLERS
from segstore.server.lease import hold_lease, lease_error
from segstore.server.node import Endpoint, Node
from segstore.server.promotion import announce_promotion
from segstore.server.request import Handler
from segstore.server.settings import ServerConfig
from segstore.storage.meta.topic_info import CONSUMER_OFFSETS
from segstore.storage.store.lease import Lease
from segstore.storage.store.stats import Family
from segstore.storage.store.store import Store
from segstore.threads import apart

from .listener import Listener
from .loop import Loop
from .memory import RequestMemory, Scratch
from .request_metrics import RequestMetrics
from .secured import secured
from .service import CLOSE_TIMEOUT, Service
from .shared import Shared

if TYPE_CHECKING:
    from segstore.operating.endpoint import HttpEndpoint

log = Logger("segstore")

_EVERYWHERE = ("", "0.0.0.0", "::")
_MOST_PORT = 65535


def serve(
    store: Store,
    host: str = HOST,
    port: int = PORT,
    advertised: str | None = None,
    *,
    lease: Lease | None = None,
    old_primary: Mapping[str, Any] | None = None,
    http: str | None = None,
    **settings: Any,
) -> Server:
    """Serve a store to Kafka's clients, in a thread of this process, and return the server.

    The server listens on all addresses of `host` ("0.0.0.0" or "::": on all addresses of this machine); if
    `port` is 0, the system chooses the port. `advertised`, "HOST:PORT" or "HOST", is the address that clients
    connect to; by default it is the address of the server's socket. `settings` are the settings of
    `segstore.server.settings.ServerConfig`: `security_protocol` and `allow` restrict connections and rights;
    by default everybody may do everything. If the setting `listeners` is given, the server has several
    addresses, each with its own security protocol and advertised address, and the parameters `host`, `port`
    and `advertised` are not allowed. A store may have several servers. Closing the store closes its servers.

    `lease()` acquires or renews a lease; it returns a fencing token while the caller holds the lease, else
    None. The store leads its partitions only while `lease()` returns a token, which becomes their leader
    epoch. When there is no token, the store refuses all appends with DemotedError until it is closed, also
    appends of this process.

    A promoted store notifies its old primary of the promotion; `old_primary` has client settings for the
    connection to the old primary, the same settings as for `follow`: `security.protocol`, `sasl.username` and
    others.

    `http`, "HOST:PORT", is the address of /metrics, /healthz and /readyz, for Prometheus and for process
    supervisors. The endpoint uses no encryption and no authentication. It needs the package
    prometheus-client.

    Raises ListenError, ConfigError, InvalidArgumentError, InvalidTypeError, StoreClosedError,
    CorruptCheckpointError, StorageError, IllegalStateError, and MissingPackageError if `http` is given.
    """
    return start(
        store, host, port, advertised, ServerConfig.parse(settings), HANDLERS, lease, old_primary, http
    )


def start(
    store: Store,
    host: str,
    port: int,
    advertised: str | None,
    config: ServerConfig,
    handlers: Mapping[Api, Handler],
    lease: Lease | None = None,
    old_primary: Mapping[str, Any] | None = None,
    http: str | None = None,
) -> Server:
    """Start the server of `serve`, with these handlers.

    The server is made in a thread that runs no signal handlers. If an interrupt ends the wait for that
    thread, the server is closed, because the caller does not get it.
    """
    made: list[Server] = []
    lost = False

    def make() -> Server:
        made.append(_started(store, host, port, advertised, config, handlers, lease, old_primary, http))
        if lost:
            made[0].close(0.0)
        return made[0]

    try:
        return apart(make, "segstore-serve")
    except BaseException:
        lost = True
        for server in made:
            server.close(0.0)
        raise


def _started(
    store: Store,
    host: str,
    port: int,
    advertised: str | None,
    config: ServerConfig,
    handlers: Mapping[Api, Handler],
    lease: Lease | None,
    old_primary: Mapping[str, Any] | None,
    http: str | None,
) -> Server:
    if not isinstance(store, Store):
        raise InvalidTypeError(f"store must be a Store, not {type(store).__name__}")
    store.check_keeps("serve()")
    if not isinstance(host, str):
        raise InvalidTypeError(f"host must be a str, not {type(host).__name__}")
    arguments.whole("port", port, 0, _MOST_PORT)
    announced = None if advertised is None else endpoint("advertised", advertised)
    if http is not None:
        # The endpoint is imported here, because it imports asyncio.
        from segstore.operating.endpoint import check_http

        check_http(http)
    cluster_id = cluster_id_of(store)
    if lease is not None:
        hold_lease(store, lease, config)
    if store.context.writable and CONSUMER_OFFSETS in store.engine.topics:
        _go_on_with_groups(store)
    services: list[tuple[Node, Endpoint, Service]] = []
    try:
        for place in _places(config, host, port, announced):
            services.append(_service(store, *place, cluster_id, handlers))  # noqa: PERF401  see below
        announce_promotion(store, old_primary)
        server = Server(services, config)
        if http is not None:
            server._begin_http(http)
    except BaseException:
        # These are the listeners that had started before the error.
        for _, _, service in services:
            service.end(0.0)
        raise
    return server


def _go_on_with_groups(store: Store) -> None:
    """Make the group coordinator. It loads the store's groups before the first requests of their members."""
    # The coordinator is imported here, because a store without groups does not need its code.
    from segstore.coordinator.group.coordinator import GroupCoordinator

    shared(store, GroupCoordinator)


def _places(
    config: ServerConfig, host: str, port: int, advertised: Endpoint | None
) -> list[tuple[str, ServerConfig, str, int, Endpoint | None]]:
    """Return (name, settings, host, port, advertised endpoint) of each listener. Raises
    InvalidArgumentError.
    """
    if not config.specs:
        return [(config.security_protocol, config, host, port, advertised)]
    if (host, port, advertised) != (HOST, PORT, None):
        raise InvalidArgumentError(
            f"listeners={config.listeners!r}: host, port and advertised are said by each listener"
        )
    return [
        (
            spec.name,
            config.of_listener(spec),
            spec.host,
            spec.port,
            None if spec.advertised is None else endpoint("advertised.listeners", spec.advertised),
        )
        for spec in config.specs
    ]


def _service(
    store: Store,
    name: str,
    config: ServerConfig,
    host: str,
    port: int,
    advertised: Endpoint | None,
    cluster_id: str,
    handlers: Mapping[Api, Handler],
) -> tuple[Node, Endpoint, Service]:
    """Start one listener. Return (its node, the endpoint that it is bound to, its service)."""
    security = secured(store, config)
    sockets = listen(host, port)
    bound = Endpoint(host, sockets[0].getsockname()[1])
    if host in _EVERYWHERE and not config.uses_tls:
        where = f"{config.security_protocol}://{address_text(bound)}"
        log.warning("%s is open on every address of this machine, and nothing is encrypted", where)
    try:
        loop = Loop()
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise ListenError(error.errno, error.strerror, f"{host}:{bound.port}") from error
    node = Node(
        store, config, loop, _advertised(bound, advertised), cluster_id, handlers.keys(), security.authorizer
    )
    memory = RequestMemory(config.queued_max_request_bytes)
    common = Shared(
        node,
        loop,
        handlers,
        Scratch(),
        memory,
        security.tls,
        security.sasl,
        security.certificate_end,
        metrics=RequestMetrics(name),
    )
    service = Service(common, Listener(sockets, common), _url(node))
    service.start()
    try:
        store.attach_client(service)
    except BaseException:
        service.end(0.0)
        raise
    return node, bound, service


class Server(Closing):
    """The server of a store, and a context manager. It runs until `close` is called or its store is closed,
    even if there is no reference to this object any more. If there are several `listeners`, the properties
    `host`, `port` and `bootstrap_servers` are those of the first listener.
    """

    def __init__(self, services: Sequence[tuple[Node, Endpoint, Service]], config: ServerConfig) -> None:
        (self._node, self._bound, self._service), *self._others = services
        self._config, self._reload_lock = config, Mutex()
        self._http: HttpEndpoint | None = None

    def _begin_http(self, address: str) -> None:
        from .operated import begin_http

        services = [self._service, *(service for _, _, service in self._others)]
        self._http = begin_http(address, self._node.store, self, services)

    def __repr__(self) -> str:
        return f"<Server {self.bootstrap_servers} of {self._node.store!r}>"

    @property
    def node(self) -> Node:
        """Return the first listener's node. Only the loop's thread may call parts of the node."""
        return self._node

    @property
    def host(self) -> str:
        """Return the host that the server listens on."""
        return self._bound.host

    @property
    def port(self) -> int:
        """Return the port that the server listens on."""
        return self._bound.port

    @property
    def ports(self) -> tuple[int, ...]:
        """Return the port of each listener."""
        return tuple(bound.port for bound in (self._bound, *(bound for _, bound, _ in self._others)))

    @property
    def http(self) -> str | None:
        """Return the address of the HTTP endpoint, "HOST:PORT", None if the server has none."""
        return None if self._http is None else str(self._http.address)

    @property
    def advertised_listeners(self) -> tuple[str, ...]:
        """Return the advertised address of each listener, "PROTOCOL://HOST:PORT"."""
        return tuple(_url(node) for node in (self._node, *(node for node, _, _ in self._others)))

    @property
    def lease_error(self) -> Exception | None:
        """Return the last error that `lease()` raised or that the check of its token found; None if there was
        no error.
        """
        return lease_error(self._node.store)

    @property
    def bootstrap_servers(self) -> str:
        """Return "HOST:PORT" for the setting bootstrap.servers of clients."""
        return address_text(self._node.endpoint)

    def _places(self) -> list[tuple[Node, Endpoint]]:
        """Return (node, the endpoint that it is bound to) of each listener."""
        return [(self._node, self._bound), *((node, bound) for node, bound, _ in self._others)]

    def metrics(self) -> dict[str, float]:
        """Return Kafka's name of a metric -> value, for metrics of share groups. Counts begin when the server
        starts. Each value is the sum over all listeners.

        `TotalShareFetchRequestsPerSec` and `TotalShareAcknowledgementRequestsPerSec` count requests;
        `FailedShareFetchRequestsPerSec` and `FailedShareAcknowledgementRequestsPerSec` count requests with an
        error; `ExpiresPerSec` counts fetches whose wait timed out. `ShareSessionsCount` and
        `SharePartitionsCount` are the current numbers of share sessions and of the partitions in them. The
        mapping is empty before the first request of a share group.
        """
        total: Counter[str] = Counter()
        for node in (self._node, *(node for node, _, _ in self._others)):
            total.update(node.metrics())
        return dict(total)

    def families(self) -> list[Family]:
        """Return the server's metrics in the form of Prometheus' clients.

        A family is (metric, names of its labels, its samples). The metric has a name, a meaning and a kind:
        "counter", "gauge" or "histogram". A sample is label values and a number.

        Metrics with the label `request`, such as "Produce", are summed over all listeners: answered requests,
        their bytes, the bytes of their answers, the time until the answer in seconds, and, with the label
        `error`, the error codes of answers. Metrics with the label `listener` (the listener's name in
        `listeners`, or the security protocol) are: open, made and refused connections; authentications;
        malformed requests; the expiry of the certificate, in seconds since the epoch; and the seconds since
        the event loop's current iteration began, 0.0 while the loop sleeps. Counts begin at 0 when the server
        starts; an API has samples from its first request on. Any thread may call this method, also after
        `close`. The method does not block.
        """
        # `families` is imported here, because most processes don't need it.
        from segstore.server.families import families

        return families([s.counted() for s in (self._service, *(each for _, _, each in self._others))])

    def reload(self, **settings: Any) -> None:
        """Change security settings, and read all files of keys, certificates and users again.

        Connections stay open. New TLS handshakes use the new certificate; authentications and
        reauthentications check the new users; requests are authorized by the new allow list after this call
        has returned.

        `settings` are settings of `segstore.serve`; None resets a setting to its default. These settings are
        allowed: `ssl_*`, `sasl_users`, `sasl_enabled_mechanisms`, `connections_max_reauth_ms`,
        `connection_failed_authentication_delay_ms`, `allow` and `super_users`. They may also be settings of a
        single listener. If the server has an allow list or super users, it must have at least one of them
        after the call. If it has neither, neither can be added.

        If an error is raised, nothing has changed. Raises ConfigError, also for a setting that can't change;
        InvalidArgumentError or StorageError if a file can't be used; IllegalStateError if the server is
        closed.
        """
        with self._reload_lock:
            config = self._config.changed(settings)
            services = [self._service, *(service for _, _, service in self._others)]
            made = [secured(self._node.store, each) for each in config.by_listener()]
            for service, each in zip(services, made, strict=True):
                service.resecure(each)
            self._config = config

    def close(self, timeout: float | None = None) -> None:
        """Stop accepting connections, answer the received requests, and stop. A second call does nothing.

        `timeout` is the longest wait for these answers, in seconds (a number of at least 0, by default 10).
        After this time the connections whose requests are not answered are closed. A connection is closed
        earlier if its client receives no byte of an answer for a second. An interrupt closes all connections
        at once. If a handler calls this method, the call does not wait for the answers. The store stays open.
        """
        seconds = arguments.seconds("timeout", timeout, CLOSE_TIMEOUT)
        others = [service for _, _, service in self._others]
        # All services begin to stop before this method waits for one of them.
        for service in others:
            service.begin_to_end(seconds)
        for service in (self._service, *others):
            service.end(seconds)
        if self._http is not None:
            self._http.close()


# --- names ---------------------------------------------------------------------------------------


def endpoint(name: str, text: str, port: int = 0, host: str = "") -> Endpoint:
    """Parse "HOST:PORT", "HOST" (with `port`), "[ADDRESS]:PORT", or "PORT" if `host` is not empty. Raises
    InvalidTypeError or InvalidArgumentError; the message has the argument's name, `name`.
    """
    if not isinstance(text, str):
        raise InvalidTypeError(f"{name} must be a str, not {type(text).__name__}")
    default, (host, colon, number) = host, text.rpartition(":")
    if not colon and text.isdigit():
        if not default:
            raise InvalidArgumentError(f"{name}={text!r}: must be HOST:PORT or HOST, and is a port alone")
        host = default
    elif not colon or text.endswith("]"):
        host, number = text, str(port)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not number.isascii() or not number.isdigit() or int(number) > _MOST_PORT:
        raise InvalidArgumentError(
            f"{name}={text!r}: must be HOST:PORT or HOST, with a port from 0 to {_MOST_PORT}"
        )
    return Endpoint(host, int(number))


def address_text(where: Endpoint) -> str:
    """Return "HOST:PORT", with an IPv6 address in brackets."""
    return f"[{where.host}]:{where.port}" if ":" in where.host else f"{where.host}:{where.port}"


def _url(node: Node) -> str:
    return f"{node.config.security_protocol}://{address_text(node.endpoint)}"


def _advertised(bound: Endpoint, advertised: Endpoint | None) -> Endpoint:
    """Return the host and port that clients connect to. The host is the machine's host name if the listener
    listens on all addresses and `advertised` has no host.
    """
    if advertised is not None:
        return Endpoint(advertised.host or socket.gethostname(), advertised.port or bound.port)
    return Endpoint(socket.gethostname(), bound.port) if bound.host in _EVERYWHERE else bound
