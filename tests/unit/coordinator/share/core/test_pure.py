"""The core of share partitions is pure: its imports can't open a file, start a thread, or tell the time."""

from __future__ import annotations

import ast

from places import REPOSITORY

CORE = REPOSITORY / "segstore" / "coordinator" / "share" / "core"
ALLOWED = {
    *("__future__", "bisect", "collections.abc", "enum", "functools", "heapq", "itertools", "typing"),
    *("segstore.errors", "segstore.integers"),
}


def test_q103_the_core_imports_nothing_that_has_effects() -> None:
    imported = set()
    for path in CORE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0
                imported.add(node.module or "")
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
    others = {name for name in imported if not name.startswith("segstore.coordinator.share.core.")}
    assert others <= ALLOWED, others - ALLOWED
    assert "segstore.errors" in others
