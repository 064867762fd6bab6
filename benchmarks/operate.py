"""What counting requests costs a server: `python -m benchmarks.operate`, which is `make bench-operate`.

One server has two connections: one as it is, and one of a class that is made of the same source without the
lines that count. Both send the same requests, by turns, 2,000 a second; a figure is the server's processor
time for a request. What counting costs is the median of the differences of turns side by side, which others
on the machine disturb alike. The server is a process of its own
(`python -m benchmarks.operate --serve DIRECTORY`); each work has a new one several times, since two
copies of the same code are never equally fast.

On disk: a store in a temporary directory. Threads: one; those of the server.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from operator import sub
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import NamedTuple

import click

from benchmarks.serve import raw
from benchmarks.serve.server import cpu_seconds
from benchmarks.steps import ROOT
from segstore.bench import Figure
from segstore.bench.figures import by_turns
from segstore.bench.terminal import figure_text

CPU = "cpu us"
BARE, COUNTING, RATIO = "without counting", "counting", "ratio"
MOST = 1.02
WARM = 200
RATE, REQUESTS, TURNS, SERVERS = 2_000, 20, 300, 5
LINES_THAT_COUNT = re.compile(
    r"self\._row, self\._received.*|self\._received = SIZE_FIELD.*|self\._row = row = .*|"
    r"self\._count\(\w+\)|size = SIZE_FIELD.*|row\.tallies.*|_count\(self\._row.*"
)
"""Lines of `Connection` that count requests."""
LINES = 12
"""How many of these there are at least: else the benchmark compares a connection with itself."""
TOPIC = "t"
Send = Callable[[raw.Raw], object]


class Work(NamedTuple):
    """A request that is sent again and again."""

    name: str
    request: Callable[[], bytes]


WORKS = (
    Work("produce of one record", lambda: raw.produce(TOPIC, raw.batch(100))),
    Work("fetch of one record", lambda: raw.fetch(TOPIC, 0, 100)),
    Work("fetch of 16 KiB", lambda: raw.fetch(TOPIC, 1, 1 << 14)),
    Work("metadata", lambda: raw.metadata(TOPIC)),
)


# --- the server ----------------------------------------------------------------------------------


class Nowhere:
    """Implements `segstore.server.request.ApiCounts`: C counts nothing."""

    counts, counts_at = None, 0

    @staticmethod
    def add_error(code: int) -> None:
        raise RuntimeError(f"a request has failed with error {code}")


def bare() -> ModuleType:
    """Return a copy of the module of connections in which nothing counts requests."""
    from segstore.server.network import connection

    lines = inspect.getsource(connection).splitlines()
    found = [number for number, line in enumerate(lines) if LINES_THAT_COUNT.fullmatch(line.strip())]
    if len(found) < LINES:
        raise RuntimeError(f"connection.py has {len(found)} lines that count requests, and not {LINES}")
    for number in found:
        indent = len(lines[number]) - len(lines[number].lstrip())
        lines[number] = " " * indent + "pass"
    made = ModuleType(connection.__name__)
    made.__package__ = connection.__package__
    sys.modules[f"{__name__}.bare"] = made
    exec(compile("\n".join(lines), "bare connections", "exec"), made.__dict__)
    made.ConnectionState = connection.ConnectionState  # type: ignore[attr-defined]  # others compare with its members
    made.ServerConnection.row = lambda channel, api: Nowhere  # type: ignore[attr-defined]
    return made


def serve(directory: Path, first: int) -> None:
    """Serve a store until the input ends; every second connection, from the number `first` on, is one that
    counts.
    """
    import segstore
    from segstore.server.network import connections

    kinds = connections.ServerConnection, bare().ServerConnection
    numbers = count(first)
    connections.ServerConnection = lambda *given: kinds[next(numbers) % 2](*given)  # type: ignore
    with segstore.open(directory) as store, segstore.serve(store, port=0) as server:
        store.create_topic(TOPIC)
        for size in (10, 1 << 14):
            store.partition(TOPIC).append(b"x" * size)
        print(server.port, flush=True)
        sys.stdin.read()


@contextmanager
def running(directory: Path, first: int) -> Iterator[tuple[int, str]]:
    """Start a server, and give its process's id and its address."""
    command = [sys.executable, "-m", "benchmarks.operate", "--serve", str(directory), str(first)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.pid, f"127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.communicate()


# --- turns ---------------------------------------------------------------------------------------


def turn(pid: int, client: raw.Raw, data: bytes, requests: int) -> dict[str, float]:
    """Send requests at RATE; return the server's processor time of one."""
    before, due = cpu_seconds(pid), time.perf_counter()
    for _ in range(requests):
        due += 1 / RATE
        client.exchange(data)
        time.sleep(max(due - time.perf_counter(), 0.0))
    return {CPU: (cpu_seconds(pid) - before) / requests * 1e6}


def measured(work: Work, turns: int, requests: int, servers: int) -> dict[str, Figure]:
    """Return the figures of a work, each of all servers: of one server the medians of what a request costs
    without counting, and of how much more a turn beside it costs with it.
    """
    found: dict[str, list[float]] = {BARE: [], COUNTING: [], RATIO: []}
    for number in range(servers):
        with tempfile.TemporaryDirectory(prefix="segstore-operate-") as made, ExitStack() as stack:
            pid, address = stack.enter_context(running(Path(made) / "store", number % 2))
            data, clients = work.request(), {}
            for is_counted in (True, False) if number % 2 == 0 else (False, True):
                clients[is_counted] = stack.enter_context(raw.raw(address))
                for _ in range(WARM):
                    clients[is_counted].exchange(data)
            variants = {key: partial(turn, pid, client, data, requests) for key, client in clients.items()}
            figures = by_turns(variants, turns)
        bare, counted = figures[False][CPU].runs, figures[True][CPU].runs
        cost = median(map(sub, counted, bare))
        for name, value in zip(found, (median(bare), cost, 1 + cost / median(bare)), strict=True):
            found[name].append(value)
    return {name: Figure(tuple(values)) for name, values in found.items()}


@click.command()
@click.option("--serve", "served", type=(click.Path(path_type=Path), int), hidden=True)
@click.option("--turns", default=TURNS, show_default=True, type=click.IntRange(1), help="Of one server.")
@click.option("--quick", is_flag=True, help="Few requests, and no figure to believe.")
def main(served: tuple[Path, int] | None, turns: int, quick: bool) -> None:
    """Measure what counting requests costs a server."""
    if served is not None:
        serve(*served)
        return
    turns, requests, servers = (1, 10, 1) if quick else (turns, REQUESTS, SERVERS)
    for work in WORKS:
        figures = measured(work, turns, requests, servers)
        told = ", ".join(f"{name} {figure_text(figure)}" for name, figure in figures.items())
        is_met = "" if figures[RATIO].median <= MOST else f", above {MOST}"
        click.echo(f"{work.name}, {CPU} a request: {told}{is_met}")


if __name__ == "__main__":
    main()
