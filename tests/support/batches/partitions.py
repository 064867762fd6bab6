"""Gives tests the partitions that a real Kafka broker wrote.

The repository has some of them in tests/golden, those of the newest Kafka within an archive, which each
process unpacks for itself; the full set lies beside the repository on some machines. Nothing here writes to
any of these.
"""

from __future__ import annotations

import atexit
import base64
import gzip
import io
import json
import shutil
import struct
import tarfile
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from places import GOLDEN, REPOSITORY

if TYPE_CHECKING:
    import pytest

ARCHIVES = GOLDEN / "kafka"
SHARED = REPOSITORY.parent / "shared" / "kafka-segments"

# A running broker preallocates the whole entries that fit into 10 MiB (LogConfig: segment.index.bytes).
PREALLOCATED = 10 << 20


class Expected(NamedTuple):
    """A record as an ordinary Kafka consumer (read_uncommitted) received it; times are in ms."""

    offset: int
    timestamp: int
    timestamp_type: str
    leader_epoch: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Source:
    """A partition directory, and the form in which a test gets it."""

    origin: str  # "golden" | "shared" | the version of an archive
    form: str  # "clean" | "running"
    path: Path
    records: Path
    build: bool = False  # the running form is to be built from the clean one

    @property
    def id(self) -> str:
        return f"{self.origin}-{self.form}-{self.path.name}"

    def expected(self) -> list[Expected]:
        return expected_of(self.path, self.records)


@dataclass(frozen=True)
class Partition:
    """A partition directory within a broker's log directory `root`."""

    root: Path
    path: Path
    form: str
    records: Path

    @property
    def topic(self) -> str:
        return self.path.name.rpartition("-")[0]

    @property
    def index(self) -> int:
        return int(self.path.name.rpartition("-")[2])

    def expected(self) -> list[Expected]:
        return expected_of(self.path, self.records)


def broker_partitions() -> list[Source]:
    """Return all partitions: the golden ones in both forms, and the full set where it exists."""
    sources = []
    for archive in sorted(ARCHIVES.glob("*.tar.gz")):
        sources += _archived(archive)
    for path in sorted((GOLDEN / "clean").iterdir()):
        records = GOLDEN / "records" / f"{path.name}.jsonl.gz"
        sources.append(Source("golden", "clean", path, records))
        sources.append(Source("golden", "running", path, records, build=True))
    for form in ("clean", "running"):
        there = sorted((SHARED / form).iterdir()) if SHARED.is_dir() else []
        sources += [Source("shared", form, p, SHARED / "records" / f"{p.name}.jsonl.gz") for p in there]
    return sources


def materialize(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Partition:
    if not source.build:
        return Partition(source.path.parent, source.path, source.form, source.records)
    root = tmp_path_factory.mktemp("running")
    as_running(source.path, root / source.path.name)
    return Partition(root, root / source.path.name, source.form, source.records)


def as_running(clean: Path, target: Path) -> None:
    """Copy a cleanly closed partition into the form that it has under a running broker.

    The last segment's indexes are preallocated with a tail of zeros, its newest time index entry and the
    snapshot at the log's end are not written yet.
    """
    shutil.copytree(clean, target, copy_function=shutil.copyfile)
    last = max(target.glob("*.log")).with_suffix("")
    for snapshot in sorted(target.glob("*.snapshot")):
        if int(snapshot.stem) > int(last.name):
            snapshot.unlink()
    _preallocate(last.with_suffix(".index"), 8, drop=0)
    _preallocate(last.with_suffix(".timeindex"), 12, drop=1)


def _preallocate(path: Path, entry_size: int, drop: int) -> None:
    size = path.stat().st_size - drop * entry_size
    with path.open("r+b") as file:
        file.truncate(max(size, 0))
        file.truncate(PREALLOCATED - PREALLOCATED % entry_size)


def _archived(archive: Path) -> list[Source]:
    """Return the partitions in an archive that have records, in both forms. That of `cut` is left out: where
    it starts is said outside of its directory.
    """
    version = archive.name.removesuffix(".tar.gz")
    records = archive.with_name(f"{version}.json.gz")
    wanted = [name for name, levels in _told(records).items() if levels["uncommitted"] and name != "cut-0"]
    root = _unpacked(archive, frozenset(wanted)) / version
    return [
        Source(version, form, root / name, records, build=build)
        for name in wanted
        for form, build in (("clean", False), ("running", True))
    ]


@cache
def _unpacked(archive: Path, partitions: frozenset[str]) -> Path:
    """Return a temporary directory with these partitions of an archive; tests are named by its last name."""
    place = Path(tempfile.mkdtemp(prefix="segstore-golden-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive.read_bytes()))) as files:
        members = [each for each in files if partitions & {*Path(each.name).parts[1:2]}]
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        files.extractall(place / "golden", members, **safe)
    return place / "golden"


@cache
def _told(records: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(gzip.decompress(records.read_bytes()))["records"]
    return told


def expected_of(partition: Path, records: Path) -> list[Expected]:
    """Return the records of a partition as a consumer read them; `records` is a file of it, or of a whole
    archive, whose broker was started once, so that all is of its first epoch.
    """
    if records.suffixes[-2:] == [".jsonl", ".gz"]:
        return read_expected(records)
    kind = "LogAppendTime" if partition.name == "stamped-0" else "CreateTime"
    return [
        Expected(
            *row[:2],
            kind,
            0,
            *map(_bytes, row[2:4]),
            headers=[(name, _bytes(value)) for name, value in row[4]],
        )
        for row in _told(records)[partition.name]["uncommitted"]
    ]


def read_expected(path: Path) -> list[Expected]:
    """Return the records of a partition as a consumer read them, from a records/*.jsonl.gz."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [_expected(json.loads(line)) for line in lines]


def index_entries(path: Path) -> list[tuple[int, int]]:
    """Return the entries of an .index (relative offset, position) or .timeindex (timestamp, relative
    offset).
    """
    entry = struct.Struct(">ii" if path.suffix == ".index" else ">qi")
    return list(entry.iter_unpack(path.read_bytes()))


def _expected(line: dict) -> Expected:
    return Expected(
        line["offset"],
        line["timestamp"],
        line["timestamp_type"],
        line["leader_epoch"],
        _bytes(line["key"]),
        _bytes(line["value"]),
        [(name, _bytes(value)) for name, value in line["headers"]],
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def broker_roots(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, list[Source]]:
    """Return every partition that a broker wrote, in as few log directories as possible."""
    roots: dict[Path, list[Source]] = {}
    built = tmp_path_factory.mktemp("running")
    for source in broker_partitions():
        if source.build:
            as_running(source.path, built / source.path.name)
        roots.setdefault(built if source.build else source.path.parent, []).append(source)
    return roots
