"""The format number of the files in `.segstore`: a version of segstore that does not know the number refuses
to open the store.

The file is `.segstore/format`, a line with a checksum (`framed`). The line has the format number and the
oldest version of segstore that reads this format. All versions of segstore can read the line. A store without
the file has format 1, because segstore 0.1 wrote no such file. The number changes when sharing begins and
when sharing stops, by the rules in docs/shared.md. Threads: any, because the functions have no state.
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
"""The format number of a store that is not shared, and of a store that is shared. The two numbers differ,
because an older segstore might take the store's lock after one host has died and before the next host has
taken it, and recover logs to which guests append. A further number is needed if an older segstore would
misread the files, or would write files that a newer segstore refuses.
"""
_NEEDS = {FORMAT: "0.1.0", SHARED_FORMAT: "0.3.0"}
"""The first version of segstore that reads each format."""
_MOST_BYTES = 4096
_LINES = {number: frame({"format": number, "needs": needs}) for number, needs in _NEEDS.items()}


def path_of(root: str) -> str:
    """Return the path of the format file."""
    return names.below(root, f"{names.OURS}/{names.FORMAT}")


def check_format(files: Files, root: str) -> str:
    """Return a text about the damage of the format file; "" if the file is not damaged, or is missing. Raises
    OSError, and UnsupportedFormatError if the format is unknown.
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
    """Write the format file with FORMAT, durably. The directory `.segstore` must exist. Raises OSError."""
    files.write_atomic(path_of(root), _LINES[FORMAT])


def is_marked_shared(files: Files, root: str) -> bool:
    """Return whether the store has SHARED_FORMAT, because it is shared, or because its last host was killed.
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
    """Write the format file with FORMAT, durably, if it has SHARED_FORMAT. The caller holds the store's lock,
    and no member lives (rules H3 and H4). Raises OSError.
    """
    if is_marked_shared(files, root):
        write_format(files, root)


def has_living_members(files: Files, root: str) -> bool:
    """Return whether any process, this process included, is a member of the shared store. A member holds a
    lock on a byte of `.segstore/members` (rule L2). A writer that does not share the store calls this after
    it has taken the store's lock, because guests of a killed host may be alive (rule H3). Raises OSError.
    """
    try:
        handle = files.open(names.below(root, f"{names.OURS}/{names.MEMBERS}"))
    except FileNotFoundError:
        return False
    with handle:
        return files.has_locked_byte(handle, 0, lib.SEG_MEMBERS)
