"""All peers that are here, by turns over rounds: the results. On disk: logs in a directory that goes with the
run. Threads: those of `works`.

A peer whose package, or whose Java, is not here is told as absent, with the reason; what a peer can't do is
told as not offered; a peer that gave other records than it got, or failed, has no figure, but says so.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from segstore.bench import Cell, Figure, Progress, Results, machine

from .peer import POLL, AbsentError, NotOfferedError, Peer
from .records import Records
from .report import findings
from .turn import WORKS, Bench, Effort, WrongError
from .works import PARTS

QUESTION = "How do segstore and other stores compare at the work of an event log, on the same records?"
SIZES = {100: 200_000, 1_000: 50_000}
"""Bytes of a value -> records."""
QUICK_SIZES = {100: 5_000}
EFFORT = Effort(seconds=0.15, singles=20_000, synced=300, reads=2_000, followed=300)
QUICK = Effort(seconds=0.05, singles=500, synced=10, reads=50, followed=30)
RUNS = 5

MAKERS = {
    "segstore": "with_segstore:peer",
    "segstore, columns": "with_segstore:column_peer",
    "LMDB": "with_lmdb:peer",
    "SQLite": "with_sqlite:peer",
    "RocksDB": "with_rocksdict:peer",
    "persist-queue": "with_persist_queue:peer",
    "diskcache": "with_diskcache:peer",
    "Kafka": "with_kafka:peer",
    "LMDB, bare cursor": "with_lmdb:bare_peer",
    "bare file": "with_file:peer",
}
"""Name -> module:function that gives the peer, or ImportError, or AbsentError."""

Part = Callable[[Bench], Generator[tuple[str, Mapping[str, float]], None, None]]
Key = tuple[int, str, str]
"""Bytes of a value, peer, work."""


@dataclass
class Found:
    """What came out, by key: the figures of each run, and why there are none."""

    figures: dict[Key, list[Mapping[str, float]]] = field(default_factory=dict)
    why: dict[Key, dict[str, str]] = field(default_factory=dict)

    def cells(self) -> list[Cell]:
        """A cell a key; figures only where no run went wrong."""
        order = {name: at for at, name in enumerate([*MAKERS, *WORKS])}
        keys = {*self.figures, *self.why}
        return [self._cell(key) for key in sorted(keys, key=lambda k: (k[0], order[k[1]], order[k[2]]))]

    def _cell(self, key: Key) -> Cell:
        size, peer, work = key
        runs = [] if key in self.why else self.figures[key]
        figures = {name: Figure(tuple(run[name] for run in runs)) for name in (runs[0] if runs else ())}
        return Cell({"value bytes": size, "peer": peer, "work": work}, figures, self.why.get(key, {}))


def made(names: Sequence[str], session: ExitStack, directory: Path) -> tuple[list[Peer], dict[str, str]]:
    """The peers that are here, ready for work until the session ends; the others with the reason."""
    here: list[Peer] = []
    absent: dict[str, str] = {}
    for name in names:
        module, _, function = MAKERS[name].partition(":")
        try:
            here.append(getattr(import_module(f".{module}", __package__), function)(session, directory))
        except (ImportError, AbsentError) as error:
            absent[name] = str(error)
    return here, absent


def run(
    directory: Path | None = None,
    *,
    quick: bool = False,
    runs: int | None = None,
    peers: Sequence[str] = tuple(MAKERS),
    sizes: Mapping[int, int] | None = None,
    works: Sequence[str] = tuple(WORKS),
    progress: Progress = lambda done, total, what: None,
) -> Results:
    """All `works` of all peers, `runs` times, after one round that does not count. Works that share a log
    with one of these are done too.
    """
    runs = runs or (2 if quick else RUNS)
    sizes = sizes or (QUICK_SIZES if quick else SIZES)
    effort = QUICK if quick else EFFORT
    with ExitStack() as session:
        where = Path(
            session.enter_context(tempfile.TemporaryDirectory(prefix="segstore-peers-", dir=directory))
        )
        progress(0, 1, "starting")
        here, absent = made(peers, session, where)
        benches = [
            Bench(peer, records, effort, _directory(where, peer, records.value_bytes))
            for records in [Records(count, size) for size, count in sizes.items()]
            for peer in here
        ]
        here_it_was = machine(where)  # its load is that of others
        parts = [part for part, of_it in PARTS.items() if not set(of_it).isdisjoint(works)]
        found = _rounds(benches, parts, runs, progress)
        settings = _settings(here, absent, effort, sizes, runs)
        settings |= {"works": {work: WORKS[work] for part in parts for work in PARTS[part]}}
        results = Results("peers", QUESTION, here_it_was, settings, found.cells())
        return replace(results, findings=findings(results))


def _directory(where: Path, peer: Peer, size: int) -> Path:
    made = where / f"{peer.name.replace(', ', '-')}-{size}"
    made.mkdir()
    return made


def _rounds(benches: list[Bench], parts: Sequence[Part], runs: int, progress: Progress) -> Found:
    """A round of the first size warms up; it does not count."""
    warming = [bench for bench in benches if bench.records is benches[0].records]
    rounds = [warming, *(_turned(benches, turn) for turn in range(runs))]
    found, done, total = Found(), 0, sum(map(len, rounds))
    for turn in rounds:
        into = Found() if turn is warming else found
        for bench in turn:
            progress(done, total, f"{bench.peer.name}, {bench.records.value_bytes:,} bytes")
            for part in parts:
                _one(part, bench, into)
            done += 1
    progress(total, total, "")
    return found


def _turned(benches: list[Bench], turn: int) -> list[Bench]:
    """Each round begins with another, so that none always comes behind the same one."""
    first = turn % max(len(benches), 1)
    return benches[first:] + benches[:first]


def _one(part: Part, bench: Bench, into: Found) -> None:
    """A part that ends early leaves the works behind it without figures."""
    left = [work for work in PARTS[part] if bench.peer.does(work)]
    key = bench.records.value_bytes, bench.peer.name
    try:
        with closing(part(bench)) as works:
            while left:
                work, figures = next(works)
                into.figures.setdefault((*key, work), []).append(figures)
                left.remove(work)
    except Exception as error:
        for work in left:
            into.why[(*key, work)] = {_kind(error): f"{type(error).__name__}: {error}"}


def _kind(error: Exception) -> str:
    kinds = {NotOfferedError: "not offered", WrongError: "wrong"}
    return kinds.get(type(error), "failed")


def _settings(
    here: list[Peer], absent: dict[str, str], effort: Effort, sizes: Mapping[int, int], runs: int
) -> dict[str, Any]:
    return {
        "runs": runs,
        "records": {str(size): count for size, count in sizes.items()},
        "effort": asdict(effort),
        "poll interval s": POLL,
        "works": WORKS,
        "peers": {peer.name: {"versions": dict(peer.versions), **peer.settings} for peer in here},
        "absent": absent,
    }
