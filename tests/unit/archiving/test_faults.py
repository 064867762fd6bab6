"""An archive whose file system fails: objects that are lost, cut off, changed, written twice or listed late
are told by name, or do no harm; a store that throttles, or refuses credentials, is waited for.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faulty_objects import EXPIRED, FaultyObjects
from s3_faults import S3Faults
from s3_server import S3Server
from waiting import until

import segstore
from segstore.archiving import archive as module
from segstore.archiving.verify import verify
from segstore.errors import CorruptArchiveError

pytestmark = pytest.mark.kind("faults of an archive")

Fault = Callable[[FaultyObjects, str], None]
LOG, COMMIT, LIST = r"/good/.*\.log$", r"\.commit$|\.state$", r"/good/.*\.segments$"
OBJECTS = {"a segment": LOG, "commits and states": COMMIT, "a list of segments": LIST}
DAMAGES: dict[str, Fault] = {
    "lost": FaultyObjects.lose,
    "cut off": FaultyObjects.cut,
    "changed": FaultyObjects.flip,
}
HARMLESS: dict[str, Fault] = {
    "written twice": FaultyObjects.double,
    "listed late": FaultyObjects.list_late,
    "slow": lambda objects, pattern: objects.delay(pattern, 0.02),
    "refused for a while": lambda objects, pattern: objects.refuse(4, 5),
    "no credentials for a while": lambda objects, pattern: objects.refuse(6, 5, EXPIRED),
}


@pytest.fixture
def filled(store_dir: Path) -> Path:
    with segstore.open(store_dir) as store:
        for topic in ("good", "other"):
            store.create_topic(topic, config={"segment.bytes": 2_000})
            for n in range(60):
                store.partition(topic).append(b"%d" % n * 20)
    return store_dir


def _archive(monkeypatch: pytest.MonkeyPatch, filled: Path, uri: Path, fault: Fault, pattern: str) -> None:
    """Archive a store, with a fault, and more of it in a second commit."""

    def made(*arguments: object) -> FaultyObjects:
        objects = FaultyObjects(*arguments)  # type: ignore[arg-type]
        fault(objects, pattern)
        return objects

    monkeypatch.setattr(module, "RemoteFiles", made)
    with segstore.open(filled) as store, segstore.archive(store, str(uri), interval_ms=20) as running:
        running.wait_archived(60_000)
        store.partition("good").append(b"more")
        running.wait_archived(60_000)


def _values(path: Path) -> dict[str, list[bytes | None]]:
    with segstore.open(path, "r") as store:
        return {
            name: [record.value for record in store.partition(name)]
            for name, info in store.topics().items()
            if not info.internal
        }


@pytest.mark.parametrize("what", OBJECTS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_told_by_name(
    monkeypatch: pytest.MonkeyPatch, filled: Path, tmp_path: Path, what: str, damage: str
) -> None:
    """And the other topics can be restored, unless it is the state that is damaged."""
    uri, target = tmp_path / "archive", tmp_path / "restored"
    _archive(monkeypatch, filled, uri, DAMAGES[damage], OBJECTS[what])
    if what == "commits and states" and damage == "lost":
        with pytest.raises(segstore.errors.ArchiveError, match="there is no archive"):
            segstore.restore(str(uri), target)
        return
    with pytest.raises(CorruptArchiveError) as caught:
        segstore.restore(str(uri), target)
    assert re.search(OBJECTS[what], caught.value.object)
    assert not target.exists()
    if what != "commits and states":
        found = {finding.path for finding in verify(str(uri)).findings}
        assert found
        assert all(re.search(OBJECTS[what], name) for name in found), found
        segstore.restore(str(uri), target, topics="other")
        assert _values(target) == {"other": _values(filled)["other"]}


@pytest.mark.parametrize("fault", HARMLESS)
def test_what_does_no_harm(monkeypatch: pytest.MonkeyPatch, filled: Path, tmp_path: Path, fault: str) -> None:
    uri, target = tmp_path / "archive", tmp_path / "restored"
    _archive(monkeypatch, filled, uri, HARMLESS[fault], ".")
    assert verify(str(uri)).findings == []
    segstore.restore(str(uri), target)
    assert _values(target) == _values(filled)


# --- S3 ------------------------------------------------------------------------------------------


@pytest.fixture
def faults(s3_server: S3Server) -> Iterator[S3Faults]:
    proxy = S3Faults(s3_server.port)
    yield proxy
    proxy.close()


@pytest.mark.parametrize("answer", ["ExpiredToken", "AccessDenied"])
def test_credentials_that_end_midway(
    filled: Path, tmp_path: Path, faults: S3Faults, s3_server: S3Server, s3_bucket: str, answer: str
) -> None:
    """The archiver waits, its lag grows, and it goes on once they are there again. The writer is not held
    up.
    """
    uri = s3_bucket.replace(str(s3_server.port), str(faults.port))
    with segstore.open(filled) as store, segstore.archive(store, uri, interval_ms=20) as running:
        assert running.wait_archived(60_000)
        faults.fault = lambda method, path: answer
        store.partition("good").append(b"while it is refused")
        until(lambda: running.error is not None)
        assert not running.wait_archived(100)
        assert running.total_lag().records == 1
        faults.fault = lambda method, path: None
        assert running.wait_archived(60_000)
        until(lambda: running.error is None)
    segstore.restore(s3_bucket, tmp_path / "restored")
    assert _values(tmp_path / "restored") == _values(filled)


def test_a_store_that_throttles(
    filled: Path, tmp_path: Path, faults: S3Faults, s3_server: S3Server, s3_bucket: str, rng: random.Random
) -> None:
    faults.fault = lambda method, path: "SlowDown" if rng.random() < 0.3 else None
    uri = s3_bucket.replace(str(s3_server.port), str(faults.port))
    with segstore.open(filled) as store, segstore.archive(store, uri, interval_ms=20) as running:
        assert running.wait_archived(120_000)
    segstore.restore(uri, tmp_path / "restored")
    assert _values(tmp_path / "restored") == _values(filled)
