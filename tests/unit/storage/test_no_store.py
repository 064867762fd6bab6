"""A directory that is no store: calls that read one refuse other files, and an open for writing warns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import segstore
from segstore.storage.meta.directory_safety import NEITHER

PLACES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "nothing": ((), ""),
    "hidden files": ((".git", ".lock"), ""),
    "a new file system": (("lost+found",), ""),
    "other files": (("d", "b", "c", "a", ".x"), "a, b, c"),
    "a name like a partition's": (("polkit-1",), "polkit-1"),
    "a store beside other files": (("notes", ".segstore"), ""),
}
READS: Mapping[str, Callable[[Path], object]] = {
    "check": segstore.check,
    "copy": lambda place: segstore.copy(place, place.parent / "copy"),
}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A directory, and the names that a warning of it has."""
    held, told = PLACES[request.param]
    path = tmp_path / "place"
    path.mkdir()
    for name in held:
        (path / name).mkdir() if name != ".lock" else (path / name).touch()
    return path, told


@pytest.mark.parametrize("call", READS)
def test_other_files_are_no_store_to_read(call: str, place: tuple[Path, str]) -> None:
    path, told = place
    if told:
        with pytest.raises(segstore.StorageError, match=NEITHER):
            READS[call](path)
        assert not (path.parent / "copy").exists()
    else:
        READS[call](path)


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_an_open_beside_other_files_is_logged(
    mode: str, place: tuple[Path, str], caplog: pytest.LogCaptureFixture
) -> None:
    path, told = place
    fate = {"rw": "a store is made beside them", "r": "it is read as a store without topics"}[mode]
    with caplog.at_level(logging.WARNING, "segstore"):
        segstore.open(path, mode).close()
        segstore.open(path, mode).close()
    line = f"{path}: holds no store, but other files, as {told}: {fate}"
    once = 1 if mode == "rw" else 2  # since then it is a store
    assert [record.getMessage() for record in caplog.records] == [line] * once * bool(told)
