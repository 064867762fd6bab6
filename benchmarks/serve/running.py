"""All works of both servers, by turns over rounds: the results.

On disk: the servers' directories, in one that goes with the run. Threads: those of the works.

First each server is started and ended, round by round; then both run until the end, and rounds of each part
that do not count warm them up. A round begins with the other server than the one before. Where Java or
Maven is not here, Kafka and Java's tools are left out, and the reason is told.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka

from segstore.bench import Cell, Figure, Progress, Results, machine

from . import bare, raw
from .bench import FULL, QUICK, Bench
from .report import findings
from .server import AbsentError, Kafka, Ours, descriptors, maker
from .server import Server as Running
from .terms import CACHED, COPY, FRESH, KAFKA, OURS, RESIDENT, SENDFILE, START, STARTED
from .works import NEEDS_JAVA, PARTS, WARM_UP, Figures, Part, transferred

QUESTION = "How does `segstore serve` compare with a warm Kafka broker, for the same clients?"
RUNS = 5
BARE = {SENDFILE: "sendfile", COPY: "copy"}
WORKS = (STARTED, FRESH, *(work for part in PARTS.values() for work in part))
DESCRIPTORS = 20_000

Key = tuple[str, str]
"""Work, server."""


@dataclass
class Found:
    """What came out, by key: the figures of each round, and why there are none."""

    figures: defaultdict[Key, list[Figures]] = field(default_factory=lambda: defaultdict(list))
    failed: dict[Key, str] = field(default_factory=dict)

    def cells(self) -> list[Cell]:
        """A cell a key, in the order of the works; figures only where no round failed."""
        there = {*self.figures, *self.failed}
        keys = [(work, server) for work in WORKS for server in (OURS, KAFKA, *BARE)]
        return [self._cell(key) for key in keys if key in there]

    def _cell(self, key: Key) -> Cell:
        keys = dict(zip(("work", "server"), key, strict=True))
        if key in self.failed:
            return Cell(keys, {}, {"failed": self.failed[key]})
        rounds = self.figures[key]
        return Cell(keys, {name: Figure(tuple(one[name] for one in rounds)) for name in rounds[0]})


def run(
    directory: Path | None = None,
    *,
    quick: bool = False,
    runs: int | None = None,
    servers: Sequence[str] = (OURS, KAFKA),
    works: Sequence[str] = WORKS,
    progress: Progress = lambda done, total, what: None,
) -> Results:
    """Raises what the start of a server raises."""
    rounds = runs or (1 if quick else RUNS)
    makers, absent = _here(servers)
    descriptors(DESCRIPTORS)
    found = Found()
    with tempfile.TemporaryDirectory(prefix="segstore-serve-", dir=directory) as made:
        where = Path(made)
        about = machine(where, ["confluent-kafka"])
        shown = _Shown(progress, rounds * (1 + len(PARTS)) + sum(WARM_UP.get(part, 1) for part in PARTS))
        if {STARTED, FRESH} & {*works}:
            for number in range(rounds):
                shown(STARTED)
                _start(makers, number, where, found)
        parts = {part: of_it for part, of_it in PARTS.items() if {*of_it} & {*works}}
        if KAFKA in absent:
            parts = {part: of_it for part, of_it in parts.items() if part not in NEEDS_JAVA}
        if parts:
            _works(makers, parts, rounds, QUICK if quick else FULL, where, found, shown)
    results = Results("serve", QUESTION, about, _settings(makers, absent, rounds, quick), found.cells())
    return Results(
        results.name, QUESTION, results.machine, results.settings, results.cells, findings(results)
    )


class _Shown:
    """Tells how far a run is."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def __call__(self, what: str) -> None:
        self._progress(min(self._done, self._total), self._total, what)
        self._done += 1


def _here(servers: Sequence[str]) -> tuple[list[Ours | Kafka], dict[str, str]]:
    here, absent = [], {}
    for name in servers:
        try:
            here.append(maker(name))
        except AbsentError as error:
            absent[name] = str(error)
    return here, absent


def _start(makers: list[Ours | Kafka], number: int, where: Path, found: Found) -> None:
    """Start each server in an empty directory, and end it."""
    for one in _turned(makers, number):
        directory = where / f"start-{number}-{'ours' if one.name == OURS else 'theirs'}"
        with one.running(directory) as server:
            found.figures[STARTED, one.name].append({START: server.started * 1000})
            found.figures[FRESH, one.name].append({RESIDENT: server.resident()})
        shutil.rmtree(directory, ignore_errors=True)


def _works(
    makers: list[Ours | Kafka],
    parts: dict[Part, tuple[str, ...]],
    rounds: int,
    effort: object,
    where: Path,
    found: Found,
    shown: Callable[[str], None],
) -> None:
    with ExitStack() as session:
        benches = [
            Bench(session.enter_context(one.running(where / f"server-{at}")), effort)
            for at, one in enumerate(makers)
        ]
        for part, of_it in parts.items():
            for number in range(-WARM_UP.get(part, 1), rounds):  # below 0: to warm up
                shown(of_it[0])
                counted = found.figures if number >= 0 else defaultdict(list)
                for bench in _turned(benches, number):
                    _turn(bench, part, of_it, counted, found.failed)
                if CACHED in of_it and (CACHED, benches[0].server.name) not in found.failed:
                    _bare(benches[0], counted)


def _turn(
    bench: Bench,
    part: Part,
    of_it: tuple[str, ...],
    counted: defaultdict[Key, list[Figures]],
    failed: dict[Key, str],
) -> None:
    """Have a server do a part, unless a part of it has failed before; the others go on then."""
    name, left = bench.server.name, list(of_it)
    if any((work, name) in failed for work in of_it):
        return
    try:
        for work, figures in part(bench):
            left.remove(work)
            counted[work, name].append(figures)
    except Exception as error:
        failed.update({(work, name): f"{type(error).__name__}: {error}".partition("\n")[0] for work in left})


def _bare(bench: Bench, counted: defaultdict[Key, list[Figures]]) -> None:
    """The same bytes of the same file, by loops that do nothing else."""
    path, size = bench.log(bench.made[CACHED]), bench.effort.cached
    data = [bare.request(position, raw.BUFFER) for position in range(0, size, raw.BUFFER)]
    for name, way in BARE.items():
        with bare.serving(way, path) as (pid, address), raw.raw(address) as client:
            server = Running(name, "", pid, path.parent, 0.0)
            client.exchange(data[0])
            with server.measured() as spent:
                got = [client.exchange(each) for each in data]
            assert sum(got) == size
            counted[CACHED, name].append(transferred(size, spent))


def _turned(all_of_them: Sequence, number: int) -> Iterator:
    return iter(all_of_them if number % 2 == 0 else [*reversed(all_of_them)])


def _settings(
    makers: list[Ours | Kafka], absent: dict[str, str], rounds: int, quick: bool
) -> dict[str, object]:
    clients = {"confluent-kafka": confluent_kafka.__version__, "librdkafka": confluent_kafka.libversion()[0]}
    versions = {one.name: one.versions for one in makers}
    return {"runs": rounds, "quick": quick, "servers": versions, "clients": clients, "absent": absent}
