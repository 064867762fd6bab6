"""`segstore serve`: serves a store to Kafka's clients until it is interrupted. On disk: through the engine.

Threads: the main thread waits; the server has its own.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import click

import segstore
from segstore.choices import HOST, PORT
from segstore.cli.options import http_option, settings_option, store_option, tell_http
from segstore.cli.signals import stopped_by_signals
from segstore.errors import ConfigError, InvalidArgumentError, ListenError, SegstoreError

_AUTO_CREATE = "auto_create_topics_enable"
_NAME = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+")
_OPTIONS = {
    "ssl_keystore_location": "--tls-keystore",
    "ssl_truststore_location": "--tls-truststore",
    "sasl_users": "--sasl-users",
    "super_users": "--super-users",
}
_ADVICE = {
    errno.EADDRINUSE: "another program listens there; --listen takes another port, or 0 for one that is free",
    errno.EADDRNOTAVAIL: "this machine does not have that address; 0.0.0.0 is every one that it has",
    errno.EACCES: "ports below 1024 are the system's; --listen takes a higher one",
}


@click.command()
@store_option
@click.option(
    "--listen",
    "-l",
    metavar="[PROTOCOL://]HOST:PORT",
    multiple=True,
    default=[f"{HOST}:{PORT}"],
    show_default=True,
    help="Where to listen: 0.0.0.0 is every address of this machine, a port alone is one of 127.0.0.1; port "
    "0 is one that is free. PROTOCOL is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. May be repeated, with "
    "another protocol each, or a name that --set listener.security.protocol.map explains.",
)
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    multiple=True,
    help="What clients are told to connect to; by default where the server listens. Of several --listen it "
    "is given for each, in their order.",
)
@click.option(
    "--auto-create-topics/--no-auto-create-topics",
    default=None,
    help="Whether clients create the topics that they ask for; by default they do.",
)
@click.option(
    "--tls-keystore",
    metavar="FILE",
    help="The server's private key and certificate chain, in PEM.",
)
@click.option(
    "--tls-truststore",
    metavar="FILE",
    help="Certificates in PEM by which those of clients are judged; clients must show one then.",
)
@click.option(
    "--sasl-users",
    metavar="FILE",
    help="Users of SASL, a line NAME:PASSWORD for each.",
)
@click.option(
    "--allow",
    metavar="ENTRY",
    multiple=True,
    help='What a principal may do, as "User:alice: read,write topic flights*; read group g*"; may be '
    "repeated. What no entry allows is denied then.",
)
@click.option(
    "--super-users",
    metavar="PRINCIPALS",
    help='Who may do everything, as "User:alice;User:bob".',
)
@click.option(
    "--old-primary-config",
    metavar="FILE",
    type=click.File("r", encoding="utf-8"),
    help="A properties file of a client, as Kafka's tools have it: how a store that was promoted connects to "
    "the primary that it has replaced, to tell it so.",
)
@click.option(
    "--shared",
    is_flag=True,
    help='Share the store: other processes of this machine may open it with shared=True or shared="guest",'
    " and append by themselves beside the server.",
)
@http_option
@settings_option(
    "A setting of the server, or of the store, with Kafka's name, such as num.partitions=4; may be repeated."
)
def serve(
    path: str,
    listen: tuple[str, ...],
    advertise: tuple[str, ...],
    auto_create_topics: bool | None,
    tls_keystore: str | None,
    tls_truststore: str | None,
    sasl_users: str | None,
    allow: tuple[str, ...],
    super_users: str | None,
    old_primary_config: Any,
    shared: bool,
    http: str | None,
    given: dict[str, str],
) -> None:
    """Serve the store to Kafka's clients, as a cluster of one broker, until Ctrl-C.

    The store is made where there is none yet. At Ctrl-C or SIGTERM the requests that have come are answered,
    and the store is closed, which a line on standard error says; a second Ctrl-C does not wait for answers.
    The exit status is 0 after SIGTERM.
    """
    from segstore.cli.places.properties import client_settings
    from segstore.config import StoreConfig
    from segstore.server.network.server import endpoint
    from segstore.server.settings import ServerConfig, parted

    settings: dict[str, object] = {name.replace(".", "_"): value for name, value in given.items()}
    first, *more = listen
    protocol, _, address = first.rpartition("://")
    several = bool(more) or "listener_security_protocol_map" in settings
    if several:
        settings |= _listeners(listen, advertise)
    elif len(advertise) > 1:
        raise InvalidArgumentError("--advertise is given more often than --listen")
    options: dict[str, object] = {
        _AUTO_CREATE: auto_create_topics,
        "security_protocol": None if several else protocol.upper() or None,
        "ssl_keystore_location": tls_keystore,
        "ssl_truststore_location": tls_truststore,
        "ssl_client_auth": "required" if tls_truststore and "ssl_client_auth" not in settings else None,
        "sasl_users": sasl_users,
        "allow": allow or None,
        "super_users": super_users,
    }
    settings |= {name: value for name, value in options.items() if value is not None}
    with _names_of_the_command(settings):
        of_store, of_server = parted(settings)
        for kind, told in ((StoreConfig, of_store), (ServerConfig, of_server)):
            kind.parse(told)  # nothing is made where one of them is wrong
    of_client = (
        None
        if old_primary_config is None
        else client_settings(old_primary_config.read(), old_primary_config.name)
    )
    place: dict[str, Any] = {}
    if not several and "listeners" not in settings:
        where = endpoint("--listen", address, PORT, HOST)
        place = {"host": where.host, "port": where.port, "advertised": next(iter(advertise), None)}
        for each in advertise:
            endpoint("--advertise", each)
    with stopped_by_signals(), _none_made_in_vain(path), _opened(path, of_store, shared) as store:
        try:
            with _names_of_the_command(settings):
                server = segstore.serve(store, **place, old_primary=of_client, http=http, **of_server)
        except ListenError as error:
            raise _with_advice(error) from None
        with server:
            click.echo(_told(server, path))
            tell_http(server.http)
            _wait_for_signal()


@contextmanager
def _opened(path: str, config: Mapping[str, object], shared: bool) -> Iterator[segstore.Store]:
    """Open the store for a block; at the signal that ends it say that the store is closed. Raises
    SegstoreError if it is shared, and another process is its host.
    """
    store = segstore.open(path, config=config, shared=shared)
    try:
        with store:
            if store.role == "guest":
                raise SegstoreError(
                    f"{path} has a host already, process {store.host_pid}, and only the host serves: end "
                    'that process, and have workers open the store with shared="guest", which never become it'
                )
            yield store
    except KeyboardInterrupt:
        if store._context.closed:  # a later signal may have interrupted the close
            click.echo(f"{path} is closed", err=True)
        raise


@contextmanager
def _none_made_in_vain(path: str) -> Iterator[None]:
    """Remove the store of a block that has made it and ends with an error, as a port that is taken."""
    from segstore.files import Files
    from segstore.storage.meta.directory_safety import remove_unused

    was_there = os.path.exists(path)
    try:
        yield
    except SegstoreError:
        if not was_there and os.path.isdir(path) and remove_unused(Files(), path):
            os.rmdir(path)
        raise


def _wait_for_signal() -> NoReturn:
    """Wait until the handler of a signal raises. The system may give a signal to another thread; CPython
    calls its handler in this one, but does not wake it: so it looks each second.
    """
    while True:
        time.sleep(1)


def _listeners(listen: Sequence[str], advertise: Sequence[str]) -> dict[str, object]:
    """Return the settings of several listeners. Raises InvalidArgumentError."""
    from segstore.server.network.server import address_text, endpoint

    if advertise and len(advertise) != len(listen):
        raise InvalidArgumentError(
            f"--advertise is given {len(advertise)} times, and --listen {len(listen)}: each has one, in order"
        )
    places = []
    for each in listen:
        name, _, address = each.rpartition("://")
        places.append((name or "PLAINTEXT", address_text(endpoint("--listen", address, PORT, HOST))))
    told = [address_text(endpoint("--advertise", each)) for each in advertise]
    made: dict[str, object] = {"listeners": ",".join(f"{name}://{address}" for name, address in places)}
    if told:
        names = [name for name, _ in places]
        made["advertised_listeners"] = ",".join(map("://".join, zip(names, told, strict=True)))
    return made


@contextmanager
def _names_of_the_command(given: Mapping[str, object]) -> Iterator[None]:
    """Run a block whose ConfigError has settings by their names with dots, and with the option that gives
    them.
    """
    from segstore.config import StoreConfig
    from segstore.server.settings import ServerConfig

    of_store = (row.name.replace(".", "_") for row in StoreConfig.describe())
    known = {*given, *(row.name for row in ServerConfig.describe()), *of_store}

    def named(match: re.Match[str]) -> str:
        if match[0] not in known:
            return match[0]
        option = _OPTIONS.get(match[0])
        return match[0].replace("_", ".") + (f" ({option})" if option else "")

    try:
        yield
    except ConfigError as error:
        raise ConfigError(_NAME.sub(named, str(error))) from None


def _with_advice(error: ListenError) -> ListenError:
    """Return the error with what the user may do about it."""
    advice = _ADVICE.get(error.errno or 0)
    return ListenError(error.errno, f"{error.strerror}: {advice}", error.filename) if advice else error


def _told(server: segstore.Server, path: str) -> str:
    from segstore.server.network.server import address_text
    from segstore.server.node import Endpoint

    if len(server.advertised_listeners) > 1:
        return f"{path} listens for {', '.join(server.advertised_listeners)}"
    listens = address_text(Endpoint(server.host, server.port))
    told = "" if listens == server.bootstrap_servers else f", and tells clients {server.bootstrap_servers}"
    return f"{path} listens on {listens}{told}"
