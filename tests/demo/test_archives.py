"""The demo's archive: a store comes back as it was a minute before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import segstore
from segstore.demo import archives as part
from segstore.demo.screen import Screen
from segstore.errors import StorageError

pytestmark = pytest.mark.kind("programs")


def test_a_store_comes_back_as_it_was_a_minute_before(
    tmp_path: Path, store_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("flights")
        store.partition("flights").append(b"on time")
    uri = part.archives(Screen(), str(tmp_path / "base"), str(store_dir))
    assert "none of the wrong ones, and the store is sound" in capsys.readouterr().out
    shutil.rmtree(store_dir)
    assert segstore.restore(uri, store_dir).partitions >= 1


def test_a_record_that_is_lost_or_wrong_is_a_failure(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic(part.TOPIC)
        for n in range(part.GOOD):
            store.partition(part.TOPIC).append(b"payment %d" % n)
        part.prove(Screen(), str(store_dir))
        store.partition(part.TOPIC).append(b"wrong 0")
    with pytest.raises(StorageError, match="which are not the"):
        part.prove(Screen(), str(store_dir))
