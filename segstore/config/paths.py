"""`settled`: makes relative paths absolute. A path that outlives the call which was given it passes through
here first, mostly by `arguments.path` or `options.location`. It touches no files.

Threads: any; a function without state.
"""

from __future__ import annotations

import os

from segstore.errors import StorageError


def settled(path: str) -> str:
    """Return an absolute path of the same file, which later changes of the current directory do not move,
    without slashes at its end. Symbolic links stay in it, and "~" is a name, as for `open`.

    Raises StorageError if the current directory can't be told, since it was deleted.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    whole = path if path.startswith("/") else os.path.join(_current(path), path)
    # After a name ".." stays: the name may be a link, of whose target the parent is meant. The current
    # directory has no links in its path.
    return whole if ".." in parts[parts.count("..") :] else os.path.normpath(whole)


def _current(path: str) -> str:
    try:
        return os.getcwd()
    except OSError as error:
        reason = "The current directory can't be told, and this path is relative to it"
        raise StorageError(error.errno, f"{reason} ({error.strerror})", path) from None
