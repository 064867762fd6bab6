"""`settled`: makes relative paths absolute. Every path that an object stores comes from `settled`, mostly by
way of `arguments.path` or `options.location`. This module touches no files.

Threads: any; the function has no state.
"""

from __future__ import annotations

import os

from segstore.errors import StorageError


def settled(path: str) -> str:
    """Return `path` as an absolute path, without slashes at the end. A later change of the current
    directory does not change what this path means. Symbolic links are not resolved. "~" is an ordinary name,
    as it is for Python's `open`.

    Raises StorageError if the path is relative and the current directory was deleted.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    whole = path if path.startswith("/") else os.path.join(_current(path), path)
    # A ".." after a name stays in the path: the name may be a symbolic link, and the ".." then means the
    # parent of the link's target. A ".." at the beginning is resolved: the current directory's path has no
    # links.
    return whole if ".." in parts[parts.count("..") :] else os.path.normpath(whole)


def _current(path: str) -> str:
    try:
        return os.getcwd()
    except OSError as error:
        reason = "The current directory can't be told, and this path is relative to it"
        raise StorageError(error.errno, f"{reason} ({error.strerror})", path) from None
