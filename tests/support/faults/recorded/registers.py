"""Programs that keep values by key: files of a tree, quotas, credentials. After a cut a key has its last
durable value, or a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from faulty.world import QUIET

import segstore
from segstore.coordinator.credentials import scram_credentials
from segstore.coordinator.quotas import quotas
from segstore.filetree import file_tree
from segstore.filetree.nodes import File
from segstore.storage.meta.scram_credentials import ScramCredential

from .looks import judge_closed
from .recorder import Recorder

Found = Mapping[str, Any]


class Registers:
    """Notes what each key may have."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.allowed: dict[str, list[Any]] = {}

    def try_(self, key: str, value: Any) -> None:
        """Note that a key may have a value from now on; None: it may be missing."""
        self.allowed[key] = [*self.allowed.get(key, [None]), value]
        self._recorder.note(allowed=self.allowed)

    def sure(self) -> None:
        """Note that each key has its last value, durably."""
        self.allowed = {key: values[-1:] for key, values in self.allowed.items()}
        self._recorder.note(allowed=self.allowed)


def judged(root: Path, note: dict[str, Any], read: Callable[[segstore.Store], Found]) -> None:
    """Open the store twice, check it, and hold what it has against the note."""
    judge_closed(root / "s")
    with segstore.open(root / "s", config=QUIET) as store:
        found = read(store)
        assert found.keys() <= note["allowed"].keys(), found
        for key, values in note["allowed"].items():
            assert found.get(key) in values, f"{key} is {found.get(key)!r}, not one of {values!r}"
    findings = list(segstore.check(root / "s"))
    assert findings == [], "\n".join(map(str, findings))
    with segstore.open(root / "s", config=QUIET) as store:
        assert read(store) == found
        assert (store.recovered, store.mended) == ((), ())


# --- files of a tree, where Spark's checkpoints are ----------------------------------------------


def files(root: Path, recorder: Recorder) -> None:
    told = Registers(recorder)
    store = segstore.open(root / "s", config=QUIET)
    tree = file_tree(store, "files", {"segment.bytes": 4000})
    recorder.begin()
    for turn in range(6):
        for name in ("/a/offsets", "/a/state", f"/b/{turn}"):
            data = b"%d of %d " % (turn, len(told.allowed)) * 60
            told.try_(name, data)
            tree.write(name, data, overwrite=True)
        tree.flush()
        told.sure()
        told.try_("/b/0", None)
        tree.delete("/b/0")
    recorder.end(allowed=told.allowed)


def files_found(store: segstore.Store) -> Found:
    tree = file_tree(store, "files", {"segment.bytes": 4000})
    return {path: b"".join(tree.read(path)) for path, node in tree.walk() if isinstance(node, File)}


# --- small files -----------------------------------------------------------------------------------


def small(root: Path, recorder: Recorder) -> None:
    told = Registers(recorder)
    recorder.begin()
    for turn in range(3):
        with segstore.open(root / "s", config=QUIET) as store:
            for client in ("a", "b"):
                told.try_(client, {"producer_byte_rate": turn + 1})
                quotas(store).alter(client, {"producer_byte_rate": turn + 1})
                told.sure()
            credential = ScramCredential(b"salt", bytes(32), bytes([turn]) * 32, 4096)
            for user, given in (("u", credential), ("v", None if turn == 1 else credential)):
                told.try_(f"user {user}", given)
                scram_credentials(store).alter({(user, "SCRAM-SHA-256"): given})
                told.sure()
    recorder.end(allowed=told.allowed)


def small_found(store: segstore.Store) -> Found:
    users = scram_credentials(store).all()
    return {
        **quotas(store).describe(),
        **{f"user {user}": held["SCRAM-SHA-256"] for user, held in users.items()},
    }


def recover(root: Path) -> None:
    with segstore.open(root / "s", config=QUIET) as store:
        store.flush()
