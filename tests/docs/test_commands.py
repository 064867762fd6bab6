"""Every command that a sentence of the documentation shows is run, in a place that has what it needs, and
ends with status 0. NOT_RUN has the others, with one of a few reasons. Commands of blocks are run by
test_blocks.py and the tests that it names; tests/unit/test_documented_commands.py judges the arguments of all
commands.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from pathlib import Path

import click
import command_tree
import pages
import pytest
from cli import run, start_program
from documented_commands import Command, Reason, guides, of_page
from documented_places import Place, place_of
from documented_programs import JUDGES
from places import REPOSITORY, environment
from waiting import PATIENCE

pytestmark = pytest.mark.kind("examples")

NOT_RUN = {
    r"segstore bench (study|zero-copy).*": Reason.MINUTES,  # bench/test_notebook.py runs small ones
    r"segstore demo.*": Reason.MINUTES,  # demo/ has its parts
    r"python -m (benchmarks|recorded)\..*": Reason.MINUTES,
    r"bash \.ci/run": Reason.MINUTES,
    r"(SEGSTORE_SEED=N )?make .*": Reason.MINUTES,  # a dry run of each is below
    r"pip install.*": Reason.INSTALLS,
    r"runuser -u segstore .*": Reason.INSTALLS,  # the user, and the program at its place
    r"(chrt|cp|docker|eval|kafka-[a-z-]+|kill|openssl|perf|py-spy|pytest|ssh) .*|source": Reason.TOOL,
    r"systemctl .*": Reason.TOOL,
}
"""What is not run, as patterns of whole commands."""

NAMED = {
    *("alter", "archive", "delete", "elect", "end-mirror", "export", "mirror", "replicate", "restore"),
    "unreplicate",
}
"""Commands that do nothing without arguments: if a page names one alone, it is asked for help."""

STATUS = {"segstore checkpoints diff BEFORE AFTER": 1}  # its help says so: these two differ
"""The exit status of commands that are documented to end with another one than 0."""

LASTING = ("serve", "follow", "mirror", "archive")
"""Commands that run until Ctrl-C, as every one with --follow; they end with the status of that, or with 0."""

ADDED = {
    "alter": ("--config", "retention.ms=7d"),
    "archive verify": ("URI",),
    "delete": ("--yes",),
    "import": ("--format", "ndjson"),
    "mirror": ("BOOTSTRAP", "DIRECTORY"),
    "mirror --to": (),
    "promote": ("--old", "reachable"),
    "reassign": ("2,1",),
    "serve": ("--listen", "127.0.0.1:0"),
    "sql": ("show tables",),
    "unfence": ("--yes",),
}
"""What a command gets at its end if it has it not: a free port, an answer to a question."""


def _all() -> dict[str, Command]:
    """Return the commands of all sentences, each once, by their texts."""
    found = [each for path in guides() for each in of_page(path, frozenset(JUDGES)) if not each.in_block]
    return {" ".join((*each.variables, shlex.join(each.words))): each for each in found}


COMMANDS = _all()


def reason(text: str) -> Reason | None:
    return next((why for pattern, why in NOT_RUN.items() if re.fullmatch(pattern, text)), None)


RUN = [text for text in COMMANDS if reason(text) is None]


def test_every_entry_of_these_tables_is_of_a_command() -> None:
    assert [p for p in NOT_RUN if not any(re.fullmatch(p, text) for text in COMMANDS)] == []
    assert STATUS.keys() <= {*RUN}
    assert len(RUN) > 30


# --- segstore -------------------------------------------------------------------------------------


def whole(command: Command, place: Place) -> list[str]:
    """Return the words of a command with values for its stand-ins, and for arguments that it must have. A
    command that has commands of its own is asked for help.
    """
    others = iter(place.others)
    words = [next(others) if word == "…" else place.values.get(word, word) for word in command.words]
    names, found, rest = command_tree.command_of(words)
    if isinstance(found, click.Group):
        return words if rest else [*words, "--help"]
    if "--help" in words:
        return words
    if not rest and names[1] in NAMED:
        return [*words, "--help"]
    words += _last_value(found, rest, place)
    values, _, _ = command_tree.parsed(names, found, words[len(names) :])
    words += [place.values[each] for each in command_tree.lacking(found, values) if each in place.values]
    added = ADDED.get(" ".join(command.words[1:]), ADDED.get(names[1], ()))
    more = [place.values.get(word, word) for word in added]
    return [*words, *more] if more and more[0] not in words else words


def _last_value(found: click.Command, rest: list[str], place: Place) -> list[str]:
    """Return the value of an option that ends a command, as in "`segstore mirror --to`"."""
    options = [each for each in found.params if isinstance(each, click.Option) and not each.is_flag]
    ending = [each for each in options if rest and rest[-1] in each.opts]
    return [place.values[str(each.metavar)] for each in ending]


def runs_until_interrupted(words: list[str]) -> bool:
    if len(words) < 2 or {"--help", "--once", "verify"} & {*words}:
        return False
    return words[1] in LASTING or "--follow" in words


def is_of_segstore(text: str) -> bool:
    command = COMMANDS[text]
    return command.program == "segstore" or command.words[:3] == ("python", "-m", "segstore")


@pytest.mark.parametrize("text", [text for text in RUN if is_of_segstore(text)])
def test_a_command_of_a_sentence_runs(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = COMMANDS[text]
    if command.program == "python":
        command = command._replace(words=command.words[2:])
    monkeypatch.chdir(tmp_path)
    with place_of(" ".join(command.words[1:]))(tmp_path) as place:
        for names in _commands_meant(command):
            words = whole(command._replace(words=names), place)
            if runs_until_interrupted(words):
                _interrupted(words, place)
                continue
            variables = dict(each.split("=", 1) for each in command.variables)
            result = run(*words[1:], stdin=place.stdin, variables={"SEGSTORE_PATH": place.store, **variables})
            assert result.exit_code == STATUS.get(text, 0), f"{words}: {result.output}"


def _commands_meant(command: Command) -> list[tuple[str, ...]]:
    """Return the words of the commands that are meant: COMMAND is each of them."""
    if "COMMAND" not in command.words:
        return [command.words]
    return [
        tuple(name if word == "COMMAND" else word for word in command.words) for name in command_tree.COMMANDS
    ]


def _interrupted(words: list[str], place: Place) -> None:
    """Run a command until it says that it is ready, and end it by Ctrl-C."""
    if words[1] != "follow" and "--store" not in words:
        words = [*words, "--store", place.store]
    with start_program(*words[1:]) as program:
        try:
            assert program.stdout is not None
            ready = program.stdout.readline()
            program.send_signal(signal.SIGINT)
            _, told = program.communicate(timeout=PATIENCE)
            assert ready, told
            assert program.returncode in (0, 128 + signal.SIGINT), told
        finally:
            program.kill()


# --- other programs ---------------------------------------------------------------------------------


def test_every_target_of_make_can_be_made() -> None:
    """A dry run: what a target would run is printed."""
    lines = [each for each in COMMANDS.values() if each.program == "make"]
    assert len(lines) > 20
    wrong = {}
    for each in lines:
        command = ["make", "--dry-run", "--no-print-directory", *each.words[1:]]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode or not done.stdout:
            wrong[each.text] = done.stderr
    assert wrong == {}


@pytest.mark.parametrize("text", [text for text in RUN if not is_of_segstore(text)])
def test_another_program_runs(text: str, tmp_path: Path) -> None:
    line = ["bash", "-c", pages.COMMANDS + COMMANDS[text].text]
    done = subprocess.run(
        line, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE, input=""
    )
    assert done.returncode == 0, done.stderr
