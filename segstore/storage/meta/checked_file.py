"""`CheckedFile`: a file in `.segstore` that holds one object as a line with a checksum (see `framed`), and a
version. Threads: any; objects without state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from segstore import names
from segstore.errors import CorruptCheckpointError
from segstore.files import Files
from segstore.storage.meta.framed import frame, unframe

T = TypeVar("T")
_VERSION = 1


class CheckedFile(Generic[T]):
    """One such file of a store: `what` it holds, for errors, in `most_bytes` at most. `make` returns the
    object that has these attributes; it raises ValueError, TypeError or KeyError for what was never written.
    """

    def __init__(self, name: str, what: str, make: Callable[[dict[str, Any]], T], most_bytes: int) -> None:
        self.name, self._what, self._make, self._most = name, what, make, most_bytes

    def path(self, root: str) -> str:
        """Return the path of a store's file."""
        return names.below(root, f"{names.OURS}/{self.name}")

    def read(self, files: Files, root: str) -> T | None:
        """Return what the file holds, None without one. Raises CorruptCheckpointError, OSError."""
        path = self.path(root)
        try:
            held = unframe(files.read_file(path, self._most))
            if held.pop("version", None) != _VERSION:
                raise ValueError(f"its version is unknown, {_VERSION} is known")
            return self._make(held)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptCheckpointError(path, 0, f"no {self._what}: {error}") from error

    def write(self, files: Files, root: str, value: T, *, durably: bool = True) -> None:
        """Write an object; `.segstore` is there. Raises OSError."""
        files.write_atomic(self.path(root), frame({"version": _VERSION, **vars(value)}), sync=durably)

    def write_as_itself(self, files: Files, root: str, value: Callable[[tuple[int, ...]], T]) -> None:
        """Write the object that `value` returns for which file this will be (`Files.which`, without the last
        change); nothing is synced. Raises OSError.
        """

        def data(which: tuple[int, int, int]) -> bytes:
            return frame({"version": _VERSION, **vars(value(which))})

        files.write_as_itself(self.path(root), data)

    def remove(self, files: Files, root: str) -> None:
        """Remove the file, durably. Raises OSError."""
        files.unlink(self.path(root))
        files.sync_dir(names.below(root, names.OURS))
