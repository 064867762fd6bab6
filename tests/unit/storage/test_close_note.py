"""A store whose files are other ones than when it was closed begins leader epochs: what is appended behind a
restore shares none with what was.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stores import as_the_same, in_child, killed, tree

import segstore
from segstore import names
from segstore.files import Files
from segstore.storage.meta import close_note
from segstore.storage.meta.close_note import CLOSE_NOTE, STEPS
from segstore.storage.meta.framed import frame
from segstore.storage.meta.offset_checkpoints import LeaderEpochs
from segstore.storage.meta.sealed_file import PRODUCER_ID

PARTITIONS = 3
NOTE = f"{names.OURS}/{names.CLOSED}"


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of restored stores, one after the other."""
    given = [7, 11, 500]
    numbers = iter(given)
    monkeypatch.setattr(close_note.secrets, "randbelow", lambda _: next(numbers) - 2)
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


@pytest.mark.kind("programs")
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
        told = store.engine.leader_epochs("t", range(PARTITIONS))
        assert told == [steps[0]] * PARTITIONS, "the epochs of partitions that are not open are known"
        assert store.partition("t", 2).leader_epoch == steps[0]
    assert epochs(path) == [0, steps[0], steps[0]]
    again = Path(shutil.copytree(path, tmp_path / "again"))
    opened(again, *range(PARTITIONS))
    assert epochs(again) == [steps[1], steps[0] + steps[1], steps[0] + steps[1]]


def test_what_is_owed_is_kept_through_a_crash(closed: Path, tmp_path: Path, steps: list[int]) -> None:
    path = Path(shutil.copytree(closed, tmp_path / "other"))
    with segstore.open(path) as store:
        store.partition("t", 1).append(b"behind")
        copied = killed(path, tmp_path / "killed")
    opened(copied)
    assert epochs(copied) == [steps[0], 2 * steps[0], steps[0]]
    opened(path)
    (path / names.CLEAN_SHUTDOWN).unlink()
    opened(path)
    assert epochs(path) == [steps[0], steps[0] + 1, steps[0]]


def killed_copy(path: Path, work: Path) -> Path:
    """The copy of a store that was open, as a crash leaves it."""
    with segstore.open(path) as store:
        store.partition("t").append(b"open")
        return Path(shutil.copytree(path, work / "other"))


def in_its_first_session(path: Path, work: Path) -> Path:
    shutil.rmtree(path)
    with segstore.open(path) as store:
        store.create_topic("t", PARTITIONS)
        store.partition("t").append(b"open")
        return Path(shutil.copytree(path, work / "other"))


def over_the_store(path: Path, work: Path) -> Path:
    """A copy that was made while the store was open is put over its files, which a crash and a recovery lie
    behind.
    """

    def append(_: object) -> None:
        store = segstore.open(path)
        store.partition("t").append(b"open")
        if not (work / "backup").exists():
            shutil.copytree(path, work / "backup")
        os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(2):  # the second one appends in the next epoch
        assert in_child(append)[0] == signal.SIGKILL
    shell("cp", "-a", f"{work / 'backup'}/.", path)
    return path


def moved_to_another_file_system(path: Path, work: Path) -> Path:
    copied = killed_copy(path, work)
    shutil.rmtree(path)
    return copied


def by_links(path: Path, work: Path) -> Path:
    """Each file has two names, but for the lock, with which the copy would not be opened."""
    (path / names.CLEAN_SHUTDOWN).unlink()
    shell("cp", "-al", path, work / "other")
    (work / "other" / names.LOCK).unlink()
    return work / "other"


def ours_alone(path: Path, work: Path) -> Path:
    """`.segstore/` is an older one."""
    backup = killed_copy(path, work)
    (path / names.CLEAN_SHUTDOWN).unlink()
    shutil.rmtree(path / names.OURS)
    shutil.copytree(backup / names.OURS, path / names.OURS)
    return path


def killed_without_a_note(path: Path, work: Path) -> Path:
    copied = killed_copy(path, work)
    (copied / NOTE).unlink()
    return copied


KILLED: dict[str, tuple[Callable[[Path, Path], Path], bool]] = {
    "copied while it was open": (killed_copy, True),
    "copied in its first session": (in_its_first_session, True),
    "put over the files of the same store": (over_the_store, True),
    "moved to another file system": (moved_to_another_file_system, True),
    "hard links": (by_links, True),
    "its small files alone": (ours_alone, True),
    "no note: of a segstore of before": (killed_without_a_note, False),
}
"""What is opened, and whether it is told."""


@pytest.mark.kind("kills")
@pytest.mark.parametrize("how", KILLED)
def test_a_copy_of_a_store_that_was_killed_begins_an_epoch_of_its_own(
    closed: Path, tmp_path: Path, steps: list[int], how: str
) -> None:
    make, is_told = KILLED[how]
    path = make(closed, tmp_path)
    before = epochs(path)
    told = opened(path, *range(PARTITIONS))
    assert bool([each for each in told if "copied or restored" in each]) == is_told, told
    assert epochs(path) == [max(each, 0) + steps[0] for each in before]
    (path / names.CLEAN_SHUTDOWN).unlink()
    assert not [each for each in opened(path) if "copied or restored" in each], "once only"
    assert epochs(path) == [max(each, 0) + steps[0] + 1 for each in before]


def test_segstore_copy_of_an_open_store_begins_an_epoch(
    closed: Path, tmp_path: Path, steps: list[int]
) -> None:
    with segstore.open(closed) as store:
        store.partition("t").append(b"open")
        segstore.copy(closed, tmp_path / "other")
    assert epochs(tmp_path / "other") == [steps[0]] * PARTITIONS
    assert opened(tmp_path / "other", 0) == []


def producer_id(path: Path) -> int:
    """That of a new producer."""
    with segstore.open(path) as store:
        with segstore.Producer(store) as producer:
            producer.send("t", b"x", partition=0)
        return int(store.partition("t").read(0).batches["producer_id"][-1])


@pytest.mark.parametrize("how", ["never", "before", "killed"])
def test_copies_give_out_producer_ids_of_their_own(
    closed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A producer of what was lost, and a new one, would take each other's batches for duplicates."""
    bits, given = close_note.secrets.randbits, iter((3, 4))
    monkeypatch.setattr(close_note.secrets, "randbits", lambda n: next(given) if n == 16 else bits(n))
    if how != "never":
        assert producer_id(closed) == 0
    if how == "killed":
        (closed / names.CLEAN_SHUTDOWN).unlink()
    copies = [Path(shutil.copytree(closed, tmp_path / str(n))) for n in range(2)]
    found = [producer_id(path) for path in (closed, *copies)]
    assert [each - found[1] for each in found[2:]] == [1000 << 22]
    assert found[0] < 2000
    assert found[1] >= 4 * (1000 << 22)
    assert [producer_id(path) - before for path, before in zip(copies, found[1:], strict=True)] == [1000] * 2


LATE = {"of a late generation": 1 << 62, "the last": (1 << 63) - 1}


@pytest.mark.parametrize("name", LATE)
def test_producer_ids_near_their_end_stay(closed: Path, tmp_path: Path, name: str) -> None:
    PRODUCER_ID.write(Files(), str(closed), LATE[name])
    copied = Path(shutil.copytree(closed, tmp_path / "other"))
    opened(copied)
    assert PRODUCER_ID.hint(Files(), str(copied)) == LATE[name]


def test_a_store_that_was_killed_begins_the_next_epoch(closed: Path) -> None:
    for n in range(1, 4):
        (closed / names.CLEAN_SHUTDOWN).unlink()
        assert not [each for each in opened(closed) if "restored" in each]
        assert epochs(closed) == [n] * PARTITIONS


@pytest.mark.parametrize("given", range(2, STEPS + 1, 102))
def test_the_step_of_a_copy_is_not_that_of_a_crash(monkeypatch: pytest.MonkeyPatch, given: int) -> None:
    monkeypatch.setattr(close_note.secrets, "randbelow", lambda most: min(given - 2, most - 1))
    assert 2 <= close_note.owed_by([1]).step <= STEPS


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
    "no numbers": {"number": 1, "marker": ["a", 2, 3], "own": [1, 2, 3], "step": 1, "owing": []},
    "two numbers": {"number": 1, "marker": [1, 2], "own": [1, 2, 3], "step": 1, "owing": []},
    "which file is missing": {"number": 1, "marker": [1, 2, 3], "step": 1, "owing": []},
    "no marker for its number": {"number": 1, "marker": [], "own": [1, 2, 3], "step": 1, "owing": []},
    "a step too far": {"number": 1, "marker": [1, 2, 3], "own": [1, 2, 3], "step": STEPS + 1, "owing": []},
    "a step back": {"number": 1, "marker": [1, 2, 3], "own": [1, 2, 3], "step": -1, "owing": []},
    "a field is missing": {"number": 1, "marker": [1, 2, 3], "own": [1, 2, 3], "step": 1},
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
