"""Finds in a module's source where memory is lent to C in a way that may outlive the call.

Allowed (see `segstore._native`) is `ffi.from_buffer(...)` as an argument of a call of `lib`, there also as
one branch of a condition, and as what a `with` enters. Every other use is reported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

NAME = "from_buffer"


def kept_views(source: str) -> list[int]:
    """Return the numbers of the lines that use `from_buffer` in any other way, in order."""
    if NAME not in source:
        return []
    tree = ast.parse(source)
    allowed = {id(call.func) for call in _allowed(tree) if isinstance(call, ast.Call)}
    named = (node for node in ast.walk(tree) if _names_it(node) and id(node) not in allowed)
    return sorted({node.lineno for node in named})


def _names_it(node: ast.AST) -> bool:
    """Return whether a node names `from_buffer`: as an attribute, as an imported name, or as a string, which
    getattr may get.
    """
    if isinstance(node, ast.Attribute):
        return node.attr == NAME
    if isinstance(node, ast.alias):
        return node.name == NAME
    return isinstance(node, ast.Constant) and node.value == NAME


def _allowed(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            yield from (item.context_expr for item in node.items)
        elif isinstance(node, ast.Call) and _is_of_lib(node.func):
            for argument in node.args:
                yield from _branches(argument)


def _is_of_lib(called: ast.expr) -> bool:
    return (
        isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "lib"
    )


def _branches(argument: ast.expr) -> Iterator[ast.expr]:
    if isinstance(argument, ast.IfExp):
        yield from _branches(argument.body)
        yield from _branches(argument.orelse)
    else:
        yield argument
