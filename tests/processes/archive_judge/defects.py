"""Defects that the archiver's process is given, to see that rounds find them: each by its name."""

from __future__ import annotations

from collections.abc import Callable

from segstore.archiving import archive
from segstore.archiving.remote import RemoteFiles
from segstore.replica_fetcher.source_end import Lag


def _tell_too_early() -> None:
    archive.Archive.wait_archived = lambda self, timeout_ms=None: True  # type: ignore[method-assign]


def _lag_is_nothing() -> None:
    archive.Archive.lag = lambda self: dict.fromkeys(LAG(self), Lag(0, 0, 0))  # type: ignore[method-assign]


def _short_objects() -> None:
    def write(self: RemoteFiles, name: str, parts: object) -> int:
        data = b"".join(map(bytes, parts))  # type: ignore[call-overload]
        kept = data[:-1] if name.endswith(".commit") and len(data) > 3_000 else data
        WRITE(self, name, [kept])
        return len(data)

    RemoteFiles.write = write  # type: ignore[method-assign]


WRITE, LAG = RemoteFiles.write, archive.Archive.lag
DEFECTS: dict[str, Callable[[], None]] = {
    "tells before it is there": _tell_too_early,
    "tells a lag of nothing": _lag_is_nothing,
    "cuts objects short": _short_objects,
}


def plant(name: str) -> None:
    """Give this process a defect; "none" gives it none."""
    if name != "none":
        DEFECTS[name]()
