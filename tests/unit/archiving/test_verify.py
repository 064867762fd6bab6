"""`verify`: what is damaged in an archive is told by name, each of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from archived_history import ArchivedHistory
from made_archive import CLAIM, make_archive
from stores import START_MS, Clock, transact_and_consume, value_of

import segstore
from segstore import names
from segstore._native import crc32c
from segstore.archiving.contents import LogBounds, NamedObject, NamedRange, named_objects
from segstore.archiving.downloads import ObjectRange
from segstore.archiving.object_names import COMMIT, CommitName
from segstore.archiving.remote import RemoteFiles
from segstore.archiving.segment_list import parse_segment_list
from segstore.archiving.verify import BatchCheck, verify, verify_objects
from segstore.errors import ArchiveError
from segstore.records import Columns, Template, encode


@pytest.fixture
def remote(store_dir: Path, tmp_path: Path) -> RemoteFiles:
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t", 2, {"segment.bytes": 1000})
        for number in range(60):
            store.partition("t").append(value_of(number, 100))
        transact_and_consume(store)
    return make_archive(store_dir, tmp_path / "archive")


def logs_of(remote: RemoteFiles) -> list[str]:
    return sorted(name for name in remote.list("topics/t/") if name.endswith(names.LOG))


def change(remote: RemoteFiles, name: str, how: Callable[[bytearray], object]) -> None:
    data = bytearray(remote.read(name))
    how(data)
    remote.write(name, [data])


def flip(at: int) -> Callable[[bytearray], None]:
    def run(data: bytearray) -> None:
        data[at] ^= 1

    return run


def test_a_sound_archive(remote: RemoteFiles) -> None:
    sizes: list[int] = []
    found = verify(remote.uri, progress=sizes.append)
    assert (found.findings, found.unnamed) == ([], 0)
    there = {**remote.list("topics/"), **remote.list("commits/")}
    assert found.objects == len(there)
    assert sum(sizes) == found.bytes
    assert found.bytes > sum(size for name, size in there.items() if name.endswith(names.LOG))


def test_no_archive(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="there is no archive"):
        verify(str(tmp_path / "none"))


DAMAGES: dict[str, tuple[Callable[[bytearray], object], str]] = {
    "a flipped bit": (flip(-3), "the CRC-32C of .* is"),
    "cut": (lambda data: data.__delitem__(slice(-5, None)), "it ends at byte"),
    "longer": (lambda data: data.extend(b"more"), r"it has \d+ bytes, not"),
    "empty": (lambda data: data.clear(), "it ends at byte 0"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damaged_object_is_told(remote: RemoteFiles, damage: str) -> None:
    how, said = DAMAGES[damage]
    objects = [
        *logs_of(remote)[:2],
        *(name for name, size in remote.list("topics/").items() if name.endswith(names.SNAPSHOT) and size),
    ][:4]
    for name in objects:
        change(remote, name, how)
    found = verify(remote.uri).findings
    assert {each.path for each in found} == set(objects)
    for name in objects:
        assert any(re.search(said, each.message) for each in found if each.path == name)


def test_objects_that_are_missing(remote: RemoteFiles) -> None:
    there = remote.list("topics/")
    gone = [logs_of(remote)[1], next(name for name, size in there.items() if not size)]
    remote.delete(gone)
    found = verify(remote.uri).findings
    assert [(each.path, each.message) for each in found] == [(name, "it is missing") for name in sorted(gone)]


def test_a_list_of_segments_that_is_missing(remote: RemoteFiles) -> None:
    name = next(name for name in remote.list("topics/") if name.endswith(".segments"))
    remote.delete([name])
    assert [(each.path, each.message) for each in verify(remote.uri).findings] == [(name, "it is missing")]


def test_a_damaged_piece(remote: RemoteFiles) -> None:
    name = str(CommitName(CLAIM, 2, COMMIT))
    change(remote, name, flip(-1))
    assert {each.path for each in verify(remote.uri).findings} == {name}


def test_a_damaged_header_of_a_commit(remote: RemoteFiles) -> None:
    name = str(CommitName(CLAIM, 2, COMMIT))
    change(remote, name, flip(40))
    found = verify(remote.uri).findings
    assert [(each.path, each.message) for each in found] == [(name, "the CRC of its header is wrong")]


def test_what_nothing_names_is_counted(remote: RemoteFiles) -> None:
    name = logs_of(remote)[0]
    remote.write(name.replace(str(CLAIM), "0000000009-00000000000000aa"), [b"left"])
    found = verify(remote.uri)
    assert (found.findings, found.unnamed) == ([], 1)


def test_the_objects_of_earlier_ways_are_read(store_dir: Path, tmp_path: Path) -> None:
    history = ArchivedHistory(tmp_path / "archive")
    with segstore.open(store_dir, clock=Clock()) as store:
        store.create_topic("t", config={"segment.bytes": 1000})
        for number in range(60):
            store.partition("t").append(value_of(number, 100))
    history.take(store_dir, START_MS)
    history.go_another_way(START_MS + 100)
    history.lists.clear()
    earlier = set(history.remote.list("topics/"))
    history.partitions.clear()
    with segstore.open(tmp_path / "other") as store:
        store.create_topic("t")
        store.partition("t").append(b"x")
    history.take(tmp_path / "other", START_MS + 200)
    assert verify(history.uri).findings == []
    damaged = sorted(name for name in earlier if name.endswith(names.LOG))[0]
    change(history.remote, damaged, flip(0))
    assert {each.path for each in verify(history.uri).findings} == {damaged}


def test_a_part_of_the_objects_is_verified(remote: RemoteFiles) -> None:
    first, second = logs_of(remote)[:2]
    for name in (first, second):
        change(remote, name, flip(-1))
    some = [each for each in named_objects(remote).objects.values() if each.object == second]
    assert {each.path for each in verify_objects(remote, some)} == {second}


def test_offsets_that_are_missing(remote: RemoteFiles) -> None:
    name = next(name for name in remote.list("topics/t/") if name.endswith(".segments"))
    listed = parse_segment_list(remote.read(name), name)
    gone = listed.segments[2]
    left = (*listed.segments[:2], *listed.segments[3:])
    remote.write(name, [listed.next_version(left, listed.starts).to_bytes()])
    found = verify(remote.uri).findings
    assert [each.message for each in found if each.path == name] == [
        f"offsets {gone.base} to {gone.end - 1} are missing"
    ]


# --- batches -----------------------------------------------------------------------------------


def batches(first: int, count: int) -> bytes:
    columns = Columns([value_of(i, 50) for i in range(count)], timestamps=[START_MS] * count)
    made = encode(columns, batch_bytes=300, template=Template(base_offset=first))
    return b"".join(bytes(each.data) for each in made)


LOGS: dict[str, tuple[bytes, str]] = {
    "sound": (batches(10, 40), ""),
    "empty": (b"", ""),
    "cut within a batch": (batches(10, 40)[:-3], "the log ends within a batch"),
    "zeros": (batches(10, 10) + bytes(100), "no valid batch: "),
    "offsets that fall": (batches(10, 10) + batches(12, 5), "no valid batch|offset 12: the batch before"),
    "below the segment": (batches(5, 10), "offset 5: "),
    "beyond the segment": (batches(10, 41), "offset 50 is not below 50"),
}


@pytest.mark.parametrize("step", [1, 17, 300, 1 << 20])
@pytest.mark.parametrize("name", LOGS)
def test_batches_in_parts(name: str, step: int) -> None:
    data, said = LOGS[name]
    check = BatchCheck("the log", 100, LogBounds(10, 50))
    for at in range(0, len(data), step):
        check.take(memoryview(data)[at : at + step])
    check.end()
    assert len(check.findings) == bool(said)
    for each in check.findings:
        assert re.search(said, each.message), each
        assert each.position in range(100, 101 + len(data))


def test_an_invalid_log_under_a_right_crc(tmp_path: Path) -> None:
    data = batches(10, 40)
    damaged = data[:100] + bytes([data[100] ^ 1]) + data[101:]
    remote = RemoteFiles(str(tmp_path))
    remote.write("x.log", [damaged])
    place = ObjectRange("x.log", 0, len(damaged), crc32c(damaged))
    found = verify_objects(remote, [NamedObject("x.log", (NamedRange(place, LogBounds(10, 50)),))])
    assert [each.message for each in found] == ["no valid batch: CRC mismatch"]
