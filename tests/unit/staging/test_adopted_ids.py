"""Which adopted ids are kept: all that may be sealed again."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from segstore.files import Files
from segstore.storage.inbox.adopted_ids import AdoptedIds, read_adoption
from segstore.storage.inbox.known_ids import Adoption

LONG_MS = 1 << 40


def ids(path: Path, count: int, retention_ms: int = LONG_MS) -> AdoptedIds:
    return AdoptedIds(Files(), str(path / "adopted"), retention_ms, count)


def adopt(held: AdoptedIds, *names: str, ms: int = 0) -> None:
    for name in names:
        held.record(Adoption(name, ms, {("t", 0): (0, 1)}))


def kept(held: AdoptedIds) -> list[str]:
    return [each.id for each in held.all()]


def test_a_quiet_query_s_last_id_outlives_the_many_of_busy_ones(tmp_path: Path) -> None:
    """It may have been killed before Spark noted its last micro-batch: it comes again with that id."""
    held = ids(tmp_path, 10)
    adopt(held, "stream/quiet/6", "stream/quiet/7")
    adopt(held, *(f"stream/busy-{i % 2}/{i}" for i in range(200)))
    assert len(kept(held)) == 10
    assert held.find("stream/quiet/7")
    assert not held.find("stream/quiet/6")
    for again in (held, ids(tmp_path, 10)):
        assert again.find("stream/quiet/7")
        adopt(again, "stream/busy-0/200")
        assert len(kept(again)) == 10
        assert again.find("stream/quiet/7")


def test_there_are_never_more_than_the_count(tmp_path: Path) -> None:
    held = ids(tmp_path, 3)
    adopt(held, *(f"stream/{i}/0" for i in range(9)))
    assert kept(held) == ["stream/6/0", "stream/7/0", "stream/8/0"]


def test_age_takes_all_but_the_newest(tmp_path: Path) -> None:
    held = ids(tmp_path, 100, 50)
    adopt(held, "a/1", "b/1", ms=1000)
    adopt(held, "a/2", ms=2000)
    assert kept(held) == ["a/2"]


def test_a_forgotten_id_leaves_its_place_to_the_one_before(tmp_path: Path) -> None:
    held = ids(tmp_path, 2)
    adopt(held, "a/1", "a/2")
    held.forget("a/2")
    adopt(held, "b/1", "b/2")
    assert kept(held) == ["a/1", "b/2"]


class Refusing(Files):
    """While armed, calls of one name on a path with this ending fail."""

    def __init__(self, ending: str) -> None:
        self.ending, self.armed = ending, False

    def _refuse(self, path: object) -> None:
        if self.armed and str(path).endswith(self.ending):
            raise OSError(errno.EIO, "refused", str(path))

    def read_file(self, path: Path | str, limit: int = 1 << 26) -> bytes:
        self._refuse(path)
        return super().read_file(path, limit)

    def inode(self, file: object) -> int:
        self._refuse(file)
        return super().inode(file)  # type: ignore[arg-type]


@pytest.mark.parametrize("before", [0, 1, 200])
def test_a_second_copy_that_can_t_be_made_fails_no_adoption(tmp_path: Path, before: int) -> None:
    """The id is durable by then, and what is undone after that would be acknowledged all the same."""
    files = Refusing("/adopted")
    held = AdoptedIds(files, str(tmp_path / "adopted"), LONG_MS, 1000)
    adopt(held, *(f"a/{i}" for i in range(before)))
    held._copied, files.armed = False, True
    if before:
        adopt(held, "b")
        files.armed = False
        assert read_adoption(Files(), held.path, "b") is not None
        assert kept(ids(tmp_path, 1000))[-1] == "b"
    else:
        with pytest.raises(OSError, match="refused"):  # by `inode`
            adopt(held, "b")
        files.armed = False
        held.forget("b")
        assert read_adoption(Files(), held.path, "b") is None
        assert kept(ids(tmp_path, 1000)) == []


@pytest.mark.parametrize("before", [0, 1, 127, 200])
def test_what_fails_as_the_second_copy_is_made_can_be_forgotten(
    tmp_path: Path, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = ids(tmp_path, 1000)
    adopt(held, *(f"a/{i}" for i in range(before)))

    def fails(*_: object) -> None:
        raise MemoryError

    held._copied = False
    with monkeypatch.context() as patched:
        patched.setattr(held, "_rewrite_copy", fails)
        with pytest.raises(MemoryError):
            adopt(held, "b")
    held.forget("b")
    assert read_adoption(Files(), held.path, "b") is None
    assert kept(ids(tmp_path, 1000)) == [f"a/{i}" for i in range(before)]
    adopt(held, "c")
    assert kept(ids(tmp_path, 1000)) == [*(f"a/{i}" for i in range(before)), "c"]
