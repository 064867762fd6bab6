"""Promise: `meta.properties` is Kafka's, and is believed whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults import FailingFiles

from segstore.errors import CorruptCheckpointError
from segstore.files import Files
from segstore.replication.metadata.properties import MetaProperties, read_properties, write_properties

MINE = MetaProperties("Q" + "A" * 21, 2, "g" + "B" * 21)
TEXT = "version=1\ncluster.id=QAAAAAAAAAAAAAAAAAAAAA\nnode.id=2\ndirectory.id=gBBBBBBBBBBBBBBBBBBBBB\n"


def test_it_is_written_and_read(tmp_path: Path) -> None:
    assert read_properties(Files(), str(tmp_path)) is None
    write_properties(Files(), str(tmp_path), MINE)
    assert (tmp_path / "meta.properties").read_text() == TEXT
    assert read_properties(Files(), str(tmp_path)) == MINE


def test_javas_form_is_read(tmp_path: Path) -> None:
    lines = "#\n#Thu Nov 23 21:04:00 UTC 2026\n\nnode.id : 2\r\n" + TEXT.replace("node.id=2\n", "")
    (tmp_path / "meta.properties").write_text(lines)
    assert read_properties(Files(), str(tmp_path)) == MINE


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("version=1", "version=0"),
        ("version=1\n", ""),
        ("node.id=2\n", ""),
        ("node.id=2", "node.id=two"),
        ("node.id=2", "node.id=-1"),
        ("cluster.id=Q", "cluster.id="),
        ("directory.id=gB", "directory.id=g/"),
        ("node.id=2", "node.id"),
        ("version", "v\xe9rsion"),
        (TEXT, ""),
    ],
)
def test_anything_else_is_damage(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "meta.properties").write_text(TEXT.replace(old, new))
    with pytest.raises(CorruptCheckpointError, match=r"meta\.properties"):
        read_properties(Files(), str(tmp_path))


@pytest.mark.parametrize("name", ["pwrite", "sync", "rename"])
def test_a_write_that_fails_leaves_the_old_one(tmp_path: Path, name: str) -> None:
    write_properties(Files(), str(tmp_path), MINE)
    with pytest.raises(OSError, match="injected"):
        write_properties(
            FailingFiles({name}, OSError(5, "injected")), str(tmp_path), MINE._replace(node_id=3)
        )
    assert read_properties(Files(), str(tmp_path)) == MINE
