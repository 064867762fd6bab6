"""The asyncio example of docs/clients.md works when it is pasted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from places import REPOSITORY
from waiting import PATIENCE

CLIENTS = (REPOSITORY / "docs" / "clients.md").read_text(encoding="utf-8")


def test_the_example_works_when_pasted(store_dir: Path) -> None:
    (example,) = (e for e in re.findall(r"```python\n(.*?)```", CLIENTS, re.DOTALL) if "asyncio" in e)
    code = example.replace('"flights-log"', repr(str(store_dir)))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 0, run.stderr
    values = ["b'UA1545 +0'", "b'UA1545 +1'", "b'UA1545 +2'", "b'AA1141 -2'"]
    assert run.stdout.splitlines() == ["[0, 1, 2]", "3", *(f"{i} {v}" for i, v in enumerate(values))]
