"""Finds out whether a store can be shared on a file system.

All members map the shared file, and must see the same pages. In a network file system, or in a file system
that a program serves (FUSE), two processes may see different pages. A file system that copies on write may
need a new block when a process writes through the mapping, and a full disk has no new block.

The lists of file systems here are never complete, so a guest also compares a number with the host
(`coherence`). On disk only an attribute of a file is changed. Threads: any, because the functions have no
state.
"""

from __future__ import annotations

import sys

from segstore.errors import NotShareableError
from segstore.files import Files, Handle

APART = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFE534D42: "SMB",
    0xFF534D42: "CIFS",
    0x01021997: "9p",
    0x65735546: "FUSE or virtiofs",
    0x00C36400: "Ceph",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x73757245: "Coda",
    0x0BD00BD0: "Lustre",
    0x19830326: "BeeGFS",
    0x01161970: "GFS2",
    0x7461636F: "OCFS2",
    0x47504653: "GPFS",
    0x786F4256: "a shared folder of VirtualBox",
    0xBACBACBC: "a shared folder of VMware",
}
"""Names of network file systems, and of file systems that a program serves, by the magic number of
statfs(2).
"""
COPYING = {0x2FC12FC1: "ZFS", 0xCA451A4E: "bcachefs", 0x3434: "NILFS"}
"""Names of file systems that copy on write for all files, by the magic number of statfs(2)."""
BTRFS = 0x9123683E


def check(files: Files, directory: str) -> bool:
    """Return whether `write_in_place` must be called for a new file in the directory. Raises OSError, and
    NotShareableError if a store in this directory can't be shared.
    """
    if sys.platform != "linux":
        raise NotShareableError(
            f"{directory} can't be shared on {sys.platform}: stores are shared on Linux only"
        )
    kind = files.file_system(directory)
    if kind in APART:
        raise _refused(directory, APART[kind], "does not show all processes the same pages of a mapped file")
    if kind in COPYING:
        raise _refused(
            directory, COPYING[kind], "writes a page to another block each time, which may not be there"
        )
    return kind == BTRFS


def write_in_place(files: Files, handle: Handle) -> None:
    """Forbid btrfs to copy on write for this empty file. Raises NotShareableError."""
    try:
        files.forbid_copy_on_write(handle)
    except OSError as error:
        reason = f"can't be made to write a file in place ({error.strerror})"
        raise _refused(handle.path, "btrfs", reason) from error


def _refused(path: str, kind: str, reason: str) -> NotShareableError:
    return NotShareableError(
        f"{path} lies on {kind}, which {reason}: share a store on a local file system such as ext4, XFS or "
        "tmpfs, or serve it (segstore serve)"
    )
