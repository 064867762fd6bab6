"""The examples of docs/clients.md and docs/engine.md work when they are pasted, and run again."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import REPOSITORY
from waiting import PATIENCE

EXAMPLES = {
    f"{page}, {number}": example
    for page in ("clients", "engine")
    for number, example in enumerate(
        re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / f"{page}.md").read_text("utf-8"), re.DOTALL)
    )
    if "segstore.open(" in example and "asyncio" not in example  # another test runs that
}


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_an_example_works_when_pasted_and_again(example: str, store_dir: Path) -> None:
    code, count = re.subn(r'"[\w-]+-log"', repr(str(store_dir)), example)
    assert count == 1
    for _ in range(2):
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
        assert (run.returncode, run.stderr) == (0, "")
