"""Runs the code of a page of the documentation from top to bottom, in a directory of its own.

A `python` block with a title is saved under that name; one without is run. A `bash` block is run, with
`segstore` and `python` as commands of this tree. A `text` block says what was printed since the last one,
where `...` stands for anything, as in doctest. A block of any other kind is an error: none is passed by.
"""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from cli import COMMAND
from places import environment
from waiting import PATIENCE

BLOCK = re.compile(r'^```(\w*)(?: title="([\w.]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
COMMANDS = f"""set -e -o pipefail
segstore() {{ {shlex.join(COMMAND)} "$@"; }}
python() {{ {shlex.quote(sys.executable)} "$@"; }}
"""


class Block(NamedTuple):
    kind: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found.groups("")) for found in BLOCK.finditer(page.read_text(encoding="utf-8"))]


def walk(page: Path, directory: Path) -> int:
    """Do what the page says; returns the number of blocks. AssertionError names the block that fails."""
    printed = ""
    for number, block in enumerate(blocks(page)):
        where = f"{page.name}, block {number}"
        if block.kind == "python" and block.title:
            (directory / block.title).write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            printed += _ran([sys.executable, "-c", block.text], directory, where)
        elif block.kind == "bash":
            printed += _ran(["bash", "-c", COMMANDS + block.text], directory, where)
        elif block.kind == "text":
            options = doctest.ELLIPSIS
            same = doctest.OutputChecker().check_output(_full(block.text), _full(printed), options)
            assert same, f"{where}: expected\n{block.text}\nprinted\n{printed}"
            printed = ""
        else:
            raise AssertionError(f"{where}: a block of kind {block.kind!r} is not run")
    return number + 1


def _full(text: str) -> str:
    """A text in which a line of dots may stand for no line at all."""
    return "\n" + text


def _ran(command: list[str], directory: Path, where: str) -> str:
    env = {**environment(), "SEGSTORE_PATH": "", "COLUMNS": "80"}
    run = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 0, f"{where}: {run.stdout}{run.stderr}"
    return run.stdout
