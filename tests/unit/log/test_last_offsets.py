"""Upper limits: the offsets of a log, where 2^63 - 2 is the last of a record, and the uncompressed bytes of a
batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from paused_tails import let_tails_open
from stores import raw_batches, value_of, values, write_segment
from waiting import PATIENCE

import segstore
from segstore import Producer
from segstore.errors import OffsetsExhaustedError, RecordTooLargeError, SegstoreError
from segstore.records import MAX_PLAIN
from segstore.storage.staging import Stager, seal

LAST = 2**63 - 2


def at_the_end(path: Path, left: int) -> segstore.Store:
    """A store whose log has room for so many more records."""
    with segstore.open(path) as store:
        store.create_topic("t")
    for old in (path / "t-0").glob("0*"):
        old.unlink()
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        (path / name).unlink(missing_ok=True)
    (path / ".segstore" / "ends").unlink()
    base = LAST - left
    write_segment(path / "t-0", base, raw_batches([base]))
    return segstore.open(path)


def there(left: int) -> bytes:
    """The value of the record that `at_the_end` has."""
    return value_of(LAST - left)


def stage(store: segstore.Store) -> None:
    with Stager(store.path) as stager:
        stager.append_batch("t", 0, [b"x"] * 3)
        message = stager.finish()
    seal(store.path, "one", [message], timeout=PATIENCE)


REFUSED: dict[str, Callable[[segstore.Store], object]] = {
    "append": lambda store: store.partition("t").append(b"x"),
    "append_batch": lambda store: store.partition("t").append_batch([b"x"] * 3),
    "several batches": lambda store: store.partition("t").append_batch([b"x" * 90] * 30, batch_bytes=200),
    "compressed": lambda store: store.partition("t").append_batch([b"x"] * 3, compression="zstd"),
    "producer": lambda store: Producer(store).send("t", b"x").get(PATIENCE),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_what_has_no_offset_left_is_refused_by_name(
    store_dir: Path, refused: Callable[[segstore.Store], object]
) -> None:
    with at_the_end(store_dir, 2) as store:
        log = store.partition("t")
        assert log.end_offset == LAST - 1
        assert log.append_batch([b"a", b"b"]) == range(LAST - 1, LAST + 1)
        for _ in range(2):
            with pytest.raises(OffsetsExhaustedError, match=f"0 offsets left.*{LAST}"):
                refused(store)
        assert (log.end_offset, values(log)) == (2**63 - 1, [there(2), b"a", b"b"])
    with segstore.open(store_dir) as store:
        assert values(store.partition("t")) == [there(2), b"a", b"b"]


def test_an_append_takes_no_offset_where_it_needs_more_than_are_left(store_dir: Path) -> None:
    with at_the_end(store_dir, 2) as store:
        log = store.partition("t")
        with pytest.raises(OffsetsExhaustedError, match="has 2 offsets left, and 3 are needed"):
            log.append_batch([b"x"] * 3)
        with pytest.raises(OffsetsExhaustedError):
            log.append_batch([b"x" * 90] * 3, batch_bytes=100)
        with pytest.raises(SegstoreError, match="offsets left"):
            stage(store)
        assert log.append(b"fits") == LAST - 1
        assert values(log) == [there(2), b"fits"]


# --- 256 MiB --------------------------------------------------------------------------------------


LARGE = {"max.message.bytes": 2**31 - 1, "segment.bytes": 2**31 - 1}
WRITE: dict[str, Callable[[segstore.Store, bytes], object]] = {
    "append": lambda store, value: store.partition("t").append(value),
    "append_batch": lambda store, value: store.partition("t").append_batch([value]),
    "compressed": lambda store, value: store.partition("t").append_batch([value], compression="zstd"),
    "a topic that compresses": lambda store, value: store.partition("zstd").append(value),
    "producer": lambda store, value: (
        Producer(store, max_request_size=2**31 - 1, buffer_memory=2**31).send("t", value).get(PATIENCE)
    ),
}


@pytest.mark.parametrize("write", WRITE.values(), ids=WRITE)
def test_what_no_reader_need_take_is_not_written(
    store_dir: Path, write: Callable[[segstore.Store, bytes], object]
) -> None:
    value = bytes(MAX_PLAIN)  # pages that nobody has written to
    with segstore.open(store_dir) as store:
        store.create_topic("t", config=LARGE)
        store.create_topic("zstd", config={**LARGE, "compression.type": "zstd"})
        with pytest.raises(RecordTooLargeError, match=f"{MAX_PLAIN:,}"):
            write(store, value)
        assert store.partition("t").end_offset == store.partition("zstd").end_offset == 0


def test_the_size_before_compression_counts_to_the_byte(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of one record on the long way: on the short way no record is so large."""
    let_tails_open(monkeypatch, False)
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = store.partition("t")
        log.append(b"x" * 500, b"key", headers=[("h", b"v")])
        size = int(log.read(0).batches["size"][0])
        for place in ("encode", "encoded"):
            monkeypatch.setattr(sys.modules[f"segstore.records.{place}"], "MAX_PLAIN", size)
        log.append(b"x" * 500, b"key", headers=[("h", b"v")])
        with pytest.raises(RecordTooLargeError, match=f"{size + 1:,} bytes before compression: .*{size:,}"):
            log.append(b"x" * 501, b"key", headers=[("h", b"v")])
