"""segstore.storage.shared.file_systems: where no store can be shared, by faked answers of statfs(2)."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest
from sharing import SETTINGS, made

from segstore.errors import NotShareableError
from segstore.files import Files, Handle
from segstore.storage.shared import file_systems
from segstore.storage.shared.shared_file import SharedFile

REFUSED = {
    "NFS": 0x6969,
    "SMB": 0xFE534D42,
    "CIFS": 0xFF534D42,
    "9p": 0x01021997,
    "virtiofs": 0x65735546,
    "FUSE": 0x65735546,
    "ZFS": 0x2FC12FC1,
    "Ceph": 0xC36400,
}
TAKEN = {"ext4": 0xEF53, "tmpfs": 0x01021994, "XFS": 0x58465342, "overlay": 0x794C7630}


class Faked(Files):
    """Files that seem to lie on another file system."""

    def __init__(self, kind: int, refused: int = 0) -> None:
        self.kind, self.refused = kind, refused
        self.in_place: list[int] = []

    def file_system(self, path: object) -> int:
        return self.kind

    def forbid_copy_on_write(self, handle: Handle) -> None:
        if self.refused:
            raise OSError(self.refused, os.strerror(self.refused), handle.path)
        self.in_place.append(self.size(handle))


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_system_that_is_refused_by_its_name(root: str, name: str) -> None:
    with pytest.raises(NotShareableError, match=f"{name}.*ext4.*segstore serve"):
        SharedFile.make(Faked(REFUSED[name]), root, **SETTINGS)
    assert os.listdir(f"{root}/.segstore") == []
    made(Files(), root)
    with pytest.raises(NotShareableError, match=name):
        SharedFile.join(Faked(REFUSED[name]), root)
    assert SharedFile.view(Faked(REFUSED[name]), root) is not None  # a reader believes its own mapping


@pytest.mark.parametrize("name", TAKEN)
def test_a_file_system_that_will_do(root: str, name: str) -> None:
    assert SharedFile.make(Faked(TAKEN[name]), root, **SETTINGS).made


def test_on_btrfs_the_file_is_new_and_written_in_place(root: str) -> None:
    files = Faked(file_systems.BTRFS)
    for _ in range(2):
        assert SharedFile.make(files, root, **SETTINGS).made
    assert files.in_place == [0, 0]


def test_on_btrfs_that_does_not_write_in_place(root: str) -> None:
    with pytest.raises(NotShareableError, match=r"btrfs.*in place"):
        SharedFile.make(Faked(file_systems.BTRFS, errno.EOPNOTSUPP), root, **SETTINGS)
    assert not SharedFile.is_live(Files(), root)


def test_another_system_than_linux(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(NotShareableError, match="darwin"):
        file_systems.check(Files(), root)


def test_the_kernel_tells_which_file_system_it_is(tmp_path: Path) -> None:
    assert Files().file_system("/proc") == 0x9FA0
    assert Files().file_system(tmp_path) not in (0, 0x9FA0)
    with pytest.raises(FileNotFoundError):
        Files().file_system(tmp_path / "absent")
    with Files().open("/proc/self/status") as handle, pytest.raises(OSError, match="ioctl") as caught:
        Files().forbid_copy_on_write(handle)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOTTY, "/proc/self/status")
