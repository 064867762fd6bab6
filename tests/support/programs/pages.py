"""Runs the code of a page of the documentation from top to bottom, in a directory of its own.

A `python` or `properties` block with a title is saved under that name; a `python` block without is run. A
`bash` block is run, with `segstore` and `python` as commands of this tree; each of its commands must end with
status 0. A command that runs until Ctrl-C is waited for until it prints, and gets Ctrl-C when the block ends.
A `text` block says what was printed since the last one; `...` in it stands for anything, as in doctest. A
block of any other kind is an error: none is passed by but those that `Setting.left_out` names.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cli import COMMAND, VARIABLES
from places import environment
from waiting import PATIENCE

SHELL = "bash"
FILES = ("python", "properties")
BLOCK = re.compile(r'^```([^\n"]*?)(?: title="([\w.]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
INTERRUPTED = 130
COMMANDS = f"""set -e -o pipefail
segstore() {{
  case "$1 $*" in
    *--help*|*--once*) ;;
    "serve "*|"follow "*|"mirror "*|*" --follow"*) lasting "$@"; return ;;
  esac
  {shlex.join(COMMAND)} "$@"
}}
SAID=$(mktemp -d)
lasting() {{  # in the background until the block ends; a shell without a terminal would let it ignore SIGINT
  local said=$SAID/$((++STARTED))
  env --default-signal=INT {shlex.join(COMMAND)} "$@" >$said 2>$said-errors & LASTING="$LASTING $!"
  while kill -0 $! && ! grep -q . $said; do sleep 0.05; done
  kill -0 $! || {{ cat $said*; return 1; }}
}}
end_lasting() {{  # 0: it has ended by itself, as when its standby is promoted
  local status=$? ended
  for pid in $LASTING; do
    kill -INT $pid 2>/dev/null || true
    ended=0; wait $pid || ended=$?
    case $ended in 0|{INTERRUPTED}) ;; *) echo "ended with $ended:"; cat $SAID/*; status=1 ;; esac
  done
  rm -r $SAID
  exit $status
}}
trap end_lasting EXIT
python() {{ {shlex.quote(sys.executable)} "$@"; }}
"""


class Block(NamedTuple):
    kind: str
    title: str
    text: str

    @property
    def first_line(self) -> str:
        return self.text.partition("\n")[0]


class Setting(NamedTuple):
    """What a page finds: texts that are `replaced` in its blocks, `variables` of the environment, and what is
    done `before` a block, by a text that it alone has. `names`: Python blocks without a title are run in this
    process, one after the other, and begin with these; None: each is a program. Blocks `left_out` are named
    by their first lines. `compares`: whether `text` blocks must be what was printed.
    """

    replaced: Mapping[str, str] = {}
    variables: Mapping[str, str] = {}
    before: Mapping[str, Callable[[], object]] = {}
    names: dict[str, Any] | None = None
    left_out: Collection[str] = ()
    compares: bool = True


PLAIN = Setting()


def blocks(page: Path) -> list[Block]:
    return [Block(*found.groups("")) for found in BLOCK.finditer(page.read_text(encoding="utf-8"))]


def walk(page: Path, directory: Path, setting: Setting = PLAIN) -> int:
    """Do what the page says; returns the number of blocks. AssertionError names the block that fails."""
    printed = ""
    all_blocks = blocks(page)
    first_lines = [block.first_line for block in all_blocks]
    assert [line for line in setting.left_out if line not in first_lines] == [], page.name
    for text in setting.before:
        assert sum(text in block.text for block in all_blocks) == 1, (
            f"{page.name}: one block must have {text!r}"
        )
    for number, block in enumerate(all_blocks):
        where = f"{page.name}, block {number}"
        if block.first_line in setting.left_out:
            printed = "" if block.kind == "text" else printed
            continue
        for text, prepare in setting.before.items():
            if text in block.text:
                prepare()
        text = block.text
        for said, meant in setting.replaced.items():
            text = text.replace(said, meant)
        if block.kind == "text":
            same = doctest.OutputChecker().check_output(_full(text), _full(printed), doctest.ELLIPSIS)
            assert same or not setting.compares, f"{where}: expected\n{text}\nprinted\n{printed}"
            printed = ""
        else:
            printed += _run(block._replace(text=text), directory, where, setting)
    return len(all_blocks)


def _run(block: Block, directory: Path, where: str, setting: Setting) -> str:
    if block.kind in FILES and block.title:
        (directory / block.title).write_text(block.text, encoding="utf-8")
        return ""
    if block.kind == "python" and setting.names is not None:
        return _executed(block.text, directory, where, setting.names)
    if block.kind == "python":
        return _ran([sys.executable, "-c", block.text], directory, where, setting)
    assert block.kind == SHELL, f"{where}: a block of kind {block.kind!r} is not run"
    return _ran(["bash", "-c", COMMANDS + block.text], directory, where, setting)


def _full(text: str) -> str:
    """A text in which a line of dots may stand for no line at all."""
    return "\n" + text


def _executed(code: str, directory: Path, where: str, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    with _within(directory), contextlib.redirect_stdout(printed):
        exec(compile(code, where, "exec"), names)
    return printed.getvalue()


@contextlib.contextmanager
def _within(directory: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


def _ran(command: list[str], directory: Path, where: str, setting: Setting) -> str:
    env = {**environment(), **dict.fromkeys(VARIABLES, ""), "COLUMNS": "80", **setting.variables}
    run = subprocess.run(
        command, cwd=directory, env=env, capture_output=True, text=True, timeout=4 * PATIENCE
    )
    assert run.returncode == 0, f"{where}: {run.stdout}{run.stderr}"
    return run.stdout
