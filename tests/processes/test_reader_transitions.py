"""Promise: a reader of a store that others open, adopt into and close, or die while they do so, sees what is
published: all of an adoption or nothing, and never an existing topic as deleted.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from faults import MUTATING, HookedFiles, KillingFiles
from staging import PARTS, Unsynced, begin, contents, rows, sealed_only, stage, unsynced
from stores import in_child

import segstore
from segstore.errors import StoreClosedError
from segstore.storage.store import believed_ends

N = 6


class Looking(HookedFiles):
    """Looks before each change that another makes."""

    def __init__(self, look: Any) -> None:
        self.look, self.looks = look, 0

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name in MUTATING:
            self.looks += 1
            self.look()


class Reader:
    """It has each partition's log since before; `rounds`: how many adoptions may be there."""

    def __init__(self, store: segstore.Store) -> None:
        self.store = store
        self.logs = [store.partition(*part) for part in PARTS]
        self.seen = self.rounds = 0

    def look(self) -> None:
        for logs in (self.logs, [self.store.partition(*part) for part in PARTS]):
            ends = {log.end_offset for log in logs}
            assert ends <= {N * i for i in range(self.seen, self.rounds + 1)}
            assert len(ends) == 1
            self.seen = ends.pop() // N


@pytest.mark.kind("kills")
def test_a_reader_beside_opens_that_adopt_and_die(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each open is killed some calls later; another, looked at before each of its calls, comes after it."""
    monkeypatch.setattr(believed_ends, "_PATIENCE", 2)
    begin(store_dir)
    with segstore.open(store_dir, "r") as store:
        reader = Reader(store)
        reader.look()
        for round_, nth in enumerate(itertools.count(1, 2)):
            reader.rounds = round_ + 1
            staged = stage(store_dir, f"r{round_}", N, files=Unsynced())
            sealed_only(store_dir, f"id-{nth}", [staged])
            ended, _ = in_child(
                lambda tell, nth=nth: segstore.open(store_dir, files=unsynced(KillingFiles(nth))).close()
            )
            reader.look()
            files = Looking(reader.look)
            segstore.open(store_dir, files=unsynced(files)).close()
            reader.look()
            assert reader.seen == round_ + 1
            assert files.looks
            if not ended:
                break
        expected = [row for i in range(round_ + 1) for row in rows(f"r{i}", N)]
        assert contents(store) == [expected] * len(PARTS)
    assert nth > 40


def test_a_topic_that_is_deleted_or_made_anew_is_closed(store_dir: Path) -> None:
    begin(store_dir)
    with segstore.open(store_dir) as writer, segstore.open(store_dir, "r") as store:
        logs = [store.partition(*part) for part in PARTS]
        assert [log.end_offset for log in logs] == [0, 0]
        writer.delete_topic("u")
        writer.delete_topic("t")
        writer.create_topic("t", 2)
        for log in logs:
            with pytest.raises(StoreClosedError, match="the topic was deleted"):
                _ = log.end_offset
