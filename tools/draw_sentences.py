"""Draws sentences of the package and of its pages for a reader who has not seen them.

    python tools/draw_sentences.py SEED

prints 36 docstrings, 10 comments, 8 error messages and 6 paragraphs of docs/, each with its place. No file is
written.
"""

from __future__ import annotations

import ast
import io
import random
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "segstore"
SHARES = {"docstring": 36, "comment": 10, "error": 8, "page": 6}
WORDS = re.compile(r"\w+(?:\W+\w+){4}")
"""What is shorter than five words is no sentence."""


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                name = getattr(node, "name", "the module")
                yield getattr(node, "lineno", 1), f"[{name}] {text}"


def errors(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the messages of raised exceptions as they are written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                if isinstance(argument, (ast.JoinedStr, ast.Constant)) and WORDS.search(
                    ast.unparse(argument)
                ):
                    yield node.lineno, ast.unparse(argument)


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield comments; those of neighbouring lines are one."""
    found: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not re.match(r"# (---|noqa|type:|fmt:)", token.string):
            row, said = token.start[0], token.string.lstrip("# ")
            if found and found[-1][0] + found[-1][1].count("\n") + 1 == row:
                found[-1] = found[-1][0], f"{found[-1][1]}\n{said}"
            else:
                found.append((row, said))
    yield from (each for each in found if WORDS.search(each[1]))


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of a page, without tables, headings and blocks of code."""
    plain = re.sub(
        r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE
    )
    row = 1
    for part in plain.split("\n\n"):
        if WORDS.search(part) and not part.lstrip().startswith(("|", "#", "<", "!")):
            yield row, part.strip()
        row += part.count("\n") + 2


def sentences() -> dict[str, list[str]]:
    """Return all sentences of each kind, with their places."""
    found: dict[str, list[str]] = {kind: [] for kind in SHARES}

    def note(kind: str, path: Path, all_of: Iterator[tuple[int, str]]) -> None:
        place = path.relative_to(REPOSITORY)
        found[kind] += [f"{place}:{row}\n{text}" for row, text in all_of]

    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        note("docstring", path, docstrings(tree))
        note("error", path, errors(tree))
        note("comment", path, comments(text))
    for path in sorted((REPOSITORY / "docs").rglob("*.md")):
        if "reference" not in path.parts:
            note("page", path, paragraphs(path.read_text(encoding="utf-8")))
    return found


def main() -> None:
    rng = random.Random(sys.argv[1])
    number = 0
    for kind, all_of in sentences().items():
        for each in rng.sample(all_of, SHARES[kind]):
            number += 1
            sys.stdout.write(f"{number}. {kind}, {each}\n\n")


if __name__ == "__main__":
    main()
