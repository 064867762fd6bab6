"""`segstore create`: a new topic, and a store for it where there is none. On disk: by the engine.

Threads: one.
"""

from __future__ import annotations

import rich_click as click

import segstore
from segstore.cli.options import config_option, store_option
from segstore.config import TopicConfig
from segstore.names import check_topic


@click.command()
@click.argument("topic")
@click.option(
    "--partitions",
    "-p",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="How many partitions.",
)
@config_option
@store_option
def create(topic: str, partitions: int, config: dict[str, str], path: str) -> None:
    """Make TOPIC, and the store where there is none yet."""
    check_topic(topic)  # before a store is made for it
    TopicConfig.parse(config)
    with segstore.open(path) as store:
        info = store.create_topic(topic, partitions=partitions, config=config)
    click.echo(f"created {info.name}: {info.partitions} partition{'s' * (info.partitions != 1)}", err=True)
