"""Finds in a module's source the variables that would keep a raised error alive.

An error's traceback refers to the frames that it passed, with their variables. Where one of these refers to
the error, only the garbage collector frees it and all that the frames refer to. So an error that is raised
must be made in the raise (a call, or `copy_of` for an error that is kept), or caught there (`except E as
error`, which deletes the name), or deleted by a `finally` (`del error`, `errors.clear()`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator


def kept_raises(source: str) -> list[tuple[int, str]]:
    """Return the lines that raise in any other way, each with what it raises."""
    return sorted(_in(ast.parse(source), frozenset()))


def _in(node: ast.AST, forgotten: frozenset[str]) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        forgotten = frozenset()
    if isinstance(node, ast.Raise) and node.exc is not None and not _is_safe(node.exc, forgotten):
        yield node.lineno, ast.unparse(node.exc)
    if isinstance(node, ast.Try):
        inside = forgotten | {name for last in node.finalbody for name in _forgotten(last)}
        for part in [*node.body, *node.handlers, *node.orelse]:
            yield from _in(part, inside)
        for part in node.finalbody:
            yield from _in(part, forgotten)
        return
    if isinstance(node, ast.ExceptHandler) and node.name:
        forgotten |= {node.name}
    for child in ast.iter_child_nodes(node):
        yield from _in(child, forgotten)


def _is_safe(raised: ast.expr, forgotten: frozenset[str]) -> bool:
    if isinstance(raised, ast.Attribute) and isinstance(raised.value, ast.Name):
        return raised.value.id in forgotten
    if isinstance(raised, ast.IfExp):
        return _is_safe(raised.body, forgotten) and _is_safe(raised.orelse, forgotten)
    if isinstance(raised, ast.Call):
        called = raised.func
        return not (isinstance(called, ast.Attribute) and called.attr == "with_traceback")
    held = raised.value if isinstance(raised, ast.Subscript) else raised
    return isinstance(held, ast.Name) and (held.id in forgotten or held.id.lstrip("_")[:1].isupper())


def _forgotten(last: ast.stmt) -> Iterator[str]:
    if isinstance(last, ast.Delete):
        yield from (target.id for target in last.targets if isinstance(target, ast.Name))
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        called = last.value.func
        if (
            isinstance(called, ast.Attribute)
            and called.attr == "clear"
            and isinstance(called.value, ast.Name)
        ):
            yield called.value.id
