"""The demo, with few flights: it proves its own claims, and fails where they are not true."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from cli import COMMAND, run

import segstore
from segstore.cli.demo.flights import ALL, PARTITIONS, TOPIC, load
from segstore.client.partitioner import partition_for_key

pytest.importorskip("pyarrow")

FEW = 6000


def test_demo_through_a_kill(store_dir: Path) -> None:
    """In a process of its own, its output piped."""
    done = subprocess.run(
        [*COMMAND, "demo", "--records", str(FEW), "--keep", store_dir],
        capture_output=True,
        text=True,
        timeout=120,
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


def test_demo_leaves_a_store_that_is_there_alone(store_dir: Path) -> None:
    store_dir.mkdir()
    (store_dir / "mine").write_text("x")
    result = run("demo", "--keep", store_dir)
    assert result.exit_code == 1
    assert "must be new" in result.stderr
    assert os.listdir(store_dir) == ["mine"]


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
    assert "pip install 'segstore[demo]'" in result.stderr
