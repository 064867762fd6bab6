"""`CheckedFile`: a file in `.segstore` with one value and a checksum, in one copy or in two. `framed`
describes the formats, and `small_files` handles two copies. Threads: any, because the objects don't change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from segstore import names
from segstore.errors import CorruptCheckpointError
from segstore.files import Files
from segstore.storage.meta import framed
from segstore.storage.meta.small_files import Copies, reason, unreadable

T = TypeVar("T")
_VERSION = 1


class Form(NamedTuple):
    """The format of a file. `pack(value)` returns the bytes for a JSON value. `unpack(bytes)` returns (value,
    whether the bytes had a checksum), or raises ValueError.
    """

    pack: Callable[[Any], bytes]
    unpack: Callable[[bytes], tuple[Any, bool]]


LINE = Form(framed.frame, lambda data: (framed.unframe(data), True))
OBJECT = Form(framed.seal, lambda data: (framed.unseal_checked(data), True))
OLD_OBJECT = Form(framed.seal, framed.unseal)
"""Like OBJECT, but an object without a checksum is accepted too, because an older segstore wrote no
checksum.
"""
WORD = Form(framed.seal_word, lambda data: (framed.unseal_word(data), True))


class CheckedFile(Generic[T]):
    """A file in `.segstore` with one value. The file has at most `most_bytes` bytes. `what` names the content
    in texts of errors. `copy` is the name of the second copy, "" if there is only one copy.

    `to_json(value)` returns the JSON value to write, and `make(json_value)` returns the value again. If
    `to_json` is None, the version and the value's attributes are written. `make` raises ValueError, TypeError
    or KeyError for a JSON value that `to_json` never returns. `advice` is added to the texts of errors.
    """

    def __init__(
        self,
        name: str,
        what: str,
        make: Callable[[Any], T],
        most_bytes: int,
        form: Form = LINE,
        to_json: Callable[[T], Any] | None = None,
        *,
        copy: str = "",
        advice: str = "",
    ) -> None:
        self.name, self._below = name, f"{names.OURS}/{name}"
        self._what, self._make, self._most = what, make, most_bytes
        self._form, self._to_json, self._copy, self._advice = form, to_json, copy, advice

    def path(self, root: str) -> str:
        """Return the path of the file in the store at `root`."""
        return names.below(root, self._below)

    def copies(self, files: Files, root: str) -> Copies[T]:
        """Return the two copies of the file."""
        second = names.below(root, f"{names.OURS}/{self._copy}")
        return Copies(files, self.path(root), second, self._most, self.parse)

    def pack(self, value: T) -> bytes:
        """Return the bytes to write for a value."""
        attributes = {"version": _VERSION, **vars(value)} if self._to_json is None else self._to_json(value)
        return self._form.pack(attributes)

    def parse(self, data: bytes, where: str) -> tuple[T, bool]:
        """Return (the value in these bytes, whether the bytes have a checksum). Raises
        CorruptCheckpointError, with `where` as the file's name.
        """
        try:
            held, checked = self._form.unpack(data)
            if self._to_json is None and held.pop("version", None) != _VERSION:
                raise ValueError(f"its version is unknown, {_VERSION} is known")
            return self._make(held), checked
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            advice = f"; {self._advice}" if self._advice else ""
            raise CorruptCheckpointError(where, 0, f"no {self._what}: {error}{advice}") from error

    def read(self, files: Files, root: str) -> T | None:
        """Return the value; None if the file is missing. Raises CorruptCheckpointError, OSError. If the file
        has two copies, an error is raised only if neither copy can be read; it may be a StorageError.
        """
        if self._copy:
            return self.copies(files, root).read()
        path = names.below(root, self._below)
        try:
            return self.parse(files.read_file(path, self._most), path)[0]
        except FileNotFoundError:
            return None

    def hint(self, files: Files, root: str) -> T | None:
        """Return the value; None if the file is missing or damaged. Raises a transient OSError
        (EMFILE, EIO).
        """
        try:
            return self.read(files, root)
        except (CorruptCheckpointError, OSError) as error:
            unreadable(error, self.path(root))
            return None

    def damage(self, files: Files, root: str) -> str:
        """Return a text about the file's damage; "" if the file is not damaged, or is missing. Raises a
        transient OSError (EMFILE, EIO).
        """
        try:
            self.read(files, root)
        except (CorruptCheckpointError, OSError) as error:
            return reason(unreadable(error, self.path(root)))
        return ""

    def write(self, files: Files, root: str, value: T, *, durably: bool = True) -> None:
        """Replace the file, or both copies. They are durable when this returns, unless `durably` is False. If
        this raises OSError, one of two copies may have the new value.
        """
        if self._copy:
            self.copies(files, root).write(self.pack(value))
        else:
            files.write_atomic(self.path(root), self.pack(value), sync=durably)

    def write_as_itself(self, files: Files, root: str, value: Callable[[tuple[int, ...]], T]) -> None:
        """Write a file that contains its own identity: the device, inode and birth time of the new file
        (`Files.which`). The content is `value(identity)`. Nothing is synced. Raises OSError.
        """
        files.write_as_itself(self.path(root), lambda which: self.pack(value(which)))

    def remove(self, files: Files, root: str) -> None:
        """Remove the file, durably. Raises OSError."""
        files.unlink(self.path(root))
        files.sync_dir(names.below(root, names.OURS))
