"""How a reader uses indexes: those of a live writer, of large batches, and files that claim too much."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from stores import killed, logs, raw_batches, values, write_topic

import segstore
from segstore.storage.segment import index_files


def large(root: Path) -> None:
    write_topic(root, [[bytes([n]) * 900_000] for n in range(6)], {"max.message.bytes": 1 << 20})


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_an_emptied_index_of_large_batches_is_made_anew(tmp_path: Path, mode: str) -> None:
    large(tmp_path)
    index = logs(tmp_path)[0].with_suffix(".index")
    entries = index.read_bytes()
    assert len(entries) == 5 * 8
    index.write_bytes(b"")
    # The last segment of a store that was closed: what a reader holds of it is looked at, not the file.
    with segstore.open(tmp_path, mode) as store:
        log = store.partition("t")
        assert log.read(4, 1)[0].value == bytes([4]) * 900_000
        assert log.source.view.segments[0].indexes[0].entries == 5
    if mode == "rw":
        assert index.read_bytes() == entries


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "active"])
def test_an_index_file_of_a_terabyte(tmp_path: Path, suffix: str, sealed: bool) -> None:
    batches = [[b"%d" % o for o in range(at, at + 10)] for at in range(0, 100, 10)]
    write_topic(tmp_path, batches, {"segment.bytes": 1000})
    os.truncate(logs(tmp_path)[0 if sealed else -1].with_suffix(suffix), 1 << 40)
    assert isinstance(segstore.check(tmp_path), list)
    for mode in ("r", "rw", "r"):
        with segstore.open(tmp_path, mode) as store:
            assert len(values(store.partition("t"))) == 100
            assert store.partition("t").offset_for_time(0) == 0
    assert segstore.check(tmp_path) == []


def test_a_live_writers_index_is_whole_up_to_the_published_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, root = tmp_path / "live", tmp_path / "store"
    batches = [[b"%d" % o * 100 for o in range(at, at + 10)] for at in range(0, 200, 10)]
    with write_topic(live, batches, {"index.interval.bytes": 100}, close=False):
        killed(live, root)
    with logs(root)[-1].open("ab") as log:
        log.write(raw_batches(range(200, 220), 500))  # of an append under way: its entries come next
    rebuilt = []
    rebuild = index_files.rebuild
    monkeypatch.setattr(index_files, "rebuild", lambda s: rebuilt.append(s.path) or rebuild(s))
    with segstore.open(root, "r") as store:
        assert len(values(store.partition("t"), max_bytes=1)) == 200
    assert rebuilt == []


@pytest.mark.parametrize("left", [-1, 1, 17, 61], ids=lambda n: f"{n} bytes left")
def test_an_index_entry_of_a_torn_batch_hides_no_record_before_it(
    tmp_path: Path, store_dir: Path, left: int
) -> None:
    """A power cut has kept the entry, and a part of the batch that it points to."""
    live = tmp_path / "live"
    with segstore.open(live) as store:
        store.create_topic("t", config={"index.interval.bytes": 1})
        for n in range(4):
            store.partition("t").append(b"%d" % n)
        log = logs(killed(live, store_dir))[0]
    (store_dir / ".segstore" / "ends").unlink()
    size = log.stat().st_size // 4
    os.truncate(log, 3 * size + left % size)
    with segstore.open(store_dir, mode="r") as reader:
        assert values(reader.partition("t")) == [b"0", b"1", b"2"]
    with segstore.open(store_dir) as again:
        assert values(again.partition("t")) == [b"0", b"1", b"2"]
