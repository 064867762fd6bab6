"""The core is pure: what it imports can't open a file, start a thread, or tell the time."""

from __future__ import annotations

import ast

from places import REPOSITORY

CORE = REPOSITORY / "segstore" / "replication" / "core"
ALLOWED = {
    *("__future__", "bisect", "collections.abc", "dataclasses", "enum", "operator", "typing"),
    *("segstore.errors", "segstore.integers", "segstore.leader_epochs"),
}


def test_the_core_imports_nothing_that_has_effects() -> None:
    imported = set()
    for path in CORE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0
                imported.add(node.module or "")
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
    others = {name for name in imported if not name.startswith("segstore.replication.core.")}
    assert others <= ALLOWED, others - ALLOWED
    assert "segstore.leader_epochs" in others
