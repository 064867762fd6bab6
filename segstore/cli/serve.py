"""`segstore serve`: serves a store to Kafka's clients, until Ctrl-C. On disk: the engine reads and writes the
store.

Threads: the main thread waits. The server has its own threads.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

import click

import segstore
from segstore.choices import HOST, PORT
from segstore.cli.lifetime import Lifetime
from segstore.cli.logs import log_options, logged
from segstore.cli.options import http_option, no_bootstrap, print_http_address, settings_option, store_given
from segstore.cli.signals import hangups, stopped_by_signals
from segstore.errors import ListenError, SegstoreError
from segstore.logger import Logger
from segstore.threads import take

if TYPE_CHECKING:
    from segstore.cli.server_plan import ServerOptions

log = Logger("segstore")

_AUTO_CREATE = "auto_create_topics_enable"
_ADVICE = {
    errno.EADDRINUSE: "another program listens there; --listen takes another port, or 0 for one that is free",
    errno.EADDRNOTAVAIL: "this machine does not have that address; 0.0.0.0 is every one that it has",
    errno.EACCES: "ports below 1024 are the system's; --listen takes a higher one",
}


@click.command()
@no_bootstrap
@store_given("Directory of the store; by default log.dirs of --config.", kind=click.Path(file_okay=False))
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="A properties file with settings, as Kafka's server.properties; what the command line says counts"
    " more. `segstore config check FILE` judges it.",
)
@click.option(
    "--listen",
    "-l",
    metavar="[PROTOCOL://]HOST:PORT",
    multiple=True,
    show_default=f"{HOST}:{PORT}, or listeners of --config",
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
@log_options
def serve(
    path: str | None,
    config: str | None,
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
    log_format: str,
    log_level: str,
) -> None:
    """Serve the store to Kafka's clients, as a cluster of one broker, until Ctrl-C.

    The store is created if there is none yet. At Ctrl-C or SIGTERM the requests that were received are
    answered, and the store is closed, which is logged on standard error; a second Ctrl-C does not wait for
    the answers. The exit status is 0 after SIGTERM. At SIGHUP certificates, users, the allow list and super
    users are read again, from the files that --config and other options name; connections stay open.
    """
    from segstore.cli.server_plan import ServerOptions

    options: dict[str, object] = {
        _AUTO_CREATE: auto_create_topics,
        "ssl_keystore_location": tls_keystore,
        "ssl_truststore_location": tls_truststore,
        "sasl_users": sasl_users,
        "allow": allow or None,
        "super_users": super_users,
    }
    settings: dict[str, object] = {name.replace(".", "_"): value for name, value in given.items()}
    settings |= {name: value for name, value in options.items() if value is not None}
    asked = ServerOptions(path, listen, advertise, settings, config, http)
    with hangups() as came, logged(log_format, log_level):
        _serve(asked, old_primary_config, shared, came)


def _serve(asked: ServerOptions, old_primary_config: Any, shared: bool, came: SimpleQueue[int]) -> None:
    """Serve until a signal stops the server. A handler puts an item into `came` at each SIGHUP. After a
    SIGHUP, reload the settings.
    """
    from segstore.cli.places.properties import client_settings
    from segstore.cli.reloading import Reloading
    from segstore.cli.server_plan import plan
    from segstore.cli.setting_names import names_of_the_command

    made = plan(asked)
    of_client = (
        None
        if old_primary_config is None
        else client_settings(old_primary_config.read(), old_primary_config.name)
    )
    with (
        stopped_by_signals(),
        _unused_store_removed(made.path) as is_new,
        Lifetime(made.path) as life,
        _opened(made.path, made.of_store, shared) as store,
    ):
        life.is_closed = lambda: store.context.closed
        if made.ignored:
            log.info("%s: %s have no effect here", asked.config, ", ".join(made.ignored))
        try:
            with names_of_the_command(made.of_server):
                server = segstore.serve(
                    store, **made.place, old_primary=of_client, http=made.http, **made.of_server
                )
        except ListenError as error:
            raise _with_advice(error, made.http) from None
        with server, life.until_stopped():
            life.started(_secured(server))
            if is_new:
                log.info("%s is a new store: there was none", made.path)
            click.echo(_listening_text(server, made.path))
            print_http_address(server.http)
            _wait_for_signal(came, Reloading(server, asked, made).reload)


@contextmanager
def _opened(path: str, config: Mapping[str, object], shared: bool) -> Iterator[segstore.Store]:
    """Open the store, and close it at the end of the `with` block. Raises SegstoreError if the store is
    shared and another process is its host.
    """
    with segstore.open(path, config=config, shared=shared) as store:
        if store.role == "guest":
            raise SegstoreError(
                f"{path} has a host already, process {store.host_pid}, and only the host serves: end "
                'that process, and have workers open the store with shared="guest", which never become it'
            )
        yield store


@contextmanager
def _unused_store_removed(path: str) -> Iterator[bool]:
    """Yield whether the directory is missing or empty. Remove the store if three things are true: the
    directory was missing, the `with` block raises a SegstoreError (for example, because a port is in use),
    and the new store was not used yet.
    """
    from segstore.files import Files
    from segstore.storage.meta.directory_safety import remove_unused

    was_there = os.path.exists(path)
    try:
        yield not was_there or (os.path.isdir(path) and not os.listdir(path))
    except SegstoreError:
        if not was_there and os.path.isdir(path) and remove_unused(Files(), path):
            os.rmdir(path)
        raise


def _wait_for_signal(came: SimpleQueue[int], reload: Callable[[], None]) -> NoReturn:
    """Wait until a signal's handler raises an exception. Call `reload` after a SIGHUP."""
    # The wait has a time-out, because the system may deliver a signal to another thread. CPython runs the
    # handler in this thread, but does not wake this thread for it.
    while True:
        with suppress(Empty):
            take(came, 1)
            while not came.empty():  # If several SIGHUPs have come, one reload is enough.
                came.get_nowait()
            reload()


def _with_advice(error: ListenError, http: str | None) -> ListenError:
    """Return the error. If there is advice for the user, add it to the message."""
    from segstore.operating.address import http_address

    advice = _ADVICE.get(error.errno or 0)
    if advice and http is not None and error.filename == str(http_address(http)):
        advice = advice.replace("--listen", "--http")
    return ListenError(error.errno, f"{error.strerror}: {advice}", error.filename) if advice else error


def _listening_text(server: segstore.Server, path: str) -> str:
    from segstore.server.network.server import address_text
    from segstore.server.node import Endpoint

    if len(server.advertised_listeners) > 1:
        return f"{path} listens for {', '.join(server.advertised_listeners)}"
    listens = address_text(Endpoint(server.host, server.port))
    advertised = (
        "" if listens == server.bootstrap_servers else f", and tells clients {server.bootstrap_servers}"
    )
    return f"{path} listens on {listens}{advertised}"


def _secured(server: segstore.Server) -> str:
    """Return a text that says at which addresses the server listens, how each address is protected, and which
    rights clients have.
    """
    from segstore.server.network.server import address_text
    from segstore.server.security.summary import protection, rights

    places = [
        f"{node.config.security_protocol}://{address_text(bound)} ({protection(node.config)})"
        for node, bound in server._places()
    ]
    return f"listens on {', '.join(places)}; {rights(server.node.config)}"
