"""A query beside a source that was restored from an older copy and went on, without a JVM: leader epochs in
the offsets of its checkpoint tell, and tell nothing false.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compaction import CONFIG, clean, roll
from consumers import append, fill
from stores import killed

import segstore
from segstore import names
from segstore.errors import DataLossError
from segstore.storage.meta import close_note

pytest.importorskip("pyspark", "4.2")

from pyspark.sql import types
from pyspark.sql.streaming.datasource import ReadAllAvailable

from segstore.spark.options import parse_options
from segstore.spark.source import BatchReader, StreamReader

COLUMNS = types.StructType().add("offset", types.LongType())
COPIED, READ, EPOCHS = 8, 12, "leader epochs"
"""The copy has the offsets below 8, and the query has read the original up to 12."""
LIMITS: dict[str, dict[str, str]] = {
    "no limit": {},
    "maxOffsetsPerTrigger": {"maxOffsetsPerTrigger": "100"},
    "minOffsetsPerTrigger": {"minOffsetsPerTrigger": "1"},
}


def reader(path: Path, fail: str = "true", **options: str) -> StreamReader:
    held = {"path": str(path), "subscribe": "t", "startingOffsets": "earliest", "failOnDataLoss": fail}
    return StreamReader({**held, **options}, COLUMNS)


def batch(stream: StreamReader, at: Any) -> tuple[Any, list[str]]:
    """Return the end of the next micro-batch, and its parts: none if Spark runs none."""
    end = json.loads(json.dumps(stream.latestOffset(at, stream.getDefaultReadLimit())))
    return end, [] if end == at else read(stream, at, end)


def read(stream: StreamReader, at: Any, end: Any) -> list[str]:
    parts = stream.partitions(at, end)
    for part in parts:
        assert sum(rows.num_rows for rows in stream.read(part)) == part.end - part.start
    return [f"{part}: {part.start}-{part.end}" for part in parts]


def checkpoint(path: Path, **options: str) -> Any:
    """The offsets of a query that has read all."""
    stream = reader(path, **options)
    end, _ = batch(stream, stream.initialOffset())
    stream.stop()
    return end


@pytest.fixture
def copied(tmp_path: Path, store_dir: Path) -> Path:
    """The original; the copy lies in `store_dir`, closed."""
    original = tmp_path / "original"
    with segstore.open(original) as store:
        fill(store, records=COPIED)
    shutil.copytree(original, store_dir, dirs_exist_ok=True)
    with segstore.open(original) as store:
        append(store, READ - COPIED)
    return original


def go_on(path: Path, records: int = 10) -> None:
    with segstore.open(path) as store:
        append(store, records)


# --- other records at the offsets -----------------------------------------------------------------


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize("limit", LIMITS)
def test_a_source_that_was_restored_is_told(
    limit: str, available_now: bool, copied: Path, store_dir: Path
) -> None:
    at = checkpoint(copied)
    go_on(store_dir)
    stream = reader(store_dir, **LIMITS[limit])
    if available_now:
        stream.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match=r"t-0: records before offset 12, .*another way from offset 8 on"):
        batch(stream, at)
    stream.stop()


@pytest.mark.parametrize("limit", LIMITS)
def test_a_query_goes_on_where_the_logs_part(limit: str, copied: Path, store_dir: Path) -> None:
    at = checkpoint(copied)
    go_on(store_dir)
    stream = reader(store_dir, "false", **LIMITS[limit])
    at, parts = batch(stream, at)
    assert parts == ["t-0: 8-18"]
    assert batch(stream, at) == (at, [])
    go_on(store_dir, 2)
    assert batch(stream, at)[1] == ["t-0: 18-20"]
    stream.stop()


@pytest.mark.parametrize("begin", [5, 10])
def test_a_micro_batch_that_was_planned_on_the_original(begin: int, copied: Path, store_dir: Path) -> None:
    """It runs again, and the next one goes on behind it: no record of the restored store comes twice."""
    end = checkpoint(copied)
    at = {"t": {"0": begin}, EPOCHS: end[EPOCHS]}
    go_on(store_dir)
    strict, stream = reader(store_dir), reader(store_dir, "false")
    with pytest.raises(DataLossError, match="another way from offset 8 on"):
        read(strict, at, end)
    assert read(stream, at, end) == (["t-0: 5-8"] if begin == 5 else [])
    assert batch(stream, end)[1] == ["t-0: 8-18"]
    strict.stop()
    stream.stop()


def test_a_restore_that_ends_at_the_offset_is_told_with_the_next_record(
    copied: Path, store_dir: Path
) -> None:
    at = checkpoint(copied)
    go_on(store_dir, READ - COPIED)
    stream = reader(store_dir)
    assert batch(stream, at) == (at, [])
    go_on(store_dir, 1)
    with pytest.raises(DataLossError, match="another way from offset 8 on"):
        batch(stream, at)
    stream.stop()


@pytest.mark.parametrize("last", [50, 100])
def test_a_second_restore_of_the_same_copy(
    last: int, copied: Path, store_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has not got the epoch of the checkpoint, but one below it or none so high."""
    steps = iter([100, last])
    monkeypatch.setattr(close_note.secrets, "randbelow", lambda _: next(steps))
    shutil.copytree(store_dir, tmp_path / "first")
    go_on(tmp_path / "first")
    at = checkpoint(tmp_path / "first")
    go_on(store_dir, 20)
    stream = reader(store_dir)
    if last == 100:  # by chance both began the same one: docs/spark.md
        assert batch(stream, at)[1] == ["t-0: 18-28"]
    else:
        with pytest.raises(DataLossError, match="from where is not known"):
            batch(stream, at)
    stream.stop()


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_offsets_of_a_progress_report_as_options(option: str, copied: Path, store_dir: Path) -> None:
    at = checkpoint(copied)
    go_on(store_dir)
    given = {"path": str(store_dir), "subscribe": "t", option: json.dumps(at)}
    with pytest.raises(DataLossError, match="another way from offset 8 on"):
        BatchReader(parse_options(given), None).partitions()
    [part] = BatchReader(parse_options({**given, "failOnDataLoss": "false"}), None).partitions()
    assert (part.start, part.end) == ((8, 18) if option == "startingOffsets" else (0, 8))
    given[option] = json.dumps({"t": at["t"]})
    [part] = BatchReader(parse_options(given), None).partitions()
    assert (part.start, part.end) == ((12, 18) if option == "startingOffsets" else (0, 12))
    whole = {**given, "path": str(copied), option: json.dumps(at)}
    parts = BatchReader(parse_options(whole), None).partitions()
    assert [(part.start, part.end) for part in parts if hasattr(part, "start")] == (
        [] if option == "startingOffsets" else [(0, 12)]
    )


# --- the same records at the offsets --------------------------------------------------------------


def a_kill(path: Path, work: Path) -> Path:
    """The writer begins an epoch behind it."""
    with segstore.open(path) as store:
        append(store, 1)
        return killed(path, work / "killed")


def a_copy_that_has_all(path: Path, work: Path) -> Path:
    return Path(shutil.copytree(path, work / "copy"))


def retention(path: Path, work: Path) -> Path:
    """The epochs of what was removed go with it."""
    go_on(a_copy := a_copy_that_has_all(path, work))
    with segstore.open(a_copy) as store:
        store.partition("t").delete_records(READ)
    return a_copy


def without_epochs(path: Path, work: Path) -> Path:
    (path / "t-0" / names.LEADER_EPOCHS).unlink()
    return path


def damaged_epochs(path: Path, work: Path) -> Path:
    (path / "t-0" / names.LEADER_EPOCHS).write_bytes(b"0\n1\nnothing\n")
    return path


def a_broker(path: Path, work: Path) -> Path:
    """A broker has gone on with the directory: in it is nothing of segstore's."""
    go_on(path, 3)
    shutil.rmtree(path / names.OURS)
    return path


KEPT: dict[str, Callable[[Path, Path], Path]] = {
    "a clean close": lambda path, work: path,
    "a kill": a_kill,
    "a copy that has all": a_copy_that_has_all,
    "no leader-epoch-checkpoint": without_epochs,
    "a damaged leader-epoch-checkpoint": damaged_epochs,
    "a broker's directory": a_broker,
}


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("name", KEPT)
def test_records_that_stay_are_no_loss(name: str, live: bool, copied: Path, tmp_path: Path) -> None:
    """Whether other epochs began since is nothing: the end of the checkpoint's epoch decides (KIP-320)."""
    at = checkpoint(copied)
    path = KEPT[name](copied, tmp_path)
    with segstore.open(path, "r") as store:
        before = store.partition("t").end_offset
    stream = reader(path)
    assert batch(stream, at)[1] == ([f"t-0: 12-{before}"] if before > READ else [])
    if live and name != "a broker's directory":
        go_on(path, 4)
        assert batch(stream, at)[1] == [f"t-0: 12-{before + 4}"]
    stream.stop()


def test_retention_behind_a_query_is_no_loss(copied: Path, tmp_path: Path) -> None:
    at = checkpoint(copied)
    stream = reader(retention(copied, tmp_path))
    assert batch(stream, at)[1] == ["t-0: 12-22"]
    stream.stop()


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("behind", [False, True])
def test_a_file_of_epochs_that_lacks_one_is_no_loss(
    behind: bool, compacted: bool, store_dir: Path, tmp_path: Path
) -> None:
    """It was lost and made anew from the batches, perhaps without a record of the checkpoint's epoch."""
    older, path = tmp_path / "older", store_dir
    with segstore.open(older) as store:
        store.create_topic("t", config=CONFIG)
        store.partition("t").append_batch([b"1", b"2"], keys=[b"a", b"b"])
    shutil.copytree(older, path, dirs_exist_ok=True)  # an epoch begins
    with segstore.open(path) as store:
        store.partition("t").append_batch([b"3"], keys=[b"c"])
    at = checkpoint(path)
    moved = Path(shutil.copytree(path, tmp_path / "moved"))  # another one begins
    with segstore.open(moved) as store:
        log = store.partition("t")
        log.append_batch([b"4"], keys=[b"c"])
        if compacted:
            roll(store)
            clean(store)
    file = moved / "t-0" / names.LEADER_EPOCHS
    version, count, first, *others = file.read_text().splitlines()
    assert (count, len(others)) == ("3", 2)
    kept = [first, *others[1:]] if behind else [first]
    file.write_text("\n".join([version, str(len(kept)), *kept]) + "\n")
    stream = reader(moved)
    assert stream.partitions(at, stream.latestOffset(at, ReadAllAvailable()))
    stream.stop()


@pytest.mark.parametrize("available_now", [False, True])
def test_a_checkpoint_of_an_earlier_version(available_now: bool, copied: Path, store_dir: Path) -> None:
    """It has no epochs: no micro-batch is run for them, and they come with the next records."""
    at = {"t": {"0": READ}}
    stream = reader(copied)
    if available_now:
        stream.prepareForTriggerAvailableNow()
    assert batch(stream, at) == (at, [])
    stream.stop()
    stream = reader(copied, maxOffsetsPerTrigger="100")
    assert batch(stream, at) == (at, [])
    go_on(copied, 4)
    at, parts = batch(stream, at)
    assert (sorted(at), parts) == ([EPOCHS, "t"], ["t-0: 12-16"])
    stream.stop()
    go_on(store_dir)
    stream = reader(store_dir)
    assert batch(stream, {"t": {"0": READ}})[1] == ["t-0: 12-18"]
    stream.stop()


def test_offsets_and_progress(copied: Path) -> None:
    stream = reader(copied)
    assert stream.initialOffset() == {"t": {"0": 0}}
    assert stream.latestOffset({"t": {"0": 0}}, ReadAllAvailable()) == {
        "t": {"0": READ},
        EPOCHS: {"t": {"0": 0}},
    }
    assert stream.reportLatestOffset() == {"t": {"0": READ}}
    stream.stop()
