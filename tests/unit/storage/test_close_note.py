"""A store whose files are other ones than when it was closed begins leader epochs: what is appended behind a
restore shares none with what was.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stores import as_the_same, tree

import segstore
from segstore import names
from segstore.files import Files
from segstore.storage.meta import close_note
from segstore.storage.meta.close_note import CLOSE_NOTE, STEPS
from segstore.storage.meta.framed import frame
from segstore.storage.meta.offset_checkpoints import LeaderEpochs

PARTITIONS = 3
NOTE = f"{names.OURS}/{names.CLOSED}"


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of restored stores, one after the other."""
    given = [7, 11, 500]
    numbers = iter(given)
    monkeypatch.setattr(close_note.secrets, "randbelow", lambda _: next(numbers) - 1)
    return given


@pytest.fixture
def closed(store_dir: Path) -> Path:
    """A store that was closed, with a record in each of its partitions."""
    with segstore.open(store_dir) as store:
        store.create_topic("t", PARTITIONS)
        for number in range(PARTITIONS):
            store.partition("t", number).append(b"before")
    return store_dir


def epochs(path: Path) -> list[int]:
    """The latest leader epochs in the files of the partitions."""
    files = Files()
    return [
        LeaderEpochs.load(files, path / f"t-{n}" / names.LEADER_EPOCHS).current for n in range(PARTITIONS)
    ]


def opened(path: Path, *partitions: int) -> list[str]:
    """Open a store for writing, and some of its partitions; return what was told."""
    with segstore.open(path) as store:
        told = [str(each) for each in store.mended]
        for number in partitions:
            store.partition("t", number).append(b"behind")
    assert segstore.check(path) == []
    return told


def shell(*command: str | Path) -> None:
    subprocess.run([str(each) for each in command], check=True)


def by_rsync(path: Path, work: Path) -> Path:
    """Files are replaced by others, one after the other."""
    other = work / "other"
    other.mkdir()
    for source in sorted(path.rglob("*")):
        target = other / source.relative_to(path)
        if source.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            shutil.copy2(source, target.with_name(target.name + "~"))
            os.replace(target.with_name(target.name + "~"), target)
    return other


def by_tar(path: Path, work: Path) -> Path:
    (work / "other").mkdir()
    shell("tar", "-C", path, "-cf", work / "backup.tar", ".")
    shell("tar", "-C", work / "other", "-xf", work / "backup.tar")
    return work / "other"


def over_itself(path: Path, work: Path) -> Path:
    """The copy is put over the files of the store, which keep their inodes."""
    shell("cp", "-a", path, work / "backup")
    opened(path)
    shell("cp", "-a", f"{work / 'backup'}/.", path)
    return path


def behind_a_power_cut(path: Path, _: Path) -> Path:
    (path / NOTE).write_bytes(b"")
    return path


def of_before_notes(path: Path, _: Path) -> Path:
    (path / NOTE).unlink()
    return path


def a_directory_in_its_place(path: Path, _: Path) -> Path:
    (path / NOTE).unlink()
    (path / NOTE).mkdir()
    return path


def without_ends(path: Path, work: Path) -> Path:
    copied = Path(shutil.copytree(path, work / "other"))
    (copied / names.OURS / names.ENDS).unlink()
    return copied


RESTORED: dict[str, Callable[[Path, Path], Path]] = {
    "copied": lambda path, work: Path(shutil.copytree(path, work / "other")),
    "cp -a": lambda path, work: shell("cp", "-a", path, work / "other") or work / "other",
    "rsync": by_rsync,
    "tar": by_tar,
    "over the files of the same store": over_itself,
    "the note was lost": behind_a_power_cut,
    "closed by a version without notes": of_before_notes,
    "a directory in the place of the note": a_directory_in_its_place,
    "the published ends were not copied": without_ends,
}


@pytest.mark.parametrize("how", RESTORED)
def test_a_restored_store_begins_an_epoch(closed: Path, tmp_path: Path, steps: list[int], how: str) -> None:
    path = RESTORED[how](closed, tmp_path)
    told = opened(path, *range(PARTITIONS))
    assert [each for each in told if "copied or restored" in each], told
    assert epochs(path) == [steps[0]] * PARTITIONS
    assert opened(path, 0) == []
    assert epochs(path) == [steps[0]] * PARTITIONS, "once only"
    with segstore.open(path) as store:
        batches = store.partition("t").read(0).batches
        assert batches["leader_epoch"].tolist() == [0, steps[0], steps[0]]


def renamed(path: Path, work: Path) -> Path:
    os.rename(path, work / "other")
    return work / "other"


def other_rights(path: Path, _: Path) -> Path:
    for each in path.rglob("*"):
        each.chmod(each.stat().st_mode & 0o770)
    return path


SAME: dict[str, Callable[[Path, Path], Path]] = {
    "opened again": lambda path, _: path,
    "renamed": renamed,
    "chmod": other_rights,
}


@pytest.mark.parametrize("how", SAME)
def test_the_same_store_begins_none(closed: Path, tmp_path: Path, how: str) -> None:
    path = SAME[how](closed, tmp_path)
    for _ in range(2):
        assert opened(path, *range(PARTITIONS)) == []
    assert epochs(path) == [0] * PARTITIONS
    if path != closed:
        os.rename(path, closed)


def test_a_partition_begins_it_when_it_is_opened_however_late(
    closed: Path, tmp_path: Path, steps: list[int]
) -> None:
    path = Path(shutil.copytree(closed, tmp_path / "other"))
    opened(path, 1)
    assert epochs(path) == [0, steps[0], 0]
    assert opened(path) == []
    with segstore.open(path) as store:
        told = store._side.leader_epochs("t", range(PARTITIONS))
        assert told == [steps[0]] * PARTITIONS, "the epochs of partitions that are not open are known"
        assert store.partition("t", 2).leader_epoch == steps[0]
    assert epochs(path) == [0, steps[0], steps[0]]
    again = Path(shutil.copytree(path, tmp_path / "again"))
    opened(again, *range(PARTITIONS))
    assert epochs(again) == [steps[1], steps[0] + steps[1], steps[0] + steps[1]]


def test_what_is_owed_ends_with_an_unclean_shutdown(closed: Path, tmp_path: Path, steps: list[int]) -> None:
    path = Path(shutil.copytree(closed, tmp_path / "other"))
    opened(path, 1)
    (path / names.CLEAN_SHUTDOWN).unlink()
    opened(path)
    assert epochs(path) == [1, steps[0] + 1, 1]


def test_two_restores_of_one_copy_share_no_epoch(closed: Path, tmp_path: Path) -> None:
    found = []
    for number in range(2):
        path = Path(shutil.copytree(closed, tmp_path / str(number)))
        opened(path, 0)
        found.append(epochs(path)[0])
    assert len(set(found)) == 2


def test_a_reader_changes_nothing(closed: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(closed, tmp_path / "other"))
    before = tree(path)
    with segstore.open(path, mode="r") as store:
        assert store.partition("t").read_one(0).value == b"before"
    assert tree(path) == before


def test_a_directory_that_a_broker_has_closed_keeps_its_epochs(closed: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(closed, tmp_path / "other"))
    (path / names.CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":17}')
    assert not [each for each in opened(path, *range(PARTITIONS)) if "restored" in each]
    assert epochs(path) == [0] * PARTITIONS


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    real = Files.write_atomic

    def write(self: Files, path: str, *args: object, **options: object) -> None:
        if str(path).endswith(NOTE):
            raise OSError(28, "No space left on device", path)
        real(self, path, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Files, "write_atomic", write)
    yield
    monkeypatch.undo()


def test_a_close_without_room_for_the_note_is_clean(closed: Path, full: None) -> None:
    assert opened(closed, 0) == []
    with segstore.open(closed) as store:
        assert not store.recovered


WRONG = {
    "no numbers": {"number": 1, "marker": ["a", 2, 3], "step": 1, "owing": []},
    "two numbers": {"number": 1, "marker": [1, 2], "step": 1, "owing": []},
    "a step too far": {"number": 1, "marker": [1, 2, 3], "step": STEPS + 1, "owing": []},
    "a step back": {"number": 1, "marker": [1, 2, 3], "step": -1, "owing": []},
    "a field is missing": {"number": 1, "marker": [1, 2, 3], "step": 1},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_note_that_was_never_written_is_none(closed: Path, steps: list[int], name: str) -> None:
    (closed / NOTE).write_bytes(frame({"version": 1, **WRONG[name]}))
    assert opened(closed, 0)
    assert epochs(closed)[0] == steps[0]


def test_a_copy_can_count_as_the_store(closed: Path, tmp_path: Path) -> None:
    """As the tests have it, of states that were built once."""
    path = as_the_same(Path(shutil.copytree(closed, tmp_path / "other")))
    assert CLOSE_NOTE.read(Files(), str(path)) is not None
    assert opened(path, 0) == []
    assert epochs(path) == [0] * PARTITIONS
