"""The producer id file, `.segstore/producer-ids`: the first producer id that was not handed out.

It has the form of `sealed_line`. Threads: any; functions without state.
"""

from __future__ import annotations

import os

from segstore import names
from segstore.files import Files
from segstore.integers import INT64_MAX
from segstore.storage.meta.sealed_line import MOST_BYTES, seal_line, unseal_line
from segstore.storage.meta.small_files import unreadable

_DIGITS = len(str(INT64_MAX))


def producer_id_path(root: str) -> str:
    """Return the path of a store's producer id file."""
    return os.path.join(root, names.OURS, names.PRODUCER_IDS)


def read_producer_id(files: Files, root: str) -> int | None:
    """Return the id in the file; None where the file is missing or damaged, between which `damage`
    distinguishes. Raises OSError.
    """
    try:
        return parse(files.read_file(producer_id_path(root), MOST_BYTES))
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            unreadable(error, producer_id_path(root))
        return None


def damage(files: Files, root: str) -> str:
    """Return what is wrong with the file, "" for nothing, also where there is no file. Raises OSError."""
    path = producer_id_path(root)
    if not files.exists(path) or read_producer_id(files, root) is not None:
        return ""
    what = "its checksum does not fit" if files.is_file(path) else "not a regular file"
    return f"{what}: producer ids go on above all that the logs know"


def write_producer_id(files: Files, root: str, first: int) -> None:
    """Write the id, durable when this returns. Raises OSError."""
    files.write_atomic(producer_id_path(root), seal_line(str(first)))


def parse(data: bytes) -> int | None:
    """Return the id in the file's content; None for content that was never written."""
    number = unseal_line(data)
    if number is None or not number.isdigit() or len(number) > _DIGITS or int(number) > INT64_MAX:
        return None
    return int(number)
