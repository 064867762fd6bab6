"""Finds the commands that the documentation shows: each line of its shell blocks, and each code span of its
sentences that begins with a program. Writes nothing.
"""

from __future__ import annotations

import enum
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pages
from places import REPOSITORY

GUIDES = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/**/*.md",
    "examples/**/*.md",
    "tests/golden/*.md",
)
"""The pages that people read. CHANGELOG.md tells of commands that older versions had."""
RESULTS = "benchmarks/results/README.md"
NOTEBOOKS = "notebooks/*.ipynb"

FENCED = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"(?<![`\\])(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
ESCAPED = re.compile(r"\\([`_*|<>])")
SEPARATORS = {"|", "||", "&", "&&", ";", "\n"}
REDIRECTIONS = {"<", ">", ">>", "2>", ">&"}
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


class Reason(enum.Enum):
    """Why no test runs a command, or a block."""

    INSTALLS = "it installs packages"
    MINUTES = "it takes minutes or an hour, and what it prints is of the machine"
    NO_PROGRAM = "it is a list, an entry or an output of one moment"
    TOOL = "it is a program of others, named as one"


class Command(NamedTuple):
    """A simple command of a shell, as a page shows it. `text` is the whole line or span that has it."""

    page: str
    text: str
    words: tuple[str, ...]
    variables: tuple[str, ...] = ()
    in_block: bool = False

    @property
    def program(self) -> str:
        return self.words[0]


def guides() -> list[Path]:
    """Return all pages and notebooks, each once."""
    found = [path for pattern in (*GUIDES, RESULTS, NOTEBOOKS) for path in REPOSITORY.glob(pattern)]
    return sorted(set(found))


def text_of(path: Path) -> str:
    """Return the Markdown of a page, or of a notebook's cells."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def spans(text: str) -> list[str]:
    """Return the code spans of Markdown, each as one line, without those of fenced blocks."""
    outside = ESCAPED.sub(r"\1", FENCED.sub("", text))
    return [" ".join(found[2].split()) for found in SPAN.finditer(outside)]


def of_page(path: Path, programs: frozenset[str]) -> list[Command]:
    """Return the commands of a page, those of its blocks first, in the order of the page. A span is a command
    if it begins with one of `programs` and says more than its name.
    """
    page, found = str(path.relative_to(REPOSITORY)), []
    for block in pages.blocks(path) if path.suffix == ".md" else ():
        if block.kind == pages.SHELL:
            found += [each._replace(page=page) for line in _lines(block.text) for each in simple(line, True)]
    for span in spans(text_of(path)):
        for line in alternatives(span) if _is_command(span, programs) else ():
            found += [each._replace(page=page) for each in simple(line)]
    return found


def _is_command(span: str, programs: frozenset[str]) -> bool:
    words = [word for word in span.split() if not ASSIGNMENT.match(word)]
    return len(words) > 1 and words[0] in programs


def _lines(text: str) -> list[str]:
    """Return the lines of a script; a line that ends in a backslash is one with the next."""
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def alternatives(span: str) -> list[str]:
    """Return the commands that a span stands for: `checkpoints ls|cat --at OFFSET` are two."""
    words = next((word for word in span.split() if re.fullmatch(r"[a-z-]+(\|[a-z-]+)+", word)), None)
    return [span] if words is None else [span.replace(words, word, 1) for word in words.split("|")]


def simple(line: str, in_block: bool = False) -> list[Command]:
    """Return the simple commands of a line of a shell."""
    found = []
    for words in _split(line):
        count = next((i for i, word in enumerate(words) if not ASSIGNMENT.match(word)), len(words))
        if count < len(words):
            found.append(Command("", line.strip(), tuple(words[count:]), tuple(words[:count]), in_block))
    return found


def _split(line: str) -> Iterator[list[str]]:
    """Yield the words of each simple command, without redirections and comments."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    to_file = False
    for word in [*lexer, "\n"]:
        if word in SEPARATORS:
            if words:
                yield words
            words = []
        elif word in REDIRECTIONS:
            to_file = True
        elif to_file:
            to_file = False
        else:
            words.append(word)
