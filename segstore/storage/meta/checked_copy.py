"""A copy, with a CRC, of the offset checkpoints in the store's root: `.segstore/checkpoints`. The checkpoints
themselves are text files in Kafka's format, which has no CRC.

The copy is one framed line: {"version": 0, "nonce": n, "offsets": {file's name: [[topic, partition, offset],
...]}, "claims": [[topic, partition, offset], ...]}. The copy is written and synced before the text files, so
that after a crash the text files may be older than the copy, but never newer. `nonce` is the number in the
clean shutdown marker after a clean close, and 0 while the store is open. `claims` are log start offsets that
were read from a text file and had no checksum. A copy that an older segstore wrote has no claims. Threads:
any, because the functions have no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from segstore import names
from segstore.errors import CorruptCheckpointError
from segstore.files import Files
from segstore.storage.meta.checked_file import LINE, CheckedFile
from segstore.storage.meta.small_files import NOT_A_FILE

Key = tuple[str, int]
Offsets = Mapping[str, Mapping[Key, int]]
"""Offsets by the checkpoint file's name, then by partition."""

_VERSION = 0


class CopyState(Enum):
    """CURRENT: the last writer of the store wrote the copy. STALE: the last writer did not write the copy.
    UNSURE: the clean shutdown marker is damaged, or a broker that was killed may have written the text files
    after the copy.
    """

    CURRENT = "current"
    UNSURE = "unsure"
    STALE = "stale"


class CheckedCopy(NamedTuple):
    """The content of `.segstore/checkpoints`."""

    nonce: int
    offsets: dict[str, dict[Key, int]]
    claims: frozenset[tuple[Key, int]] = frozenset()

    def standing(self, marker: int | None, published: int | None, copied: bool) -> CopyState:
        """Return the state of the copy. `marker` is the number in the clean shutdown marker, and `published`
        the number in `.segstore/ends`; each is None if the file is missing. `copied` is False if an older
        segstore, which makes no copy, wrote `.segstore/ends`.
        """
        if not copied or (marker and marker != self.nonce):
            return CopyState.STALE
        if marker or (marker is None and (self.nonce == 0 or not published)):
            return CopyState.CURRENT
        return CopyState.UNSURE


def _to_json(copy: CheckedCopy) -> dict[str, Any]:
    held = {name: _rows(lines) for name, lines in copy.offsets.items()}
    claims = [[*key, offset] for key, offset in sorted(copy.claims)]
    return {"version": _VERSION, "nonce": copy.nonce, "offsets": held, "claims": claims}


def _rows(lines: Mapping[Key, int]) -> list[list[Any]]:
    return [[*key, offset] for key, offset in sorted(lines.items())]


def _parse(held: dict[str, Any]) -> CheckedCopy:
    if held["version"] != _VERSION:
        raise ValueError(f"version {held['version']!r} is unknown, {_VERSION} is known")
    offsets = {name: _lines(held["offsets"][name]) for name in names.OFFSET_CHECKPOINTS}
    return CheckedCopy(int(held["nonce"]), offsets, frozenset(_lines(held.get("claims", [])).items()))


def _lines(rows: list[Any]) -> dict[Key, int]:
    return {(str(topic), int(number)): int(offset) for topic, number, offset in rows}


CHECKED_COPY = CheckedFile(names.CHECKPOINTS, "copy of the checkpoints", _parse, 1 << 28, LINE, _to_json)


def write_copy(files: Files, root: str, offsets: Offsets, nonce: int, claims: Mapping[Key, int]) -> None:
    """Replace `.segstore/checkpoints`. The new file is durable when this returns. Raises OSError."""
    held = {name: dict(lines) for name, lines in offsets.items()}
    CHECKED_COPY.write(files, root, CheckedCopy(nonce, held, frozenset(claims.items())))


def read_copy(files: Files, root: str) -> tuple[CheckedCopy | None, str]:
    """Return (copy, ""). Return (None, text about the damage) if the copy is damaged, and (None, "") if it is
    missing. Raises OSError.
    """
    try:
        return CHECKED_COPY.read(files, root), ""
    except CorruptCheckpointError as error:
        return None, error.reason
    except OSError as error:
        if error.errno not in NOT_A_FILE:
            raise
        return None, str(error)
