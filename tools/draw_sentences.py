"""Draws sentences of the package and of its pages for a reader who has not seen them.

    python tools/draw_sentences.py SEED

prints 36 docstrings, 10 comments, 8 error messages and 6 paragraphs of docs/, each with its place. A
docstring comes with the parameters of its function, and a comment with its line of code, because a reader of
the file sees these lines too. No file is written.
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
                yield getattr(node, "lineno", 1), f"[{_head(node)}] {text}"


def _head(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the name of a class, or a function with its parameters, as the file has them."""
    if isinstance(node, ast.Module):
        return "the module"
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}"
    returned = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    return f"{node.name}({ast.unparse(node.args)}){returned}"


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
    """Yield comments with their lines of code. Neighbouring lines with nothing but a comment are one comment,
    of the line after them.
    """
    lines, whole = text.splitlines(), list[tuple[int, str]]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or re.match(r"# (---|noqa|type:|fmt:)", token.string):
            continue
        row, said = token.start[0], token.string.lstrip("# ")
        code = lines[row - 1][: token.start[1]].strip()
        if code:
            if WORDS.search(said):
                yield row, f"{said}\n    at: {code}"
            continue
        whole.append((row, said))
        after = lines[row].strip() if row < len(lines) else ""
        if not after.startswith("#"):
            if WORDS.search(" ".join(each for _, each in whole)):
                said = "\n".join(each for _, each in whole)
                yield whole[0][0], f"{said}\n    at: {after}" if after else said
            whole.clear()


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
