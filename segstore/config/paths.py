"""`settled`: makes relative paths absolute. If a path is kept longer than the call that received it,
`settled` is applied first, mostly by `arguments.path` or `options.location`. It touches no files.

Threads: any; a function without state.
"""

from __future__ import annotations

import os

from segstore.errors import StorageError


def settled(path: str) -> str:
    """Return the absolute path of the same file, without slashes at its end, which stays valid if the current
    directory changes. Symbolic links stay in it, and "~" is an ordinary name, as for `open`.

    Raises StorageError if the current directory was deleted.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    whole = path if path.startswith("/") else os.path.join(_current(path), path)
    # ".." after a name is kept, because the name may be a link, and ".." then means the parent of the link's
    # target. The current directory's path has no links.
    return whole if ".." in parts[parts.count("..") :] else os.path.normpath(whole)


def _current(path: str) -> str:
    try:
        return os.getcwd()
    except OSError as error:
        reason = "The current directory can't be told, and this path is relative to it"
        raise StorageError(error.errno, f"{reason} ({error.strerror})", path) from None
