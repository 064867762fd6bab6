"""`segstore alter`: settings and partitions of a topic. On disk: through the engine. Threads: one."""

from __future__ import annotations

from typing import Any

import rich_click as click

from segstore.cli.options import config_option, open_for_change, store_option


@click.command()
@click.argument("topic")
@config_option
@click.option(
    "--delete-config",
    "-d",
    "forget",
    metavar="NAME",
    multiple=True,
    help="Take a setting back to its default.",
)
@click.option(
    "--partitions", "-p", type=click.IntRange(1, 100_000), help="How many there shall be, more than now."
)
@store_option
def alter(
    topic: str, config: dict[str, str], forget: tuple[str, ...], partitions: int | None, path: str
) -> None:
    """Change TOPIC's settings, or add partitions."""
    both = sorted(set(config) & set(forget))
    if both:
        raise click.UsageError(f"{both[0]} is both set and deleted.")
    changes: dict[str, Any] = {**config, **dict.fromkeys(forget)}
    if not changes and partitions is None:
        raise click.UsageError("Nothing to change: give --config, --delete-config or --partitions.")
    with open_for_change(path, topic) as store:
        if changes:
            store.alter_topic(topic, changes)
        if partitions is not None:
            store.add_partitions(topic, partitions)
        info = store.topics()[topic]
    settings = "".join(f", {name}={value}" for name, value in info.config.items())
    click.echo(
        f"altered {topic}: {info.partitions} partition{'s' * (info.partitions != 1)}{settings}", err=True
    )
