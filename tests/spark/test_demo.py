"""The demo's Spark part, with few flights: its drivers are processes with a JVM each. Needs Java."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from cli import COMMAND
from terminal import CTRL_C, Terminal

import segstore
from segstore.errors import SegstoreError

pytest.importorskip("pyspark", "4.2", reason="PySpark 4.2 or newer is not installed")

from segstore.demo.drivers import last_batch, session_members
from segstore.demo.flights import load
from segstore.spark.java import find_java

pytestmark = [pytest.mark.judge("spark"), pytest.mark.kind("Spark programs")]

FEW = 5000
DRIVER = re.compile(r"the (?:first|second) driver, process (\d+), starts")


@pytest.fixture(autouse=True)
def java() -> None:
    try:
        find_java()
    except SegstoreError as error:
        pytest.skip(str(error))


def test_the_stream_through_a_kill(store_dir: Path, tmp_path: Path) -> None:
    """Its output piped: no frames, no colours; each hour once, and right; nothing left behind."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    command = [*COMMAND, "demo", "--records", str(FEW), "--no-live", "--keep", store_dir]
    done = subprocess.run(["env", f"TMPDIR={scratch}", *command], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr + done.stdout
    out = done.stdout
    assert "\x1b" not in out
    for said in ("SIGKILL: the driver, Java", "a heartbeat", "equal the batch answer", "sound", "Done"):
        assert said in out
    drivers = [int(pid) for pid in DRIVER.findall(out)]
    assert len(drivers) == 2
    assert not any(map(session_members, drivers))
    assert list(scratch.iterdir()) == []
    left = last_batch(str(store_dir), "delays")
    assert left.planned == left.committed > 0
    check_hours(store_dir)


def check_hours(path: Path) -> None:
    """Each airline and hour once, with as many flights and as much delay as the flights have."""
    hours: Counter[tuple[str, int]] = Counter()
    minutes: Counter[tuple[str, int]] = Counter()
    for value, hour in zip(load(FEW).values.to_pylist(), load(FEW).timestamps.tolist(), strict=True):
        flight = json.loads(value)
        hours[flight["carrier"], hour] += 1
        minutes[flight["carrier"], hour] += flight["dep_delay"] or 0
    found = {}
    with segstore.open(path, mode="r") as store:
        for p in store.topics()["delays"].partition_ids:
            for record in store.partition("delays", p).read(0, 1 << 26):
                window = record.key.decode(), record.timestamp
                assert window not in found
                found[window] = json.loads(record.value)
    assert {window: counts["flights"] for window, counts in found.items()} == hours
    assert {window: counts["delay"] or 0 for window, counts in found.items()} == dict(minutes)


def test_ctrl_c_ends_the_driver_and_its_java(store_dir: Path) -> None:
    """Typed when Spark is up: nothing of the driver is left, the store is recovered, the status is 130."""
    with Terminal("demo", "--records", 2000, "--no-live", "--keep", store_dir, NO_COLOR="1") as terminal:
        terminal.read_until(lambda text: "is up, the query starts" in text)
        driver = DRIVER.search(terminal.plain())
        assert driver
        assert len(session_members(int(driver[1]))) > 1
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        end = terminal.plain().partition("Ctrl-C: ")[2]
    assert session_members(int(driver[1])) == []
    assert "the store is recovered" in end
    assert "sound" in end
    assert "Traceback" not in end
    with segstore.open(store_dir) as store:
        assert store.recovered == ()
