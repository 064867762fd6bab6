"""`segstore demote`: removes the standby of a primary. On disk: the engine changes the store. Threads:
one.
"""

from __future__ import annotations

import click
from click.core import ParameterSource

import segstore
from segstore.cli.client_option import client_option
from segstore.cli.options import store_given
from segstore.errors import InvalidArgumentError

_NONE = "there is no standby"


@click.command()
@click.option(
    "--standby",
    is_flag=True,
    required=True,
    expose_value=False,
    help="Take the standby away: acks=all no longer waits for it, also if it is in sync mode.",
)
@store_given("The primary's directory, which nobody has open.")
@click.option("--bootstrap", "-b", metavar="HOST:PORT", help="The primary's server, in place of --store.")
@client_option("With --bootstrap: a setting of the client, such as security.protocol=SSL; may be repeated.")
@click.pass_context
def demote(ctx: click.Context, path: str | None, bootstrap: str | None, config: dict[str, str]) -> None:
    """Remove a primary's standby, so that the primary alone acknowledges acks=all.

    The standby keeps its records, and may follow again as a new standby.
    """
    source = ctx.get_parameter_source("path")
    if bootstrap is not None and source is ParameterSource.ENVIRONMENT:
        path = None
    if (path is None) == (bootstrap is None):
        raise click.UsageError("Give either --store PATH or --bootstrap HOST:PORT.")
    done = _of_server(bootstrap, config) if bootstrap is not None else _of_store(str(path))
    click.echo("the standby was taken away" if done else _NONE)


def _of_store(path: str) -> bool:
    from segstore.cli.places.of_store import open_reading
    from segstore.storage.store.writer import StoreWriter

    # This raises an error if `path` has no store. The call after it would create one.
    with open_reading(path):
        pass
    with segstore.open(path) as store:
        side = store.engine
        if not isinstance(side, StoreWriter):
            raise InvalidArgumentError(f"{path}: {_NONE}")
        return side.primary.unregister()


def _of_server(bootstrap: str, given: dict[str, str]) -> bool:
    from segstore.protocol.error_codes import broker_error
    from segstore.storage.store.primary import STANDBY_ID
    from segstore.wire.cluster import Cluster
    from segstore.wire.settings import WireConfig

    cluster = Cluster(bootstrap, WireConfig.parse(given))
    try:
        cluster.metadata([])
        answer = cluster.ask("UnregisterBroker", broker_id=STANDBY_ID)
    finally:
        cluster.close()
    if answer.error_code:
        raise broker_error(answer.error_code, f"{bootstrap}: {answer.error_message or 'no standby'}")
    return True
