"""Files in `.segstore` that hold one word, "1 <word> <CRC-32 of both, hex>", version 1: the store's cluster
id (Kafka: cluster.id in meta.properties, which a replicated store has), which is made when the store is first
served and moves with the directory; and the first producer id that was not handed out.

Threads: any; objects without state.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import Generic, TypeVar

from segstore import names
from segstore.files import Files
from segstore.integers import INT64_MAX
from segstore.storage.meta.small_files import unreadable

T = TypeVar("T")
_MOST_BYTES = 256


class SealedFile(Generic[T]):
    """One such file of a store. `parse` returns what a word stands for, None for a word that was never
    written; `lost` says what follows where the file is damaged.
    """

    def __init__(self, name: str, parse: Callable[[str], T | None], lost: str) -> None:
        self.name, self._parse, self._lost = name, parse, lost

    def path(self, root: str) -> str:
        """Return the path of a store's file."""
        return os.path.join(root, names.OURS, self.name)

    def read(self, files: Files, root: str) -> T | None:
        """Return what is in the file; None where the file is missing or damaged, between which `damage`
        distinguishes. Raises OSError.
        """
        try:
            return self.parse(files.read_file(self.path(root), _MOST_BYTES))
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                unreadable(error, self.path(root))
            return None

    def damage(self, files: Files, root: str) -> str:
        """Return what is wrong with the file, "" for nothing, also where there is no file. Raises OSError."""
        path = self.path(root)
        if not files.exists(path) or self.read(files, root) is not None:
            return ""
        what = "its checksum does not fit" if files.is_file(path) else "not a regular file"
        return f"{what}: {self._lost}"

    def write(self, files: Files, root: str, value: T) -> None:
        """Write a value, whose text has no spaces; it is durable when this returns. Raises OSError."""
        line = f"1 {value}"
        files.write_atomic(self.path(root), f"{line} {zlib.crc32(line.encode()):08x}\n".encode())

    def parse(self, data: bytes) -> T | None:
        """Return the value in the file's content; None for content that was never written."""
        line, _, crc = data.rpartition(b" ")
        if crc != b"%08x\n" % zlib.crc32(line):
            return None
        version, _, word = line.partition(b" ")
        return self._parse(word.decode()) if version == b"1" and word.isascii() else None


def _number(word: str) -> int | None:
    if not word.isdigit() or len(word) > len(str(INT64_MAX)) or int(word) > INT64_MAX:
        return None
    return int(word)


CLUSTER_ID = SealedFile(
    names.CLUSTER_ID,
    lambda word: word if names.is_topic_id(word) else None,
    "a server tells clients a new cluster id",
)
PRODUCER_ID = SealedFile(names.PRODUCER_IDS, _number, "producer ids go on above all that the logs know")
