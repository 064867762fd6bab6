"""A sealer sleeps until its manifest is adopted or refused: appends to other partitions don't wake it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from faults import CountingFiles, HookedFiles
from staging import PARTS, begin, stage
from waiting import PATIENCE, until

import segstore
from segstore import errors
from segstore.storage.inbox import sealing
from segstore.storage.staging import Staged, seal

FOREVER = 3600.0


class Waiting(HookedFiles):
    """Files of a writer that begins an adoption only when `go` is set."""

    def __init__(self) -> None:
        self.go, self.met = threading.Event(), threading.Event()

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name == "read_file" and str(args[0]).endswith(".manifest"):
            self.met.set()
            assert self.go.wait(PATIENCE)


@pytest.fixture(autouse=True)
def asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the writer ends a sealer's sleep."""
    monkeypatch.setattr(sealing, "PATIENCE", FOREVER)
    monkeypatch.setattr(sealing, "_SETTLING", FOREVER)


def in_thread(store_dir: Path, message: Staged, files: CountingFiles) -> tuple[threading.Thread, list[Any]]:
    """Seal in a thread of its own; the list gets the outcome."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(seal(store_dir, "one", [message], timeout=PATIENCE, files=files))
        except segstore.SegstoreError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


@pytest.mark.parametrize("fate", ["adopted", "refused"])
def test_appends_elsewhere_let_a_sealer_sleep(store_dir: Path, fate: str) -> None:
    begin(store_dir)
    message = stage(store_dir, "a")
    files, sealing = Waiting(), CountingFiles()
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("elsewhere")
        log = store.partition("elsewhere")
        thread, found = in_thread(store_dir, message, sealing)
        assert files.met.wait(PATIENCE)
        until(lambda: sealing.count("is_locked") > 0)  # the last call of a look: it sleeps now, or at once
        looks = sealing.count("is_locked")
        for _ in range(300):
            log.append(b"x")
        assert sealing.count("is_locked") <= looks + 1
        if fate == "refused":
            store.delete_topic(PARTS[0][0])
        files.go.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()
    if fate == "refused":
        assert isinstance(found[0], errors.UnknownTopicOrPartitionError)
    else:
        assert found[0].offsets == dict.fromkeys(PARTS, (0, 20))
