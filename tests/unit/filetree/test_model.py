"""The file tree against a real directory, by random steps, with sweeps and reopenings."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_store import CHUNK, SMALL, held, random_bytes
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from stores import tree

import segstore
from segstore.filetree import File, file_tree

pytestmark = pytest.mark.kind("models")

PATHS = st.sampled_from(["/a", "/a/b", "/a/b/c", "/d", "/d/e", "/a/e", "/f"])


class Model(RuleBasedStateMachine):
    """Against a real directory, by the calls of `os`: the same is there, and the same is refused."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.plain = self.root / "plain"
        self.plain.mkdir()
        self._open()

    def _open(self) -> None:
        self.store = segstore.open(self.root / "store")
        self.tree = file_tree(self.store, "ck", SMALL | {"file.delete.delay.ms": 0})

    def at(self, path: str) -> Path:
        return self.plain / path[1:]

    def both(self, ours: Callable[[], object], theirs: Callable[[], object]) -> None:
        refused = []
        for run in (ours, theirs):
            try:
                run()
                refused.append(False)
            except OSError:
                refused.append(True)
        assert refused[0] == refused[1]

    @rule(
        path=PATHS, size=st.sampled_from([0, 3, CHUNK + 1]), seed=st.integers(0, 3), overwrite=st.booleans()
    )
    def write(self, path: str, size: int, seed: int, overwrite: bool) -> None:
        data = random_bytes(size, seed)

        def theirs() -> None:
            if self.at(path).exists() and not overwrite:
                raise FileExistsError
            self.at(path).parent.mkdir(parents=True, exist_ok=True)
            self.at(path).write_bytes(data)

        self.both(lambda: self.tree.write(path, data, overwrite), theirs)

    @rule(path=PATHS)
    def mkdirs(self, path: str) -> None:
        self.both(lambda: self.tree.mkdirs(path), lambda: self.at(path).mkdir(parents=True, exist_ok=True))

    @rule(path=PATHS, other=PATHS)
    def rename(self, path: str, other: str) -> None:
        if path != other:
            ours = lambda: self.tree.rename(path, other, True)  # noqa: E731
            self.both(ours, lambda: self.at(path).rename(self.at(other)))

    @rule(path=PATHS)
    def delete(self, path: str) -> None:
        there = self.at(path)
        assert self.tree.delete(path, recursive=True) == there.exists()
        if there.is_dir():
            shutil.rmtree(there)
        else:
            there.unlink(missing_ok=True) if there.parent.is_dir() else None

    @rule()
    def sweep(self) -> None:
        partition = self.tree.log.partition_for_write()
        if partition.segments.active.segment.size:
            with partition.token:
                partition.writer.roll_apart()
                partition.visible.show()
        self.store.sweep()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self._open()

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "tree"):
            return
        ours = held(self.tree)
        del ours["/"]
        assert {path[1:]: data for path, data in ours.items()} == tree(self.plain)
        assert all(-1 not in node.chunks for _, node in self.tree.walk() if isinstance(node, File))

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            assert list(segstore.check(self.root / "store")) == []
            shutil.rmtree(self.root)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
