"""Two files in `.segstore` with one word each. CLUSTER_ID has the store's cluster id, which is made when a
server first serves the store (Kafka: cluster.id in meta.properties; a replicated store has meta.properties
instead). PRODUCER_ID has the first producer id that was not handed out. Threads: any, because the objects
have no state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from segstore import names
from segstore.files import Files
from segstore.integers import INT64_MAX
from segstore.storage.meta.checked_file import WORD, CheckedFile

T = TypeVar("T")
_MOST_BYTES = 256


class SealedFile(CheckedFile[T]):
    """A file in `.segstore` with one word. `make` parses the word. `lost` is the consequence of damage, for
    texts of errors.
    """

    def __init__(self, name: str, make: Callable[[str], T], lost: str) -> None:
        super().__init__(name, name, make, _MOST_BYTES, WORD, str)
        self._lost = lost

    def damage(self, files: Files, root: str) -> str:
        path = self.path(root)
        if not files.exists(path) or self.hint(files, root) is not None:
            return ""
        wrong = "its checksum does not fit" if files.is_file(path) else "not a regular file"
        return f"{wrong}: {self._lost}"


def _cluster_id(word: str) -> str:
    if not names.is_topic_id(word):
        raise ValueError(f"{word!r} is no cluster id")
    return word


def _number(word: str) -> int:
    if not word.isdigit() or len(word) > len(str(INT64_MAX)) or int(word) > INT64_MAX:
        raise ValueError(f"{word!r} is no producer id")
    return int(word)


CLUSTER_ID = SealedFile(names.CLUSTER_ID, _cluster_id, "a server tells clients a new cluster id")
PRODUCER_ID = SealedFile(names.PRODUCER_IDS, _number, "producer ids go on above all that the logs know")
