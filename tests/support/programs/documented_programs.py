"""Knows the programs that the documentation shows, and judges their arguments without running them. Writes
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec

import command_tree
import pages
from documented_commands import ASSIGNMENT, Command
from places import REPOSITORY, ROOMS

INSTALLED = re.compile(r"^/opt/segstore(-[0-9.]+)?/bin/")
EXTRA = re.compile(r"(?:segstore|\.|\./segstore)\[([\w,-]+)\]")


def _segstore(command: Command) -> str | None:
    return command_tree.fault(command.words, whole=command.in_block)


def _make(command: Command) -> str | None:
    """Every target must be one of the Makefile's."""
    named = [word for word in command.words[1:] if not word.startswith("-") and not ASSIGNMENT.match(word)]
    unknown = sorted({*named} - _targets())
    return f"the Makefile has no target {unknown}" if unknown else None


def _pip(command: Command) -> str | None:
    """Extras must be those of pyproject.toml."""
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\[project\.optional-dependencies\]\n(.*?)^\[", text, re.DOTALL | re.MULTILINE)
    known = set(re.findall(r"^([\w-]+) = ", table, re.MULTILINE))
    named = {extra for word in command.words for found in EXTRA.findall(word) for extra in found.split(",")}
    return f"there is no extra {sorted(named - known)}" if named - known else None


def _python(command: Command) -> str | None:
    """A module must be importable from the clone, and a file one that the page has shown."""
    first = next((word for word in command.words[1:] if word not in ("-q", "-S", "-I")), "-c")
    if first == "-c":
        return None
    if first == "-m":
        return None if _is_module(command.words[command.words.index("-m") + 1]) else "no such module"
    page = REPOSITORY / command.page
    titles = {block.title for block in pages.blocks(page)} if page.suffix == ".md" else set()
    places = (page.parent, REPOSITORY)
    there = first in titles or any((place / first).exists() for place in places)
    return None if there else f"there is no {first}"


def _bash(command: Command) -> str | None:
    return None if (REPOSITORY / command.words[1]).exists() else f"there is no {command.words[1]}"


def _others(command: Command) -> str | None:
    """Return None: whoever made the program knows its arguments."""
    return None


def _runuser(command: Command) -> str | None:
    """The command behind `--` is judged."""
    words = command.words[command.words.index("--") + 1 :]
    found = faults([command._replace(words=words)])
    return found[0] if found else None


JUDGES: Mapping[str, Callable[[Command], str | None]] = {
    "segstore": _segstore,
    "make": _make,
    "pip": _pip,
    **dict.fromkeys(("python", "python3"), _python),
    "bash": _bash,
    **dict.fromkeys(("cat", "cp", "echo", "env", "eval", "export", "kill", "ls", "mkdir", "mv"), _others),
    **dict.fromkeys(
        (".", "chmod", "grep", "install", "printf", "rm", "sed", "sort", "source", "wc"), _others
    ),
    **dict.fromkeys(("do", "done", "until"), _others),  # of the shell
    **dict.fromkeys(("cd", "chrt", "curl", "docker", "git", "openssl", "perf", "pytest", "py-spy"), _others),
    "runuser": _runuser,
    **dict.fromkeys(("ln", "rsync", "ssh", "sudo", "systemctl", "useradd", "uvicorn"), _others),
}
"""The judge of each program. A program that is new in the documentation needs a line here."""


@cache
def _targets() -> set[str]:
    text = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))


@cache
def _is_module(name: str) -> bool:
    """Return whether `python -m` finds a module, in the clone or beside the helpers of the tests. Nothing is
    imported for that.
    """
    for place in (REPOSITORY, *ROOMS):
        path = place.joinpath(*name.split("."))
        if path.with_suffix(".py").exists() or (path / "__main__.py").exists():
            return True
    return "." not in name and find_spec(name) is not None


def is_known(program: str) -> bool:
    return program in JUDGES or program.startswith("kafka-")


def faults(commands: Sequence[Command]) -> list[str]:
    """Return what is wrong with commands of the documentation, a line for each. A program of an installed
    version is judged as the one of that name.
    """
    found = []
    for each in commands:
        name = INSTALLED.sub("", each.program)
        judged = each._replace(words=(name, *each.words[1:]))
        fault = JUDGES.get(name, _others)(judged) if is_known(name) else "an unknown program"
        found += [f"{each.page}: `{each.text}`: {fault}"] if fault else []
    return found
