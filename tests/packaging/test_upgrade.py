"""An upgrade and the way back: the last version, built from this clone's history, and this one take turns at
one store with transactions, a group and a compacted topic. Each finds what the other one has left, and both
find the store sound.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import REPOSITORY

pytestmark = pytest.mark.kind("the last version")

PATIENCE = 300  # seconds, for a build
OF_VERSION = ("log", "-1", "--format=%H", "-G^VERSION", "--", "segstore/version.py")
"""The commit that gave the version its number; the one before it is the last of the version before."""

TURN = """
import sys

import segstore

path, turn = sys.argv[1:]
with segstore.open(path) as store:
    for topic, config in (("plain", {}), ("state", {"cleanup.policy": "compact"})):
        if topic not in store.topics():
            store.create_topic(topic, config=config)
    store.partition("plain").append_batch([f"{turn} {n}".encode() for n in range(100)])
    store.partition("state").append(turn.encode(), key=b"last")
    with segstore.Producer(store, transactional_id="payments") as producer:
        producer.init_transactions()
        for end in ("commit", "abort"):
            producer.begin_transaction()
            producer.send("plain", f"{turn} {end}".encode())
            producer.commit_transaction() if end == "commit" else producer.abort_transaction()
    settings = {"isolation_level": "read_committed", "enable_auto_commit": False}
    with segstore.Consumer(
        store, "plain", group_id="app", auto_offset_reset="earliest", **settings
    ) as consumer:
        seen = []
        while len(seen) < 101:
            for records in consumer.poll(timeout_ms=1000).values():
                seen += [record.value.decode() for record in records]
        consumer.commit()
print(*seen, sep="\\n")
"""
CHECK = "import sys, segstore; print(*segstore.check(sys.argv[1]), sep='\\n', end='')"


def git(*arguments: str) -> str:
    """Return what git prints; skips the test without git, or without the history of a clone."""
    try:
        done = subprocess.run(["git", "-C", REPOSITORY, *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no git")
    if done.returncode or not done.stdout:
        pytest.skip(f"no history: git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


@pytest.fixture(scope="module")
def last_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the last version, with its parts in C."""
    commit = git("rev-parse", "--verify", f"{git(*OF_VERSION)}^")
    directory = tmp_path_factory.mktemp("last")
    archive = directory / "source.tar"
    subprocess.run(["git", "-C", REPOSITORY, "archive", f"--output={archive}", commit], check=True)
    shutil.unpack_archive(archive, directory)
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(build, cwd=directory, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return directory


def run(source: Path, program: str, *arguments: object) -> list[str]:
    """Run a program with the segstore of a source tree; returns the lines that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(source)},
        cwd=source,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_last_version_and_this_one_take_turns(last_version: Path, store_dir: Path) -> None:
    versions = {"the last": last_version, "this": REPOSITORY}
    for name in versions:
        code = "import segstore; print(segstore.__file__)"
        assert run(versions[name], code) == [str(versions[name] / "segstore" / "__init__.py")]
    for turn, name in enumerate(("the last", "this", "the last", "this")):
        seen = run(versions[name], TURN, store_dir, turn)
        assert seen == [*(f"{turn} {n}" for n in range(100)), f"{turn} commit"], name
        for judge, source in versions.items():
            assert run(source, CHECK, store_dir) == [], f"{judge} after {name}"
