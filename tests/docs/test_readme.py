"""The code of the README works when it is pasted, and the paths that it names exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import REPOSITORY
from waiting import PATIENCE

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
PLACES = sorted(set(re.findall(r"`((?:segstore|tests|docs)/[\w./]*)`", README)))
TARGETS = sorted(set(re.findall(r"^make (\w+)", README, re.MULTILINE)))


@pytest.mark.parametrize("example", EXAMPLES, ids=[f"example-{i}" for i in range(len(EXAMPLES))])
def test_example_works_when_pasted(example: str, store_dir: Path) -> None:
    """In an interpreter of its own; the store it leaves is checked when the test is over."""
    code = example.replace('"flights-log"', repr(str(store_dir)))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 0, run.stderr
    first, *records = run.stdout.splitlines()
    assert first == "range(1, 4)"
    assert [line.split()[0] for line in records] == ["0", "1", "2", "3"]
    assert records[0].endswith("""b'UA1545' b'{"carrier": "UA", "delay": 2}' [('source', b'demo')]""")
    assert records[2].endswith("b'AA2' None []")
    assert records[3].endswith("None b'late' []")


def test_the_example_is_short_and_uses_its_own_store() -> None:
    assert len(EXAMPLES) == 1
    assert len([line for line in EXAMPLES[0].splitlines() if line]) <= 10
    assert '"flights-log"' in EXAMPLES[0]


@pytest.mark.parametrize("place", PLACES)
def test_place_is_there(place: str) -> None:
    assert (REPOSITORY / place).exists()


@pytest.mark.parametrize("target", TARGETS)
def test_make_target_is_there(target: str) -> None:
    assert re.search(rf"^{target}:", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
