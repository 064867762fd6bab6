"""The format of a store's own files, by which a segstore that does not know them refuses the store.

On disk: `.segstore/format`, a line with a checksum (see `framed`) that has the number of the format and the
oldest version of segstore that reads it. The form of this file stays as it is in all versions. A store
without it has format 1: segstore 0.1 wrote none. Threads: any; functions without state.
"""

from __future__ import annotations

from segstore import names
from segstore.errors import UnsupportedFormatError
from segstore.files import Files
from segstore.storage.meta.framed import frame, unframe
from segstore.storage.meta.small_files import NOT_A_FILE

FORMAT, SINCE = 1, "0.1.0"
"""The newest format, which is written, and the first version that reads it. A format gets a new number where
an older segstore would take what it says for something else, or would write what a newer one refuses.
"""
_MOST_BYTES = 4096
_WRITTEN = frame({"format": FORMAT, "needs": SINCE})


def path_of(root: str) -> str:
    """Return the path of a store's file."""
    return names.below(root, f"{names.OURS}/{names.FORMAT}")


def check_format(files: Files, root: str) -> str:
    """Return what is wrong with the file, "" for nothing, also where there is no file: damage hides no store.
    Raises UnsupportedFormatError where the store's format is newer than FORMAT, OSError.
    """
    try:
        line = files.read_file(path_of(root), _MOST_BYTES)
        if line == _WRITTEN:
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
    if number > FORMAT:
        raise UnsupportedFormatError(root, number, needs, FORMAT)
    return ""


def write_format(files: Files, root: str) -> None:
    """Note that the store has FORMAT, durably; `.segstore` is there. Raises OSError."""
    files.write_atomic(path_of(root), _WRITTEN)
