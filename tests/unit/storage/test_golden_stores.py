"""Promise: stores that earlier versions wrote are opened, read record for record, checked and written on."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

import segstore

GOLDEN = Path(__file__).parents[2] / "golden" / "stores"
sys.path.insert(0, str(GOLDEN))
try:
    import write as writer
finally:
    sys.path.remove(str(GOLDEN))


@pytest.fixture(params=["closed", "killed"])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A store, and what the version that wrote it has read."""
    with tarfile.open(GOLDEN / f"{request.param}.tar.gz") as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    said = json.loads(gzip.decompress((GOLDEN / f"{request.param}.json.gz").read_bytes()))
    return tmp_path / request.param, said


ENDED = ("txn-0", "__transaction_state-")
"""Where a writer that opens a killed store ends the open transaction."""


def assert_reads(store: segstore.Store, said: dict[str, Any], ended: bool = False) -> None:
    told = json.loads(json.dumps(writer.told(store)))
    assert told["partitions"].keys() == said["partitions"].keys()
    for name, partition in said["partitions"].items():
        found = told["partitions"][name]
        if ended and name.startswith(ENDED):
            assert found["start"] == partition["start"]
            for level in ("committed", "uncommitted"):
                assert found[level][: len(partition[level])] == partition[level]
        else:
            assert found == partition, name
    for name, (partitions, config) in said["topics"].items():
        assert told["topics"][name][0] == partitions
        assert config.items() <= told["topics"][name][1].items()  # later versions may know more settings


def logs(path: Path) -> dict[str, str]:
    """Digests of all segments."""
    return {str(p.relative_to(path)): hashlib.sha256(p.read_bytes()).hexdigest() for p in path.rglob("*.log")}


def test_another_process_reads_it(golden: tuple[Path, dict[str, Any]]) -> None:
    path, said = golden
    before = logs(path)
    with segstore.open(path, "r") as store:
        assert_reads(store, said)
    assert not (path / ".segstore" / "format").exists()  # version 0.1 wrote none, and readers write nothing
    # What a killed writer had published counts until the machine is booted, which it was meanwhile.
    allowed = (
        {"holds no published ends: made anew at the next open for writing"}
        if path.name == "killed"
        else set()
    )
    assert {finding.message for finding in segstore.check(path)} <= allowed
    assert logs(path) == before


def test_a_writer_goes_on(golden: tuple[Path, dict[str, Any]]) -> None:
    path, said = golden
    before = logs(path)
    with segstore.open(path, clock=writer.Clock()) as store:
        assert (path / ".segstore" / "format").exists()
        assert bool(store.recovered) == (path.name == "killed")
        assert_reads(store, said, ended=path.name == "killed")
        assert writer.committed(store) == said["offsets"]
        log = store.partition("plain")
        end = said["partitions"]["plain-0"]["end"]
        assert log.append(b"written on") == end
        assert log.read(end)[0].value == b"written on"
        store.sweep()
    after = logs(path)
    assert {name: after[name] for name in before if name.startswith(("zstd", "gzip", "lz4", "snappy"))} == {
        name: digest for name, digest in before.items() if name.startswith(("zstd", "gzip", "lz4", "snappy"))
    }
    assert segstore.check(path) == []
    with segstore.open(path, "r") as store:
        assert store.partition("plain").end_offset == end + 1
