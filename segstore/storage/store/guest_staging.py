"""Long appends of a guest, which are staged in the inbox and adopted by the host. If the guest wrote them to
the log itself, they would delay all other appends, and might need several segments.

On disk the records lie in the store's inbox until they are in the log; see `inbox`. After a failed append its
staged files are removed. Threads: any; one for each append.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from segstore.errors import HostUnavailableError, KafkaTimeoutError, SegstoreError, copy_of
from segstore.records import Encoded
from segstore.storage.context import StoreContext, os_errors
from segstore.storage.inbox.known_ids import GUESTS
from segstore.storage.inbox.manifest import Manifest
from segstore.storage.inbox.sealing import SealedManifest, remove_unsealed
from segstore.storage.inbox.stager import Stager
from segstore.storage.meta.topics import TopicInfo


class StagedAppend:
    """One append to one partition. `unavailable()` returns the error for a host that does not answer."""

    def __init__(
        self,
        context: StoreContext,
        info: TopicInfo,
        partition: int,
        unavailable: Callable[[], HostUnavailableError],
    ) -> None:
        self._context, self._info, self._partition = context, info, partition
        self._unavailable = unavailable

    def run(self, chunks: Iterable[Encoded], seconds: float) -> int:
        """Append the records, and return the first offset. They are visible, all at once, and durable then.
        Raises, and nothing is appended: HostUnavailableError if the host has not begun to adopt them within
        `seconds`; StorageError, RecordTooLargeError, UnknownTopicOrPartitionError, StagedFilesError,
        StoreClosedError. Raises KafkaTimeoutError if the host has begun, and has not finished within
        `seconds` more. After KafkaTimeoutError or an interrupt the host has adopted all records, or adopts
        them later, or adopts none.
        """
        context = self._context
        with os_errors(), Stager(context.root, clock=context.clock, files=context.files) as stager:
            stager.append_encoded(self._info, self._partition, chunks)
            staged = stager.finish().files
            work = Manifest("", f"{GUESTS}/{stager.name}", staged)
            sealed = SealedManifest(context.files, context.root, work)
            try:
                offsets = self._adopted(sealed, work.id, seconds)
            except BaseException:
                with suppress(OSError):  # the next open removes them as left-overs
                    remove_unsealed(sealed.folder, staged)
                raise
        return offsets[self._info.name, self._partition][0]

    def _adopted(
        self, sealed: SealedManifest, id_: str, seconds: float
    ) -> dict[tuple[str, int], tuple[int, int]]:
        error: SegstoreError
        try:
            sealed.begin()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                if (known := sealed.outcome()) is not None:
                    return known.offsets
                self._context.check_open()
                sealed.wait(sealed.patience)
            error = self._unavailable()
        except SegstoreError as refused:
            error = refused  # this includes errors after which the host would retry the adoption
        except BaseException:
            sealed.take_back()
            raise
        if sealed.take_back():
            raise copy_of(error)
        return self._begun(sealed, id_, error, seconds)

    def _begun(
        self, sealed: SealedManifest, id_: str, error: SegstoreError, seconds: float
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """Wait for an adoption that the host had begun before `take_back`, and return its offsets."""
        end = time.monotonic() + seconds
        while sealed.is_begun():
            if time.monotonic() > end:
                raise KafkaTimeoutError(
                    f"{self._context.root}: the host has begun to append records of {self._info.name}-"
                    f"{self._partition}, staged as {id_!r}, and has not ended in {seconds:g} s: whether they "
                    "are appended is not known"
                )
            sealed.wait(sealed.patience)
        known = sealed.recorded()
        if known is None:
            raise copy_of(error)
        return known.offsets
