"""An open that fails leaves no member behind: the next one finds the store as if there had been none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import segstore
from segstore.errors import StorageError
from segstore.storage.store import writer
from segstore.storage.store.writer import StoreWriter

pytestmark = pytest.mark.kind("programs")


def refuse(*_: Any, **__: Any) -> None:
    raise StorageError(5, "planted")


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("step", ["before the store is shared", "behind that"])
def test_a_failed_open_leaves_no_member(
    step: str, shared: bool, store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = (
        f"import os, segstore; s = segstore.open({str(store_dir)!r}, shared=True); s.create_topic('t')\n"
        "s.partition('t').append(b'x'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", killed], check=False)
    owner, name = (
        (writer, "check_readable") if step.startswith("before") else (StoreWriter, "_open_partitions")
    )
    with monkeypatch.context() as planted:
        planted.setattr(owner, name, refuse)
        with pytest.raises(StorageError, match="planted") as failed:
            segstore.open(store_dir, shared=shared)
    with segstore.open(store_dir) as store:
        assert store.partition("t").log_end_offset == 1
    assert failed is not None  # whose frames keep what the open has made
