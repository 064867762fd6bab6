"""segstore.storage.meta.offset_checkpoints: Kafka's text formats, and which epoch an offset is of."""

from __future__ import annotations

import errno
import pickle
import random
from pathlib import Path

import pytest
from faults import SYNCS, FailingFiles
from hypothesis import given
from hypothesis import strategies as st
from partitions import broker_partitions

from segstore.errors import CorruptCheckpointError, InvalidArgumentError
from segstore.files import Files
from segstore.storage.meta.offset_checkpoints import (
    LeaderEpochs,
    format_leader_epochs,
    format_offsets,
    parse_leader_epochs,
    parse_offsets,
    read_offsets,
    write_offsets,
)

OFFSETS = {("flights", 10): 1, ("flights", 2): (1 << 63) - 1, ("a.b_c-d", 0): 0}
OFFSETS_TEXT = b"0\n3\na.b_c-d 0 0\nflights 2 9223372036854775807\nflights 10 1\n"


def test_offsets_are_in_kafkas_form() -> None:
    assert format_offsets(OFFSETS) == OFFSETS_TEXT
    assert parse_offsets(OFFSETS_TEXT, "f") == OFFSETS
    assert format_offsets({}) == b"0\n0\n"


@given(
    st.dictionaries(
        st.tuples(st.text("abZ09._-", min_size=3, max_size=20), st.integers(0, (1 << 31) - 1)),
        st.integers(0, (1 << 63) - 1),
    )
)
def test_offsets_come_back(offsets: dict[tuple[str, int], int]) -> None:
    assert parse_offsets(format_offsets(offsets), "f") == offsets


BAD = {
    "zeros": (bytes(20), 1),
    "only a version": (b"0\n", 2),
    "another version": (b"1\n0\n", 1),
    "version is no number": (b"x\n0\n", 1),
    "count is no number": (b"0\n-1\n", 2),
    "count too high": (b"0\n2\na 0 1\n", 2),
    "count too low": (b"0\n0\na 0 1\n", 2),
    "count that no memory holds": (b"0\n9999999999999999999\na 0 1\n", 2),
    "a blank line": (b"0\n2\na 0 1\n\n", 4),
    "no newline at the end": (b"0\n1\na 0 12", 3),
    "two fields": (b"0\n1\na 0\n", 3),
    "four fields": (b"0\n2\na 0 1\na 1 1 1\n", 4),
    "negative offset": (b"0\n1\na 0 -1\n", 3),
    "offset above int64": (b"0\n1\na 0 9223372036854775808\n", 3),
    "partition above int32": (b"0\n1\na 2147483648 0\n", 3),
    "offset with underscore": (b"0\n1\na 0 1_0\n", 3),
    "digits of another script": ("0\n1\na 0 ١\n".encode(), 3),
    "no topic's name": (b"0\n1\na/b 0 1\n", 3),
    "bytes that are no text": (b"0\n1\n\xff\xfe 0 1\n", 3),
    "twice": (b"0\n2\na 0 1\na 0 2\n", 4),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_offsets_are_named_by_file_and_line(name: str, tmp_path: Path) -> None:
    data, line = BAD[name]
    path = tmp_path / "checkpoint"
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpointError) as error:
        read_offsets(Files(), path)
    assert (error.value.file, error.value.line) == (str(path), line)
    assert str(error.value).startswith(f"{path}, line {line}: ")


def test_the_error_can_be_pickled() -> None:
    with pytest.raises(CorruptCheckpointError) as error:
        parse_offsets(b"x\n", "f")
    copy = pickle.loads(pickle.dumps(error.value))
    assert (str(copy), copy.file, copy.line, copy.reason) == (
        str(error.value),
        "f",
        1,
        error.value.reason,
    )


@pytest.mark.parametrize("there", [False, True], ids=["missing", "empty"])
def test_no_file_has_no_entries(there: bool, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    if there:
        path.touch()
    assert read_offsets(Files(), path) == {}
    assert LeaderEpochs.load(Files(), path).entries == ()
    assert path.exists() == there


def test_offsets_are_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_offsets(Files(), path, {("a", 0): 1})
    write_offsets(Files(), path, OFFSETS)
    assert path.read_bytes() == OFFSETS_TEXT
    assert read_offsets(Files(), path) == OFFSETS


def full(name: str, args: tuple[object, ...]) -> None:
    raise OSError(errno.ENOSPC, "no space", str(args[0]))


@pytest.mark.parametrize("step", ["pwrite", "sync", "rename"])
def test_a_failed_write_leaves_the_old_content(step: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_offsets(Files(), path, OFFSETS)
    with pytest.raises(OSError, match="no space"):
        write_offsets(FailingFiles({step}, full), path, {})
    assert path.read_bytes() == OFFSETS_TEXT
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


def test_epochs_are_durable_when_saved(tmp_path: Path) -> None:
    files = FailingFiles(SYNCS, lambda name, args: None, times=9)
    epochs = LeaderEpochs(files, tmp_path / "leader-epoch-checkpoint", [(0, 0)])
    assert files.hits == 0
    epochs.save()
    assert files.hits == 2, "the file and its directory are synced"


# --- leader epochs -----------------------------------------------------------


@pytest.mark.parametrize("source", [s for s in broker_partitions() if not s.build], ids=lambda s: s.id)
def test_brokers_epochs_come_back_to_the_byte(source) -> None:
    path = source.path / "leader-epoch-checkpoint"
    epochs = LeaderEpochs.load(Files(), path)
    assert [epoch for epoch, _ in epochs.entries] == [0]
    assert format_leader_epochs(epochs.entries) == path.read_bytes()


BAD_EPOCHS = {
    "three fields": (b"0\n1\n0 0 0\n", 3),
    "epoch above int32": (b"0\n2\n1 0\n2147483648 1\n", 4),
    "negative": (b"0\n1\n0 -1\n", 3),
    "cut": (b"0\n1\n0 1", 3),
}


@pytest.mark.parametrize("name", BAD_EPOCHS)
def test_bad_epochs_are_named_by_file_and_line(name: str, tmp_path: Path) -> None:
    data, line = BAD_EPOCHS[name]
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpointError) as error:
        LeaderEpochs.load(Files(), path)
    assert (error.value.file, error.value.line) == (str(path), line)


def test_saved_epochs_come_back(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    epochs = LeaderEpochs.load(Files(), path)
    assert epochs.latest is None
    epochs.assign(0, 0)
    epochs.assign((1 << 31) - 1, (1 << 63) - 1)
    assert not path.exists()
    epochs.save()
    assert path.read_bytes() == b"0\n2\n0 0\n2147483647 9223372036854775807\n"
    assert LeaderEpochs.load(Files(), path).entries == epochs.entries


def test_entries_that_do_not_rise_give_way(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_bytes(b"0\n4\n1 0\n2 10\n3 5\n4 7\n")
    assert LeaderEpochs.load(Files(), path).entries == ((1, 0), (3, 5), (4, 7))
    assert parse_leader_epochs(path.read_bytes(), path) == [(1, 0), (2, 10), (3, 5), (4, 7)]


BEFORE = [(2, 10), (4, 20), (7, 35)]

ASSIGNED = {
    "newer": (8, 40, [(2, 10), (4, 20), (7, 35), (8, 40)]),
    "the same again": (7, 35, BEFORE),
    "the same from later on": (7, 50, BEFORE),
    "the same from earlier on": (7, 30, [(2, 10), (4, 20), (7, 30)]),
    "newer where the last begins": (8, 35, [(2, 10), (4, 20), (8, 35)]),
    "newer before several": (8, 15, [(2, 10), (8, 15)]),
    "newer before all": (8, 0, [(8, 0)]),
    "older, which did not begin yet": (4, 40, [(2, 10), (4, 40)]),
    "between": (5, 40, [(2, 10), (4, 20), (5, 40)]),
    "older than all": (0, 40, [(0, 40)]),
}


@pytest.mark.parametrize("name", ASSIGNED)
def test_assign(name: str) -> None:
    epoch, start, expected = ASSIGNED[name]
    epochs = LeaderEpochs(Files(), "f", BEFORE)
    epochs.assign(epoch, start)
    assert list(epochs.entries) == expected
    assert epochs.latest == expected[-1][0]


@pytest.mark.parametrize(("epoch", "start"), [(-1, 0), (0, -1)])
def test_assign_refuses(epoch: int, start: int) -> None:
    epochs = LeaderEpochs(Files(), "f", BEFORE)
    with pytest.raises(InvalidArgumentError, match=f"epoch {epoch} from offset {start}"):
        epochs.assign(epoch, start)
    assert list(epochs.entries) == BEFORE


@pytest.mark.parametrize(
    ("offset", "epoch"), [(0, None), (9, None), (10, 2), (19, 2), (20, 4), (34, 4), (35, 7), (1 << 62, 7)]
)
def test_epoch_for_offset(offset: int, epoch: int | None) -> None:
    assert LeaderEpochs(Files(), "f", BEFORE).epoch_for_offset(offset) == epoch


def test_no_offset_has_an_epoch_where_none_is_known() -> None:
    assert LeaderEpochs(Files(), "f").epoch_for_offset(0) is None


@pytest.mark.parametrize(
    ("end", "expected"),
    [(99, BEFORE), (36, BEFORE), (35, BEFORE[:2]), (21, BEFORE[:2]), (20, BEFORE[:1]), (10, []), (0, [])],
)
def test_truncate_from_end(end: int, expected: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs(Files(), "f", BEFORE)
    epochs.truncate_from_end(end)
    assert list(epochs.entries) == expected


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (0, BEFORE),
        (9, BEFORE),
        (10, BEFORE),
        (15, [(2, 15), (4, 20), (7, 35)]),
        (20, [(4, 20), (7, 35)]),
        (34, [(4, 34), (7, 35)]),
        (99, [(7, 99)]),
    ],
)
def test_truncate_from_start(start: int, expected: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs(Files(), "f", BEFORE)
    epochs.truncate_from_start(start)
    assert list(epochs.entries) == expected


def test_any_history_answers_as_a_log_of_epochs_does(rng: random.Random) -> None:
    """Against a list that has the epoch of each offset: appends under rising epochs, cuts at both ends."""
    for _ in range(200):
        epochs, log, start, epoch = LeaderEpochs(Files(), "f"), [], 0, 0
        for _ in range(rng.randrange(1, 30)):
            action = rng.choice(["append", "append", "append", "cut", "delete"])
            if action == "append":
                epoch += rng.choice([0, 0, 1, 3])
                epochs.assign(epoch, len(log))
                log += [epoch] * rng.randrange(1, 5)
            elif action == "cut":
                end = rng.randint(start, len(log))
                del log[end:]
                epochs.truncate_from_end(end)
            else:
                start = rng.randint(start, len(log))
                epochs.truncate_from_start(start)
        assert [epochs.epoch_for_offset(o) for o in range(start, len(log))] == log[start:]
        starts = [s for _, s in epochs.entries]
        assert starts == sorted(set(starts))
