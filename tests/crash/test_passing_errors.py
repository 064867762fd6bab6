"""Promise: an error that may pass (few descriptors, no memory, a sector that can't be read now, no
permission) is not taken for damage. A call that meets it at a small file raises that error, and nothing is
rebuilt, moved or removed.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import HookedFiles
from small_damage import CONFIG, KINDS, ROWS, Kind, make
from stores import tree

import segstore
from segstore import names
from segstore.config import TopicConfig
from segstore.errors import StorageError
from segstore.files import Files
from segstore.storage.handle_pool import HandlePool
from segstore.storage.log.open import load_segments
from segstore.storage.log.read import Gaps
from segstore.storage.meta import framed
from segstore.storage.meta.checked_copy import read_copy
from segstore.storage.meta.clean_shutdown import read_marker
from segstore.storage.meta.client_quotas import QUOTAS
from segstore.storage.meta.framed import frame, unframe
from segstore.storage.meta.root_checkpoints import read_log_start
from segstore.storage.meta.sweep_states import read_states
from segstore.storage.repair.producer_files import ProducerFiles
from segstore.storage.segment.segment_files import list_segments

pytestmark = pytest.mark.kind("damage")

ALL = os.environ.get("SEGSTORE_FLIPS") == "all"
ERRORS = (errno.EMFILE, errno.EIO, errno.ENOMEM, errno.EACCES)
WAYS = list(itertools.product(("open", "pread"), ERRORS))
APART = ("`.segstore/ends`", "`.lock`")  # one is tried below, the other's content is not read
OF_THE_STORE = [kind.name for kind in KINDS if "*" not in kind.pattern and kind.name not in APART]
HINTS = (APART[1], "`.index`, `.timeindex`", "`.snapshot`", "`.txnindex`")


class Refusing(HookedFiles):
    """`number` is what opening, or reading, this file says; `met` counts how often."""

    def __init__(self, path: Path, call: str, number: int) -> None:
        self._path, self._call, self._number, self.met = str(path), call, number, 0

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name != self._call:
            return
        path = args[0] if isinstance(args[0], str | os.PathLike) else args[0].path
        if os.fspath(path) == self._path and not kwargs.get("write"):
            self.met += 1
            raise OSError(self._number, os.strerror(self._number), self._path)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("passing"))[0]


@pytest.fixture
def store(source: Path, store_dir: Path) -> Path:
    shutil.copytree(source, store_dir)
    return store_dir


def first_of(store: Path, kind: Kind) -> Path:
    return sorted(store.glob(kind.pattern))[0]


def outcome(do: Callable[[], object]) -> int:
    """The errno of what it fails with, 0 where it does not."""
    try:
        do()
    except StorageError as error:
        return error.errno or -1
    return 0


def load_all(store: Path, files: Files) -> None:
    with segstore.open(store, config=CONFIG, files=files) as opened:
        for name, info in opened.topics().items():
            for number in info.partition_ids:
                opened.partition(name, number)


@pytest.mark.parametrize("name", OF_THE_STORE)
def test_a_small_file_that_can_t_be_read_now_fails_the_open_and_nothing_changes(
    store: Path, name: str, rng: random.Random
) -> None:
    path, before = first_of(store, ROWS[name]), tree(store)
    for call, number in WAYS if ALL else rng.sample(WAYS, 3):
        files = Refusing(path, call, number)
        assert outcome(lambda: load_all(store, files)) == number, call  # noqa: B023
        assert tree(store) == before, (call, number)
    load_all(store, Files())


@pytest.mark.parametrize("name", [kind.name for kind in KINDS if kind.name not in (*OF_THE_STORE, *HINTS)])
def test_a_file_of_a_topic_that_can_t_be_read_now_is_not_made_anew(
    store: Path, name: str, rng: random.Random
) -> None:
    path = first_of(store, ROWS[name])
    content, logs = path.read_bytes(), {p: p.read_bytes() for p in store.glob("*-*/*.log")}
    for call, number in WAYS if ALL else rng.sample(WAYS, 3):
        files = Refusing(path, call, number)
        assert outcome(lambda: load_all(store, files)) == number, call  # noqa: B023
        if path.name != names.ENDS:
            assert path.read_bytes() == content, (call, number)
        assert not (store / names.OURS / names.QUARANTINE).exists()
        assert {p: p.read_bytes() for p in logs} == logs
    load_all(store, Files())


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_a_reader_is_told_of_what_it_can_t_read_now(store: Path, number: int) -> None:
    for place in (names.CLEAN_SHUTDOWN, f"{names.OURS}/{names.ENDS}"):
        files = Refusing(store / place, "open", number)

        def read(files: Files = files) -> None:
            with segstore.open(store, mode="r", files=files) as opened:
                opened.partition("plain").read(0)

        assert outcome(read) == number


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EACCES], ids=errno.errorcode.get)
def test_an_index_is_not_made_anew_for_want_of_descriptors(store: Path, number: int) -> None:
    path = sorted(store.glob("plain-0/*.index"))[0]
    before = path.stat().st_ino
    files = Refusing(path, "open", number)
    with segstore.open(store, config=CONFIG, files=files) as opened:
        with pytest.raises(StorageError) as told:
            opened.partition("plain").read(2)
        assert told.value.errno == number
    assert path.stat().st_ino == before
    with segstore.open(store, config=CONFIG) as opened:
        assert opened.partition("plain").read(2)


def test_no_snapshot_is_removed_that_can_t_be_read_now(store: Path) -> None:
    """One of which the log can't tell what it said: `repair` removes it where it is damaged."""
    directory = str(store / "txn-0")
    path = store / "txn-0" / names.segment_file(1, names.SNAPSHOT)
    path.write_bytes(b"?")

    def make_anew(files: Files) -> None:
        pool = HandlePool(files, 8)
        segments = load_segments(
            pool, directory, list_segments(files, directory), TopicConfig(), writable=False
        )
        ProducerFiles(files, directory, segments).make_anew({(1, names.SNAPSHOT)})
        pool.close()

    for number in ERRORS:
        with pytest.raises(OSError, match=os.strerror(number)):
            make_anew(Refusing(path, "open", number))
        assert path.exists()
    make_anew(Files())
    assert not path.exists()


def test_a_gap_is_asked_for_again_when_settings_could_not_be_read(store: Path) -> None:
    for number in ERRORS:
        files = Refusing(store / ".segstore/topics/plain.json", "open", number)
        gaps = Gaps(files, str(store), "plain", 0)
        with pytest.raises(OSError, match=os.strerror(number)):
            gaps(3)
        assert Gaps(Files(), str(store), "plain", 0)(3) is False


# --- calls that are nested too deeply ---------------------------------------------------------


def deeper(depth: int, do: Callable[[], object]) -> object:
    return do() if depth == 0 else deeper(depth - 1, do)


READS: dict[str, Callable[[Path], object]] = {
    "marker": lambda store: read_marker(Files(), str(store)),
    "quotas": lambda store: QUOTAS.read(Files(), str(store)),
    "sweeps": lambda store: read_states(Files(), str(store)),
    "copy": lambda store: read_copy(Files(), str(store)),
    "log start": lambda store: read_log_start(Files(), str(store), ("plain", 0), None, None),
    "framed": lambda store: unframe(frame({"a": [[[[1]]]]})),
}


@pytest.mark.parametrize("name", READS)
def test_a_deep_stack_is_no_damage(store: Path, name: str) -> None:
    """The file says what it says, or the caller is told that its calls are nested too deeply."""
    right = READS[name](store)
    told = 0
    for depth in range(sys.getrecursionlimit() + 10):
        try:
            found = deeper(depth, lambda: READS[name](store))
        except RecursionError:
            told += 1
        else:
            assert found == right, depth
    assert told


def test_json_that_is_nested_too_deeply_is_damage() -> None:
    for deep in (b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            framed.parse_json(deep)
    assert framed.parse_json(b'{"a": "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["}') == {"a": "[" * 30}


# --- a directory where a file is written first --------------------------------------------------

WRITTEN = [kind.pattern for kind in KINDS if "*-[0-9]/*" not in kind.pattern and kind.name not in APART]


@pytest.mark.parametrize("pattern", WRITTEN)
def test_a_directory_in_the_place_of_a_temporary_file_blocks_nothing(store: Path, pattern: str) -> None:
    path = sorted(store.glob(pattern))[0]
    temporary = path.with_name(path.name + names.TEMPORARY)
    temporary.mkdir()
    (temporary / "mine").write_text("kept")
    with segstore.open(store, config=CONFIG) as opened:
        assert opened.partition("plain").append(b"more", key=b"k")
        opened.alter_topic("plain", {"retention.ms": 10**12})
        opened.sweep()
        assert any(str(temporary) in str(done) for done in opened.mended) or not temporary.exists()
    assert not temporary.exists()
    assert len(list((store / names.OURS / names.QUARANTINE).glob("*/mine"))) == 1


def test_a_directory_that_comes_meanwhile_is_refused_by_name(store: Path) -> None:
    temporary = store / names.OURS / names.TOPICS / f"plain.json{names.TEMPORARY}"
    with segstore.open(store, config=CONFIG) as opened:
        temporary.mkdir()
        with pytest.raises(StorageError, match=r"A directory lies where .*: move it away"):
            opened.alter_topic("plain", {"retention.ms": 10**12})
        temporary.rmdir()
        opened.alter_topic("plain", {"retention.ms": 10**12})
