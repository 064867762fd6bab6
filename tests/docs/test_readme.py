"""The code of the README works when it is pasted, and the paths that it names exist."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from places import REPOSITORY
from waiting import PATIENCE

import segstore
from segstore.cli.app import COMMANDS

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
PLACES = sorted(set(re.findall(r"`((?:segstore|tests|docs)/[\w./]*)`", README)))
TARGETS = sorted(set(re.findall(r"^make (\w+)", README, re.MULTILINE)))


LOG, _, WIRE = EXAMPLES  # test_blocks.py runs them all
NAMES = {LOG: '"flights-log"', WIRE: '"served-log"'}


def pasted(example: str, store_dir: Path) -> str:
    """What an example prints in an interpreter of its own; the store it leaves is checked when the test is
    over.
    """
    code = example.replace(NAMES[example], repr(str(store_dir)))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_example_works_when_pasted(store_dir: Path) -> None:
    first, *records = pasted(LOG, store_dir).splitlines()
    assert first == "range(1, 4)"
    assert [line.split()[0] for line in records] == ["0", "1", "2", "3"]
    assert records[0].endswith("""b'UA1545' b'{"carrier": "UA", "delay": 2}' [('source', b'demo')]""")
    assert records[2].endswith("b'AA2' None []")
    assert records[3].endswith("None b'late' []")


def test_example_works_when_pasted_again(store_dir: Path) -> None:
    pasted(LOG, store_dir)
    first, *records = pasted(LOG, store_dir).splitlines()
    assert first == "range(5, 8)"
    assert [line.split()[0] for line in records] == [str(n) for n in range(8)]


def test_example_of_a_client_works_when_pasted(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setitem(NAMES, example := WIRE.replace("9092", str(port)), NAMES[WIRE])
    assert pasted(example, store_dir) == "b'on time' b'UA1545'\n"
    with segstore.open(store_dir, "r") as store:
        assert store.topics()["flights"].partitions == 1


def test_the_list_of_commands_has_each_with_its_name() -> None:
    (lines,) = re.findall(r"```text\n(segstore topics.*?)```", README, re.DOTALL)
    named = [re.split(r"  |[A-Z\[]", line.removeprefix("segstore "))[0] for line in lines.splitlines()]
    names = {name.split()[0] for line in named for name in line.split("|") if name.strip()}
    assert names - {"unclean"} == set(COMMANDS)


@pytest.mark.parametrize("example", [LOG, WIRE], ids=["log", "client"])
def test_an_example_is_short_and_uses_its_own_store(example: str) -> None:
    assert len([line for line in example.splitlines() if line]) <= 10
    assert example.count(NAMES[example]) == 1


@pytest.mark.parametrize("place", PLACES)
def test_place_is_there(place: str) -> None:
    assert (REPOSITORY / place).exists()


@pytest.mark.parametrize("target", TARGETS)
def test_make_target_is_there(target: str) -> None:
    assert re.search(rf"^{target}:", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
