"""`adopt`: appends staged files at once, by the process that has the store open for writing.

Nothing is sealed: where it fails nobody tries it again, and the staged files are gone.
On disk: through the inbox. Threads: any.
"""

from __future__ import annotations

from collections.abc import Iterable

from segstore.storage.context import os_errors
from segstore.storage.inbox.adopted_ids import Adoption
from segstore.storage.inbox.staged_file import Staged, check_id, files_of
from segstore.storage.store.store import Store


def adopt(store: Store, id_: str, messages: Iterable[Staged]) -> Adoption:
    """Have all that these messages name appended: once, and all of it or nothing. See `seal`.

    UnknownTopicOrPartitionError, StagedFilesError, RecordTooLargeError, InvalidRecordError, StorageError:
    nothing was appended. ReadOnlyError, StoreClosedError, InvalidTypeError, InvalidArgumentError.
    """
    staged = files_of(messages)
    with os_errors():
        return store._writer().inbox.adopt(check_id(id_), staged)
