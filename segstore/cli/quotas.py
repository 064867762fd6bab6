"""`segstore quotas`: byte rates of clients. On disk: through the engine. Threads: one."""

from __future__ import annotations

from typing import Any

import rich_click as click

import segstore
from segstore.cli.options import config_option, json_option, open_reading, store_option
from segstore.cli.output import add_row, console, print_json, table
from segstore.coordinator.quotas import CONSUMER_BYTE_RATE, DEFAULT, PRODUCER_BYTE_RATE
from segstore.coordinator.quotas import quotas as quotas_of


@click.command()
@click.argument("client", metavar="[CLIENT_ID]", required=False)
@click.option("--default", "of_default", is_flag=True, help="Of all clients that have no rate of their own.")
@config_option
@click.option(
    "--delete-config", "-d", "forget", metavar="NAME", multiple=True, help="Take a client's rate back."
)
@store_option
@json_option
def quotas(
    client: str | None,
    of_default: bool,
    config: dict[str, str],
    forget: tuple[str, ...],
    path: str,
    as_json: bool,
) -> None:
    """Show byte rates of clients, or change one's: producer_byte_rate and consumer_byte_rate, bytes a second.

    `segstore quotas app -c producer_byte_rate=1048576` keeps all producers with client_id "app" together to
    1 MiB a second, as their batches are stored.
    """
    if of_default and client is not None:
        raise click.UsageError("Give a CLIENT_ID or --default, not both.")
    name = DEFAULT if of_default else client
    both = sorted(set(config) & set(forget))
    if both:
        raise click.UsageError(f"{both[0]} is both set and deleted.")
    changes: dict[str, Any] = {**config, **dict.fromkeys(forget)}
    if changes and name is None:
        raise click.UsageError("Whose? Give a CLIENT_ID or --default.")
    with open_reading(path) as store:
        limits = quotas_of(store).describe(name)
    if changes and name is not None:
        with segstore.open(path) as store:
            limits = {name: quotas_of(store).alter(name, changes)}
    _print(limits, as_json)


def _print(limits: dict[str, dict[str, int]], as_json: bool) -> None:
    if as_json:
        for client, rates in limits.items():
            print_json({"client_id": client, **rates})
        return
    right = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)
    made = table("client id", *right, right=right)
    for client, rates in limits.items():
        add_row(made, client, *(rates.get(name) for name in right))
    if limits:
        console().print(made)
    else:
        click.echo("no limits", err=True)
