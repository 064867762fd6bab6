"""Long appends of a guest: the guest writes files into the store's inbox, and the host adds the files to the
log (an adoption). If the guest wrote to the log itself, all other appends would wait, and the records might
need several segments.

If an append fails, its files are removed from the inbox. Threads: any; one for each append.
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
    """One append to one partition. `unavailable()` returns the error to raise if the host does not answer."""

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
        """Append the records, durably and visible all at once, and return the first offset.

        Nothing is appended if this raises StorageError, RecordTooLargeError, UnknownTopicOrPartitionError,
        StagedFilesError or StoreClosedError, or HostUnavailableError because the host has not begun to add
        the staged files to the log (the adoption) within `seconds`. Raises KafkaTimeoutError if the host
        has not finished the adoption within another `seconds`. After KafkaTimeoutError or an interrupt either
        all records are appended, now or later, or no record is ever appended.
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
                with suppress(OSError):  # if this fails, the next open of the store removes the files
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
            # The host may try the adoption again, so `take_back` below withdraws the staged append.
            error = refused
        except BaseException:
            sealed.take_back()
            raise
        if sealed.take_back():
            raise copy_of(error)
        return self._begun(sealed, id_, error, seconds)

    def _begun(
        self, sealed: SealedManifest, id_: str, error: SegstoreError, seconds: float
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """Wait until the host, which has begun to add the staged files to the log (an adoption), has
        finished. Return (first offset, next offset) by (topic, partition). Raises a copy of `error` if the
        adoption failed; KafkaTimeoutError after `seconds`.
        """
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
