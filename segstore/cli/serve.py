"""`segstore serve`: serves a store to Kafka's clients until it is interrupted. On disk: through the engine.

Threads: the main thread waits; the server has its own.
"""

from __future__ import annotations

import errno

import rich_click as click

import segstore
from segstore.cli.options import pairs, store_option
from segstore.cli.signals import ended_by_signals
from segstore.errors import ListenError
from segstore.server.network.server import address_text, endpoint
from segstore.server.node import Endpoint
from segstore.server.settings import ServerConfig
from segstore.threads import Latch

PORT = 9092
_AUTO_CREATE = "auto_create_topics_enable"
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
    metavar="HOST:PORT",
    default=f"127.0.0.1:{PORT}",
    show_default=True,
    help="Where to listen: 0.0.0.0 is every address of this machine; port 0 is one that is free.",
)
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    help="What clients are told to connect to; by default where the server listens.",
)
@click.option(
    "--auto-create-topics/--no-auto-create-topics",
    default=None,
    help="Whether clients create the topics that they ask for; by default they do.",
)
@click.option(
    "--set",
    "given",
    metavar="NAME=VALUE",
    multiple=True,
    callback=pairs,
    help="A setting of the server with Kafka's name, such as num.partitions=4; may be repeated.",
)
def serve(
    path: str, listen: str, advertise: str | None, auto_create_topics: bool | None, given: dict[str, str]
) -> None:
    """Serve the store to Kafka's clients, as a cluster of one broker, until Ctrl-C.

    The store is made where there is none yet. At Ctrl-C or SIGTERM the requests that have come are answered,
    and the store is closed; a second Ctrl-C does not wait for answers.
    """
    settings: dict[str, object] = {name.replace(".", "_"): value for name, value in given.items()}
    if auto_create_topics is not None:
        settings[_AUTO_CREATE] = auto_create_topics
    ServerConfig.parse(settings)  # nothing is made where one of them is wrong
    where = endpoint("--listen", listen, PORT)
    if advertise is not None:
        endpoint("--advertise", advertise)
    with ended_by_signals(), segstore.open(path) as store:
        try:
            server = segstore.serve(store, where.host, where.port, advertise, **settings)
        except ListenError as error:
            raise _with_advice(error) from None
        with server:
            click.echo(_told(server, path))
            Latch().wait()


def _with_advice(error: ListenError) -> ListenError:
    """Return the error with what the user may do about it."""
    advice = _ADVICE.get(error.errno or 0)
    return ListenError(error.errno, f"{error.strerror}: {advice}", error.filename) if advice else error


def _told(server: segstore.Server, path: str) -> str:
    listens = address_text(Endpoint(server.host, server.port))
    told = "" if listens == server.bootstrap_servers else f", and tells clients {server.bootstrap_servers}"
    return f"{path} listens on {listens}{told}"
