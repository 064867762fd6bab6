"""The part of the demo over the network: a program of librdkafka sends and reads, and nothing is lost."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli import COMMAND, run
from waiting import PATIENCE

import segstore
from segstore.demo import serving as part
from segstore.demo.screen import Screen
from segstore.errors import MissingPackageError, StorageError

pytestmark = pytest.mark.kind("programs")


def test_a_program_of_librdkafka_sends_and_reads(store_dir: Path) -> None:
    """In a process of its own, its output piped: lines without colours; the store is left as the program and
    its group have used it.
    """
    done = subprocess.run(
        [*COMMAND, "demo", "--serve", "--records", "1000", "--keep", store_dir],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert "\x1b" not in done.stdout
    assert "librdkafka has sent 1,000 records, and a group of its has read them all" in done.stdout
    assert "the log has all 1,000, each once" in done.stdout
    with segstore.open(store_dir, "r") as store:
        logs = [store.partition(part.TOPIC, number) for number in range(part.PARTITIONS)]
        assert sum(log.end_offset for log in logs) == 1000


@pytest.mark.parametrize(
    "told", [{"sent": 2, "received": 1}, {"sent": 1, "received": 2}, {"sent": 2, "received": 2}]
)
def test_what_is_lost_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Any) -> None:
    """The program says so, or the log has no such records."""
    monkeypatch.setattr(part, "_run", lambda *_: told)
    with pytest.raises(StorageError, match="the log has 0, 0 of them different"):
        part.serving(Screen(), str(tmp_path / "store"), 2)


def test_a_program_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text("raise SystemExit('no such broker')")
    monkeypatch.setattr(part, "_PROGRAM", str(tmp_path / "program.py"))
    with pytest.raises(StorageError, match="ended with 1: no such broker"):
        part.serving(Screen(), str(tmp_path / "store"), 2)


def test_without_confluent_kafka_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingPackageError, match=r"pip install confluent-kafka$"):
        part.serving(Screen(), str(tmp_path / "store"), 2)


def test_two_parts_alone_are_refused() -> None:
    result = run("demo", "--serve", "--replicated")
    assert (result.exit_code, "give one of them" in result.stderr) == (2, True)
