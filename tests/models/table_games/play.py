"""A game: a drawn table grows in rounds; after each, engines at several places answer the same queries.

On disk: a store in the directory that is given. Threads: those of the engines.
"""

from __future__ import annotations

import logging
import random
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from drawn_tables import TOPIC, DrawnTable
from plain_rows import (
    COLUMNS,
    KINDS,
    Parts,
    Query,
    Row,
    Terms,
    parts_of,
    rows_within,
    wrong_with,
    wrong_with_bounded,
)
from predicates import Draw
from query_engines import QUERIES, WHOLE, Kept
from table_engines import BOUNDED, SCANS, Engine, Place

import segstore
from segstore.storage.scans import dense, piece_reader
from segstore.storage.scans.bounds import Bounds

ROUNDS, STEPS, QUESTIONS, ASKED = 3, 12, 8, 4
"""Rounds of a game; in each the steps before its questions, and how many engines get each question."""


class Wrong(AssertionError):
    """An answer is not that of the plain loop."""


class Game:
    """Plays one seed; `counts` has the questions by engine. `engines` are all, unless some are named."""

    def __init__(self, seed: object, root: Path, engines: Sequence[str] = ()) -> None:
        self.seed, self._root, self._engines = seed, root, engines
        self._rng = random.Random(f"table {seed}")
        self.counts: Counter[str] = Counter()

    def play(self) -> Counter[str]:
        """Raises Wrong."""
        replicated = self._rng.random() < 0.15
        path = self._root / "store"
        with _quiet(), _pieces(self._rng), DrawnTable(path, self._rng, replicated) as table:
            of = Place("its own place", table.store if replicated else str(path), TOPIC)
            with closing(Kept(of)) as kept:
                for number in range(ROUNDS):
                    for _ in range(STEPS):
                        table.step()
                    with places(table) as found:
                        self._ask(f"round {number}", table, table.store, found, kept)
            table.close()
            if not replicated:
                with segstore.open(path, "r") as reader:
                    at_rest = [Place("a reader's store", reader, TOPIC), of._replace(name="a path")]
                    self._ask("at rest", table, reader, at_rest, None)
        for each in table.paths:
            findings = [str(finding) for finding in segstore.check(each)]
            if findings:
                raise Wrong(f"seed {self.seed}: {findings}")
        return self.counts

    def _ask(
        self, when: str, table: DrawnTable, store: Any, found: Sequence[Place], kept: Kept | None
    ) -> None:
        parts = parts_of(store, TOPIC, table.aborted)
        for _ in range(QUESTIONS):
            terms = draw_terms(self._rng, parts)
            drawn = draw_query(self._rng, rows_within(parts, terms))
            for name, engine in self._drawn(kept):
                place = self._rng.choice(found)
                query = drawn._replace(terms=_taken(terms, name, kept))
                wrong = self._answered(name, engine, place, query, rows_within(parts, query.terms))
                if wrong is not None:
                    told = f"seed {self.seed}, {when}: {name}, {place.name}: {query}"
                    raise Wrong(f"{told}\n{wrong}\n{_told(table, parts)}")

    def _drawn(self, kept: Kept | None) -> list[tuple[str, Engine]]:
        engines: Mapping[str, Engine] = {**SCANS, **BOUNDED, **QUERIES, **(kept.queries if kept else {})}
        names = [name for name in engines if not self._engines or name in self._engines]
        chosen = self._rng.sample(names, min(ASKED, len(names)))
        return [(name, engines[name]) for name in chosen]

    def _answered(
        self, name: str, engine: Engine, place: Place, query: Query, rows: Sequence[Row]
    ) -> str | None:
        self.counts[name] += 1
        try:
            answer = engine(place, query)
        except Exception:
            return traceback.format_exc()
        if name in BOUNDED:
            return wrong_with_bounded(answer, rows, query)
        return wrong_with(answer, rows, query, ordered=name in SCANS)


def _taken(terms: Terms, name: str, kept: Kept | None) -> Terms:
    """Return what an engine takes of the terms."""
    if name in WHOLE:
        return Terms(isolation_level=terms.isolation_level)
    return Terms() if kept and name in kept.queries else terms


def _told(table: DrawnTable, parts: Parts) -> str:
    ends = {n: (p.start_offset, p.last_stable_offset, p.end_offset, len(p.rows)) for n, p in parts.items()}
    return f"start, last stable and end offset, and rows, by partition: {ends}; settings: {table.config}"


@contextmanager
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def _pieces(rng: random.Random) -> Iterator[None]:
    """Let scans read in the usual pieces, or in small ones, of which a drawn log has many."""
    sizes = {
        "AT_A_TIME": rng.choice((200, 3_000)),
        "HEADERS_AT_A_TIME": rng.choice((200, 3_000)),
        "COUNTED_AT_A_TIME": rng.choice((200, 3_000)),
        "STEP": rng.choice((100, 1_000)),
        "_MOST_PLAIN": rng.choice((1, 500, 10_000)),
        "_MOST_ROWS": rng.choice((1, 10, 1 << 20)),
        "_MOST_COUNTED": rng.choice((1, 10, 1 << 22)),
        "_MOST_HEADERS": rng.choice((1, 4, 4096)),
        "_SMALL_BATCH": rng.choice((0, 120, 1 << 10)),
        "_CHUNK": rng.choice((70, 2_000, 1 << 20)),
        "_LEAST_READ": rng.choice((1, 100)),
        "WINDOW": rng.choice((100, 700, 5_000)),
    }
    some = dict(rng.sample(sorted(sizes.items()), rng.choice((0, 1, 3, len(sizes)))))
    with (
        mock.patch.object(piece_reader, "unset", _unset),
        mock.patch.multiple(piece_reader, **{"STEP": piece_reader.STEP, **some}),
        mock.patch.object(dense, "_LEAST", rng.choice((1, 3, dense._LEAST))),
    ):
        yield


_MADE, _WINDOW = piece_reader.unset, piece_reader.WINDOW


def _unset(kind: str, size: int) -> Any:
    """Return a window of the usual size: a thread that a game leaves behind gives it to later ones."""
    return _MADE(kind, max(size, _WINDOW))


@contextmanager
def places(table: DrawnTable) -> Iterator[list[Place]]:
    """Yield where the table can be read now."""
    if table.replicated:
        yield [Place("a replicated store", table.store, TOPIC)]
        return
    with segstore.open(table.path, "r") as reader:
        yield [
            Place("the writer's store", table.store, TOPIC),
            Place("a reader's store beside it", reader, TOPIC),
            Place("a path beside it", str(table.path), TOPIC),
        ]


# --- draws ---------------------------------------------------------------------------------------


def draw_terms(rng: random.Random, parts: Parts) -> Terms:
    """Draw terms that `Store.scan` takes; half of them are its defaults."""
    level = rng.choice(("read_uncommitted", "read_committed"))
    if rng.random() < 0.5:
        return Terms(isolation_level=level)
    chosen = tuple(rng.sample(sorted(parts), rng.randrange(1, len(parts) + 1)))
    low = max(parts[number].start_offset for number in chosen)
    high = min(parts[number].end_offset for number in chosen)
    made = Terms(chosen if rng.random() < 0.7 else None, isolation_level=level)
    if made.partitions is not None and low <= high and rng.random() < 0.5:
        first, last = sorted(rng.randrange(low, high + 1) for _ in range(2))
        made = made._replace(start=rng.choice((None, first)), end=rng.choice((None, last)))
    times = sorted(_time(rng, [row for number in chosen for row in parts[number].rows]) for _ in range(2))
    if made.start is None and rng.random() < 0.4:
        made = made._replace(from_time=times[0])
    if made.end is None and rng.random() < 0.4:
        made = made._replace(to_time=times[1])
    return made


def _time(rng: random.Random, rows: Sequence[Row]) -> int:
    stamp = rng.choice(rows).timestamp if rows else 0
    return max(0, stamp + rng.choice((0, 0, -1, 1)))


def draw_query(rng: random.Random, rows: Sequence[Row]) -> Query:
    """Draw columns, a predicate and bounds that have to do with these rows."""
    columns = tuple(rng.sample(COLUMNS, rng.choice((0, 1, 2, 3, 5, 8, 8))))
    draw = Draw(rng, rows)
    return Query(
        columns,
        None if rng.random() < 0.2 else draw.predicate(),
        rng.choice(KINDS),
        rng.choice((0, 1, 5, 100)),
        bounds=draw_bounds(rng, draw),
    )


def draw_bounds(rng: random.Random, draw: Draw) -> Bounds:
    def some(name: str) -> int:
        value = draw.literal(name)
        return int(value) // 1000 if name == "timestamp" else int(value)

    made: dict[str, Any] = {}
    if rng.random() < 0.2:
        made["partitions"] = frozenset({some("partition"), some("partition")})
    if rng.random() < 0.5:
        made["first_offset"], made["last_offset"] = sorted((max(0, some("offset")), max(0, some("offset"))))
    if rng.random() < 0.5:
        made["first_time"], made["last_time"] = sorted((some("timestamp"), some("timestamp")))
    kept = {name: value for name, value in made.items() if rng.random() < 0.7}
    return Bounds(**kept)


class Played(NamedTuple):
    """A seed that was played: what went wrong ("" for nothing), and the questions by engine."""

    seed: int
    wrong: str
    counts: Counter[str]


def played(seed: int, engines: Sequence[str] = ()) -> Played:
    """Play a seed in memory, where there is room."""
    import memory

    with memory.directory() as root:
        game = Game(seed, Path(root), engines)
        try:
            game.play()
        except Wrong as error:
            return Played(seed, str(error), game.counts)
        except Exception:
            return Played(seed, f"seed {seed}: {traceback.format_exc()}", game.counts)
        return Played(seed, "", game.counts)
