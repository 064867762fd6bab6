"""The parts of the demo's live part: the ledger finds faults, and the table fits, with and without
colours.
"""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import PATIENCE

import segstore
from segstore.client.consumer import ConsumerRecord
from segstore.client.producer import RecordMetadata
from segstore.coordinator.structs import TopicPartition
from segstore.demo.ledger import EVENTS, Ledger, LedgerRow, Rates, Status, frame, total

pytest.importorskip("pyarrow")

from rich.console import Console

from segstore.demo.crew import DAY_MS, HALVES, Pace, Replay, ReplayPlan
from segstore.demo.flights import Flights, load

pytestmark = pytest.mark.kind("programs")

PARTITIONS = 2
ROWS = 3


def record(partition: int, offset: int, value: bytes | None = None) -> ConsumerRecord:
    sent = value if value is not None else b"%d-%d" % (partition, offset)
    return ConsumerRecord("t", partition, 0, offset, 1000 + offset, 0, b"k", sent, [], None, 1, 3, -1)


def sent(ledger: Ledger, partition: int, offset: int) -> None:
    place = TopicPartition("t", partition)
    value = b"%d-%d" % (partition, offset)
    metadata = RecordMetadata("t", partition, place, offset, 1000 + offset, None, 1, len(value), -1)
    ledger.acknowledge(b"k", value, metadata)


class Case:
    """A run in which all was well: three records in each of two partitions, read in two turns."""

    def __init__(self) -> None:
        self.ledger = Ledger(PARTITIONS)
        self.ends = dict.fromkeys(range(PARTITIONS), ROWS)
        self.committed = dict(self.ends)
        self.got = [record(p, offset) for offset in reversed(range(ROWS)) for p in range(PARTITIONS)]
        for p in range(PARTITIONS):
            for offset in range(ROWS):
                sent(self.ledger, p, offset)

    def faults(self) -> list[str]:
        self.ledger.read(self.got[:2])
        self.ledger.read(self.got[2:])
        return self.ledger.faults(self.committed, self.ends)


def nothing(case: Case) -> None:
    """All is well."""


def lost(case: Case) -> None:
    case.got = [r for r in case.got if (r.partition, r.offset) != (1, 2)]


def changed(case: Case) -> None:
    case.got[0] = record(0, 2, b"0-3")


def swapped(case: Case) -> None:
    case.got[0], case.got[2] = record(0, 2, b"0-1"), record(0, 1, b"0-2")


def another(case: Case) -> None:
    case.got.append(record(0, 3))


def twice_for_one_lost(case: Case) -> None:
    lost(case)
    case.got.append(record(1, 0))


def uncommitted(case: Case) -> None:
    case.committed[1] = 2


def never_committed(case: Case) -> None:
    del case.committed[0]


def in_no_answer(case: Case) -> None:
    case.ends[0] = case.committed[0] = 4


def refused(case: Case) -> None:
    case.ledger.refuse(ValueError("no room"))


FAULTS = {
    "none": (nothing, []),
    "one was not seen": (lost, ["of the 3 records of partition 1 2 were seen"]),
    "one was changed": (changed, ["partition 0: what was seen is not what was sent, by its checksum"]),
    "two changed places": (swapped, ["partition 0: what was seen is not what was sent, by its checksum"]),
    "one too many": (another, ["of the 3 records of partition 0 4 were seen"]),
    "a second time is no other": (twice_for_one_lost, ["of the 3 records of partition 1 2 were seen"]),
    "not committed": (uncommitted, ["partition 1 ends at 3, committed is 2"]),
    "nothing committed": (never_committed, ["partition 0 ends at 3, committed is None"]),
    "not acknowledged": (in_no_answer, ["partition 0 has 4 records, and 3 were acknowledged"]),
    "refused": (refused, ["1 records were refused: no room"]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_ledger_finds(name: str) -> None:
    break_it: Callable[[Case], None]
    break_it, expected = FAULTS[name]
    case = Case()
    break_it(case)
    assert case.faults() == expected


def test_what_is_read_again_is_counted_apart() -> None:
    case = Case()
    case.got += case.got[:2]
    assert case.faults() == []
    assert case.ledger.again == 2
    assert (
        total(case.ledger.seen) == total(case.ledger.sent) == (ROWS * PARTITIONS, total(case.ledger.sent)[1])
    )


# --- the table --------------------------------------------------------------------------------


def status(**changes: object) -> Status:
    rows = [
        LedgerRow(
            p,
            "reader-2, silent" if p == 1 else "reader-1",
            100_000 * p,
            100_000 * p + 99_999 * (p == 1),
            12_345.6,
        )
        for p in range(6)
    ]
    events = [f"{n:5.1f} s  event {n}" + " and so on" * 20 for n in range(EVENTS + 2)]
    shown = {
        "now": 1_357_034_400_000,
        "elapsed": 7.25,
        "seconds": 15.0,
        "sent": 999_999,
        "read": 1_099_999,
        "again": 100_000,
        "state": "departure-boards, PreparingRebalance, generation 12, 3 members",
        "rows": rows,
        "events": events,
    }
    return Status(**{**shown, **changes})


def drawn(shown: Status, **options: object) -> list[str]:
    out = io.StringIO()
    Console(file=out, height=24, highlight=False, **options).print(frame(shown))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("columns", [80, 120])
def test_a_frame_fits(columns: int) -> None:
    lines = drawn(status(), width=columns)
    assert len(lines) <= 20
    assert max(map(len, lines)) <= columns
    silent = next(line for line in lines if "silent" in line)
    assert silent.split() == ["1", "reader-2,", "silent", "100,000", "199,999", "99,999", "12,346", "█" * 10]
    assert next(line for line in lines if "all" in line).split()[1:3] == ["1,500,000", "1,599,999"]
    assert any(f"event {EVENTS + 1}" in line for line in lines)
    assert not any("event 1 " in line for line in lines)


def test_it_says_the_same_without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    colours = drawn(status(), width=80, force_terminal=True, color_system="truecolor")
    assert any("\x1b[33m" in line for line in colours)
    monkeypatch.setenv("NO_COLOR", "1")
    plain = drawn(status(), width=80, force_terminal=True)
    assert not any(code in line for line in plain for code in ("\x1b[3", "\x1b[4"))


def test_a_frame_is_as_high_with_less_to_say() -> None:
    assert len(drawn(status(events=[]), width=80)) == len(drawn(status(), width=80))


def test_a_rate_is_of_the_last_moments() -> None:
    rates = Rates()
    assert rates.of(10.0, {0: 0, 1: 5}) == {0: 0, 1: 0}
    assert rates.of(10.5, {0: 100, 1: 5}) == {0: 200, 1: 0}
    assert rates.of(11.0, {0: 100, 1: 5}) == {0: 100, 1: 0}
    assert rates.of(12.0, {0: 100, 1: 5}) == {0: 0, 1: 0}


# --- the replay -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flights() -> Flights:
    return load()


def test_halves_have_every_airline_once(flights: Flights) -> None:
    airlines = {key.partition(b"-")[0].decode() for key in set(flights.keys.to_pylist())}
    first, second = HALVES.values()
    assert first | second == airlines
    assert not first & second


def test_a_plan_has_what_leaves_in_its_time(flights: Flights) -> None:
    held = flights.slice(0, 3000)
    plan = ReplayPlan.of(held, seconds=4, days=0.5)
    assert plan.seconds == 4
    values = [value for part in plan.flights for value in part.values.to_pylist()]
    assert plan.records == len(values) == (held.departures < plan.first + 2 * DAY_MS).sum()
    for part in plan.flights:
        assert (part.departures[1:] >= part.departures[:-1]).all()
        for key, value, left in zip(
            part.keys.to_pylist(), part.values.to_pylist(), part.departures.tolist(), strict=True
        ):
            flight = json.loads(value)
            assert key == f"{flight['carrier']}-{flight['flight']}".encode()
            minute = (flight["minute"] + (flight["dep_delay"] or 0)) % 60
            assert left // 60_000 % 60 == minute


def test_a_plan_ends_with_the_flights(flights: Flights) -> None:
    held = flights.slice(0, 1000)
    plan = ReplayPlan.of(held, seconds=600, days=2)
    assert plan.seconds < 1
    assert 900 < plan.records <= 1000


def test_a_replay_that_is_stopped_sends_no_more(store_dir: Path, flights: Flights) -> None:
    held = flights.slice(0, 1000)
    with segstore.open(store_dir) as store:
        store.create_topic("t", partitions=PARTITIONS)
        ledger, stop = Ledger(PARTITIONS), threading.Event()
        replay = Replay(
            store, "t", held, Pace(time.monotonic() + 3600, int(held.departures[0]), 1.0), ledger, stop
        )
        replay.start()
        stop.set()
        replay.join(PATIENCE)
        assert not replay.is_alive()
        assert replay.error is None
        assert total(ledger.sent) == (0, 0)
