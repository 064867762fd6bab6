"""Every command that the documentation, the notebooks and the package's own messages show has the options and
arguments that it is shown with. tests/docs/test_commands.py runs them.
"""

from __future__ import annotations

import re
from pathlib import Path

import command_tree
import pytest
from documented_commands import alternatives, guides, of_page, simple, spans, text_of
from documented_programs import JUDGES, faults
from places import REPOSITORY

from segstore.cli.app import COMMANDS

PROGRAMS = frozenset(JUDGES)
OF_OTHERS = {
    "--add-config": "kafka-configs",
    "--election-type": "kafka-leader-election",
    "--help": "every command",
    "--index-sanity-check": "DumpLogSegments",
    "--link-dest": "rsync",
    "--offsets-decoder": "DumpLogSegments",
    "--peer": "python -m benchmarks.peers",
    "--server": "python -m benchmarks.serve",
    "--size": "python -m benchmarks.peers",
    "--throttle": "kafka-reassign-partitions",
    "--work": "python -m benchmarks.peers",
}
"""Options in sentences that no command of segstore has, and the program that has each."""


def test_every_command_of_a_page_is_one_that_there_is() -> None:
    commands = [each for path in guides() for each in of_page(path, PROGRAMS)]
    assert faults(commands) == []
    assert {"README.md", "docs/questions.md", "notebooks/peers.ipynb"} <= {each.page for each in commands}


def test_every_option_of_a_sentence_is_one_that_there_is() -> None:
    """An option alone, or a command without `segstore` before it, as in "`check --repair`"."""
    known, found = command_tree.options(), []
    for path in guides():
        for span in spans(text_of(path)):
            first, *rest = span.split()
            if first.startswith("--"):
                names = re.findall(r"--[a-z][a-z-]*", span)
                found += [
                    f"{path.name}: {name}" for name in names if name not in known and name not in OF_OTHERS
                ]
            elif first in COMMANDS and any(word.startswith("-") for word in rest):
                lines = [f"segstore {line}" for line in alternatives(span)]
                found += faults([each._replace(page=path.name) for line in lines for each in simple(line)])
    assert found == []
    assert set(OF_OTHERS) & known == set()


def test_every_command_of_a_message_or_a_docstring_is_one_that_there_is() -> None:
    found = []
    for path in (REPOSITORY / "segstore").rglob("*.py"):
        for span in re.findall(r"`(segstore [a-z][^`\n]*)`", path.read_text(encoding="utf-8")):
            text = re.sub(r"\{[^}]*\}", "…", span)  # a value of an f-string
            commands = [each for line in alternatives(text) for each in simple(line)]
            found += faults([each._replace(page=path.name) for each in commands])
    assert found == []


WRONG = {
    "no such command": ("segstore topic", "no command 'topic'"),
    "no such subcommand": ("segstore groups lst", "no command 'lst'"),
    "an option of another command": ("segstore groups --store STORE", "No such option"),
    "an option that was renamed": ("segstore consume flights --start-offset 3", "No such option"),
    "too many arguments": ("segstore create a b", "too many"),
    "a choice that there is not": ("segstore promote d --old gone", "'gone' is not one of"),
    "no number": ("segstore consume flights --last few", "'few' is not a valid integer"),
    "no such target": ("make tests", "no target"),
    "no such extra": ("pip install 'segstore[arrows]'", "no extra"),
    "no such module": ("python -m benchmarks.pears", "no such module"),
    "no such file": ("python visit.py", "there is no visit.py"),
    "an unknown program": ("frobnicate --all", "unknown program"),
}


@pytest.mark.parametrize(("line", "fault"), WRONG.values(), ids=WRONG)
def test_a_wrong_command_is_seen(line: str, fault: str) -> None:
    (told,) = faults([each._replace(page="README.md") for each in simple(line)])
    assert fault in told


RIGHT = (
    "segstore --store flights-log topics",
    "segstore COMMAND --help",
    "segstore mirror --to",
    "segstore import -s … -s … -s …",
    "segstore create flights --config NAME=VALUE",
    "make lint types ARGS=--all",
    "pip install './segstore[arrow,wire]'",
    "kafka-topics.sh --bootstrap-server kafka1:9092 --list",
)


@pytest.mark.parametrize("line", RIGHT)
def test_a_command_that_there_is_has_no_fault(line: str) -> None:
    assert faults(simple(line)) == []


def test_required_arguments_of_a_line_in_a_block_must_be_there() -> None:
    assert "needs ['TOPIC']" in str(command_tree.fault(["segstore", "create"], whole=True))
    assert command_tree.fault(["segstore", "create"]) is None


PAGE = """
Say `segstore check --repair` or `a|b`, ``segstore stats``, `segstore`.

```bash
X=1 segstore produce t <in.csv && echo "a | b" | \\
    wc -l   # not: segstore stats
```

| `segstore sweep\\|check --json` |
"""


def test_commands_of_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("documented_commands.REPOSITORY", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    found = of_page(page, PROGRAMS)
    assert [(each.words, each.variables, each.in_block) for each in found] == [
        (("segstore", "produce", "t"), ("X=1",), True),
        (("echo", "a | b"), (), True),
        (("wc", "-l"), (), True),
        (("segstore", "check", "--repair"), (), False),
        (("segstore", "stats"), (), False),
        (("segstore", "sweep", "--json"), (), False),
        (("segstore", "check", "--json"), (), False),
    ]
    assert {each.page for each in found} == {"page.md"}
