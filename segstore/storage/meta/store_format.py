"""The format number of a store's own files; a segstore that does not know the number refuses the store.

On disk: `.segstore/format`, a line with a checksum (see `framed`) that has the number of the format and the
oldest version of segstore that reads it. The form of this file is the same in all versions. A store without
the file has format 1, because segstore 0.1 wrote none. The number changes when sharing begins and when it
stops, by the rules in docs/shared.md. Threads: any; functions without state.
"""

from __future__ import annotations

import errno

from segstore import names
from segstore._native import lib
from segstore.errors import UnsupportedFormatError
from segstore.files import Files
from segstore.storage.meta.framed import frame, unframe
from segstore.storage.meta.small_files import NOT_A_FILE

FORMAT, SHARED_FORMAT = 1, 2
"""FORMAT is the newest format, which is written. SHARED_FORMAT is the format of a store while it is shared,
because an older segstore would take the lock between two hosts, and recover logs that guests write. A format
gets a new number if an older segstore would misread its content, or would write content that a newer segstore
refuses.
"""
_NEEDS = {FORMAT: "0.1.0", SHARED_FORMAT: "0.3.0"}
"""The first version of segstore that reads each format."""
_MOST_BYTES = 4096
_LINES = {number: frame({"format": number, "needs": needs}) for number, needs in _NEEDS.items()}


def path_of(root: str) -> str:
    """Return the path of the format file."""
    return names.below(root, f"{names.OURS}/{names.FORMAT}")


def check_format(files: Files, root: str) -> str:
    """Return the damage of the format file, "" if it is sound or missing. A damaged file does not prevent an
    open. Raises UnsupportedFormatError for an unknown format, OSError.
    """
    try:
        line = files.read_file(path_of(root), _MOST_BYTES)
        if line in _LINES.values():
            return ""
        held = unframe(line)
    except FileNotFoundError:
        return ""
    except OSError as error:
        if error.errno not in NOT_A_FILE:
            raise
        return "not a regular file"
    except ValueError as error:
        return str(error)
    number, needs = held.get("format"), held.get("needs")
    if type(number) is not int or number < 1 or not isinstance(needs, str):
        return f"format {number!r}, needs {needs!r}"
    if number > SHARED_FORMAT:
        raise UnsupportedFormatError(root, number, needs, SHARED_FORMAT)
    return ""


def write_format(files: Files, root: str) -> None:
    """Write the format file with FORMAT, durably; `.segstore` exists. Raises OSError."""
    files.write_atomic(path_of(root), _LINES[FORMAT])


def is_marked_shared(files: Files, root: str) -> bool:
    """Return whether the store has SHARED_FORMAT: it is shared, or its last host was killed.
    Raises OSError.
    """
    try:
        return files.read_file(path_of(root), _MOST_BYTES) == _LINES[SHARED_FORMAT]
    except OSError as error:
        if error.errno not in NOT_A_FILE | {errno.ENOENT}:
            raise
        return False


def mark_shared(files: Files, root: str) -> None:
    """Write the format file with SHARED_FORMAT, durably, before a second process joins (rule H4). Raises
    OSError.
    """
    if not is_marked_shared(files, root):
        files.write_atomic(path_of(root), _LINES[SHARED_FORMAT])


def mark_unshared(files: Files, root: str) -> None:
    """Write the format file with FORMAT again, durably, if the store was shared. The caller holds the store's
    lock, and no member lives (rules H3 and H4). Raises OSError.
    """
    if is_marked_shared(files, root):
        write_format(files, root)


def has_living_members(files: Files, root: str) -> bool:
    """Return whether a process, also this one, shares the store or is about to. Each member holds a lock on a
    byte of `.segstore/members` (rule L2). A process that takes the store's lock without sharing checks this,
    and releases the lock if it is true, because guests of a killed host may be alive (rule H3). Raises
    OSError.
    """
    try:
        handle = files.open(names.below(root, f"{names.OURS}/{names.MEMBERS}"))
    except FileNotFoundError:
        return False
    with handle:
        return files.has_locked_byte(handle, 0, lib.SEG_MEMBERS)
