"""Notes each relative path that this process gives to the system: in the calls of C, in those of `os` and
`open`, and in OpenSSL's reads of certificates; and each question for the current directory, by which a
relative path is made absolute.

It is made before any other module of the package than `segstore` itself is imported: they take `lib` by name.
"""

from __future__ import annotations

import os
import ssl
import sys
import traceback
from collections.abc import Callable
from typing import Any

import segstore._native as native

# Of each call: where its paths are, and where the descriptors are to which each of them may be relative.
AUDITED: dict[str, dict[int, int | None]] = {
    "open": {0: None},
    "os.listdir": {0: None},
    "os.scandir": {0: None},
    "os.mkdir": {0: 2},
    "os.rmdir": {0: 1},
    "os.remove": {0: 1},
    "os.rename": {0: 2, 1: 3},
    "os.link": {0: 2, 1: 3},
    "os.symlink": {1: 2},
    "os.chmod": {0: 2},
    "os.chown": {0: 3},
    "os.truncate": {0: None},
    "os.utime": {0: 3},
    "shutil.rmtree": {0: None},
    "subprocess.Popen": {2: None},
}
UNAUDITED = ("stat", "lstat", "access", "readlink", "statvfs", "mkfifo")
OF_C = {"seg_open": 1, "seg_watch": 1, "seg_stat": 0, "seg_realpath": 0}
OF_TLS = ("load_cert_chain", "load_verify_locations")


class RelativePaths:
    """What was noted since `begin`: a call, its path, and where it was called."""

    def __init__(self) -> None:
        self.noted: list[str] = []
        self._on = False
        sys.addaudithook(self._audit)
        native.lib = _Library(native.lib, self._note)
        for name in UNAUDITED:
            setattr(os, name, self._watched(f"os.{name}", getattr(os, name)))
        for name in OF_TLS:
            setattr(ssl.SSLContext, name, self._watched(name, getattr(ssl.SSLContext, name), slice(1, 3)))
        current = os.getcwd
        os.getcwd = lambda: (self._note("os.getcwd", "."), current())[1]  # to make a relative path absolute

    def begin(self) -> None:
        self._on = True

    def end(self) -> None:
        self._on = False

    def _note(self, call: str, path: object) -> None:
        if not self._on or path is None or isinstance(path, int):
            return
        held = os.fsdecode(path)  # type: ignore[arg-type]
        if not held.startswith("/"):
            self._on = False  # what reads source lines for the traceback is not noted
            where = traceback.format_stack(limit=9)
            self._on = True
            self.noted.append(f"{call}({held!r})\n{''.join(where)}")

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._on and event in AUDITED:
            for place, to in AUDITED[event].items():
                if to is None or arguments[to] == -1:
                    self._note(event, arguments[place])

    def _watched(self, name: str, call: Callable[..., Any], paths: slice = slice(1)) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            if named.get("dir_fd") is None:
                named_paths = map(named.get, ("path", "certfile", "keyfile", "cafile"))
                for path in (*arguments[paths], *named_paths):
                    self._note(name, path)
            return call(*arguments, **named)

        return watched


class _Library:
    """The compiled functions; those that take a path tell of it."""

    def __init__(self, lib: Any, note: Callable[[str, object], None]) -> None:
        self._lib, self._tell = lib, note

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._lib, name)
        if name in OF_C:
            found = self._telling(name, found)
        setattr(self, name, found)
        return found

    def _telling(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def telling(*arguments: Any) -> Any:
            self._tell(name, arguments[OF_C[name]])
            return call(*arguments)

        return telling
