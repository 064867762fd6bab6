"""The replicated part of the demo: a disk is lost and comes back; what was acknowledged is there."""

from __future__ import annotations

import io
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli import COMMAND, run
from terminal import CTRL_C, Terminal
from waiting import PATIENCE

import segstore
from segstore.demo import replicas as part
from segstore.demo.replica_board import EVENTS, Board, board
from segstore.demo.screen import Screen
from segstore.errors import StorageError

pytestmark = pytest.mark.kind("programs")

STEPS = (
    "is taken away",
    "others lead its partitions",
    "is back",
    "preferred leaders",
    "rots",
    "healed: replica 2",
)


def test_a_disk_is_lost_and_healed(tmp_path: Path) -> None:
    """In a process of its own, its output piped: lines in order, without frames and colours."""
    done = subprocess.run(
        [*COMMAND, "demo", "--replicated", "--seconds", "1", "--keep", tmp_path / "disks"],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    out = done.stdout
    assert "\x1b" not in out
    places = [out.index(step) for step in STEPS]
    assert places == sorted(places)
    counted = re.search(r"all ([\d,]+) acknowledged records are there, each once, none lost", out)
    assert counted
    assert int(counted[1].replace(",", "")) >= 500
    assert "all 3 directories are sound" in out
    with segstore.open_replicated([tmp_path / "disks" / f"disk{n}" for n in range(3)]) as store:
        assert len(part.read_all(store)) >= int(counted[1].replace(",", ""))


def test_on_a_terminal_and_ctrl_c(tmp_path: Path) -> None:
    """Typed while the disk is away: the store is closed, the disk is put back, the status is 130."""
    base = tmp_path / "disks"
    with Terminal("demo", "--replicated", "--seconds", 3600, "--keep", base, NO_COLOR="1") as terminal:
        terminal.read_until(lambda text: "offline" in text)
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        text, plain = terminal.text(), terminal.plain()
    assert "\x1b[1A" in text
    assert "high watermark" in plain
    assert "Ctrl-C: the producer has ended, the store is closed" in plain
    assert "Traceback" not in plain
    paths = sorted(base.iterdir())
    assert [path.name for path in paths] == ["disk0", "disk1", "disk2"]
    with segstore.open_replicated(paths) as store:
        assert part.read_all(store)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda found: found.pop(next(iter(found))), "1 are lost"),
        (lambda found: found.update({(0, 1 << 40): next(iter(found.values()))}), "1 are there twice"),
    ],
    ids=["lost", "twice"],
)
def test_what_is_lost_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Any, told: str
) -> None:
    read_all = part.read_all

    def spoiled(store: Any) -> Any:
        found = read_all(store)
        spoil(found)
        return found

    monkeypatch.setattr(part, "read_all", spoiled)
    monkeypatch.setattr(part.Play, "run", lambda play: play._until(lambda: True))
    with pytest.raises(StorageError, match=told):
        part.replicas(Screen(), str(tmp_path), 0.0)
    result = run("demo", "--replicated", "--seconds", 1)
    assert result.exit_code == 1
    assert told in result.stderr


def test_the_table_fits() -> None:
    from rich.console import Console

    replicas = tuple(segstore.ReplicaState(n, 10, 1_234_567 * (n == 2), 0, "") for n in range(3))
    state = segstore.PartitionState(0, 12, 34, (0, 1, 2), (0, 2), (), (1,), (), (), replicas)
    none = state._replace(leader=-1, isr=())
    out = io.StringIO()
    shown = Board([state, none], [123_456_789, -1], 999, [f"event {n} " * 20 for n in range(EVENTS + 1)])
    Console(file=out, height=24, width=80, highlight=False).print(board(shown))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 20
    assert any("123,456,789" in line and "-1,234,567" in line and "offline" in line for line in lines)
    assert any("none" in line for line in lines)
