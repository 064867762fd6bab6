"""The help of every command fits its terminal, in words that are whole, and needs no colour to be read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import click
import pytest
from cli import ok
from terminal import Terminal

from segstore.cli.app import COMMANDS, ListedCommand, commands
from segstore.cli.help import WIDEST

WIDTHS = {80: 80, 120: 120, 200: WIDEST}
"""Columns of a terminal, and those that its help takes at most."""


def contexts() -> Iterator[click.Context]:
    """Yield a context for each command, and for each command of a group."""
    top = click.Context(commands, info_name="segstore", **commands.context_settings)
    yield top
    for name in COMMANDS:
        yield from within(click.Context(ListedCommand(name).itself(), info_name=name, parent=top))


def within(context: click.Context) -> Iterator[click.Context]:
    yield context
    command = context.command
    for name, inner in command.commands.items() if isinstance(command, click.Group) else ():
        yield from within(click.Context(inner, info_name=name, parent=context))


CONTEXTS = {context.command_path: context for context in contexts()}


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("path", CONTEXTS)
def test_no_line_is_too_long_and_no_word_is_cut(
    path: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = ok(*path.split()[1:], "--help").stdout
    assert [line for line in shown.splitlines() if len(line) > WIDTHS[columns]] == []
    assert not re.search("[\x1b\u2011│╭╰]", shown)
    command = CONTEXTS[path].command
    words = set(shown.split())
    for param in command.get_params(CONTEXTS[path]):
        record = param.get_help_record(CONTEXTS[path])
        if record is None or not record[1]:  # an argument, which the usage names
            continue
        name, text = record
        assert any(line.strip().startswith(name) for line in shown.splitlines()), name
        assert set(text.split()) <= words, name
    if path != "segstore":
        assert set(" ".join(str(command.help).replace("\b", "").split()).split()) <= words


TERMINALS: Mapping[str, tuple[dict[str, str], bool]] = {
    "colours": ({}, True),
    "TERM=dumb": ({"TERM": "dumb"}, False),
    "NO_COLOR": ({"NO_COLOR": "1"}, False),
    "under tmux": ({"TERM": "tmux-256color"}, True),
}


@pytest.mark.kind("programs")
@pytest.mark.parametrize(("env", "is_bold"), TERMINALS.values(), ids=TERMINALS)
def test_a_terminal_gets_bold_headings_and_no_colours(env: dict[str, str], is_bold: bool) -> None:
    """Colours that are read on a dark ground may not be on a light one."""
    with Terminal("create", "--help", columns=100, **env) as terminal:
        assert terminal.end() == 0
    assert set(re.findall(r"\x1b\[([0-9;]*)m", terminal.text())) == ({"1", "0"} if is_bold else set())
    assert "Options:" in terminal.plain()
    assert max(map(len, terminal.plain().splitlines())) <= 100
