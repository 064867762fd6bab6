"""Which of a store's small files are looked for before anything is opened: what lies in their places and is
no file goes to the quarantine. A directory, symbolic link, FIFO or the like is renamed, never followed or
removed.

On disk: through `small_files`. Threads: one, with the store's lock held.
"""

from __future__ import annotations

import os

from segstore import names
from segstore.files import Files
from segstore.storage.small_files import put_aside

_PLACES = (
    names.CLEAN_SHUTDOWN,
    *names.OFFSET_CHECKPOINTS,
    os.path.join(names.OURS, names.ENDS),
    os.path.join(names.OURS, names.CHECKPOINTS),
)


def set_aside(files: Files, root: str) -> list[tuple[str, str]]:
    """Free these places, and those where they are written before they get their names: the paths that
    something else had, and where that is now. OSError.
    """
    places = [os.path.join(root, place + ending) for place in _PLACES for ending in ("", names.TEMPORARY)]
    taken = [path for path in places if files.exists(path) and not files.is_file(path)]
    return [(path, put_aside(files, root, path)) for path in taken]
