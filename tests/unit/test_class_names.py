"""A class name stands for one class of the package: a search for it answers with one place."""

from __future__ import annotations

import ast
from collections import defaultdict

from places import REPOSITORY

PACKAGE = REPOSITORY / "segstore"
TWICE = {
    "PartitionState": "both are public: of a replicated partition, and of a group in a partition",
    "TopicRecord": "applications see the record of a scan; the metadata log's is named as Kafka's message",
}
"""Names of two classes, and the reason of each."""


def test_no_class_name_stands_for_two_classes() -> None:
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    assert len(places) > 1000
    twice = {name: found for name, found in places.items() if len(found) > 1 and name not in TWICE}
    assert twice == {}
    assert [name for name in TWICE if len(places[name]) < 2] == []
