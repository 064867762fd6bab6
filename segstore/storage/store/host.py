"""The host of a shared store: a thread that answers what guests ask (V1 to V3 of docs/shared.md).

A verdict that was resolved before is seen to be: it may be asked twice, also of two hosts. Threads: its own,
which takes the append token of one partition at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from segstore._native import ffi, lib
from segstore.errors import SegstoreError, StorageError, UnknownTopicOrPartitionError, is_refusal
from segstore.logger import Logger
from segstore.storage.context import Context
from segstore.storage.log.guest_partition import cut_sealed
from segstore.storage.log.partition import Partition
from segstore.storage.shared.members import Members
from segstore.storage.shared.verdicts import AGAIN, answer_of
from segstore.threads import Background, Latch

log = Logger("segstore")
_LOOK_MS = 1000
"""How often the host looks for what dead members have left, if nobody rings."""


class Host:
    """Answers the requests of a store's members. `find(slot, key)` gives the partition, `opened()` those that
    are open.
    """

    def __init__(
        self,
        context: Context,
        members: Members,
        find: Callable[[int, int], Partition],
        opened: Callable[[], Iterable[Partition]],
    ) -> None:
        self._context, self._members, self._find, self._opened = context, members, find, opened
        self._done, self._ended = Latch(), Latch()
        self._looked = time.monotonic()

    def start(self) -> None:
        """Start the thread."""
        Background(self._run, "segstore-host").start()

    def stop(self, seconds: float = 30.0) -> None:
        """End the thread, behind the answer that it is about to give."""
        self._done.open()
        lib.seg_shared_ring(ffi.addressof(self._members.shared.header, "bell"))
        self._ended.wait(seconds)

    def _run(self) -> None:
        header = self._members.shared.header
        bell = ffi.addressof(header, "bell")
        try:
            while not self._done.is_open:
                seen = header.bell
                try:
                    self.turn()
                except Exception:  # guests wait for this thread: what one asks must not end it
                    log.exception("%s: what the members ask could not be answered", self._context.root)
                lib.seg_shared_wait(bell, seen, _LOOK_MS)
        finally:
            self._ended.open()

    def turn(self) -> None:
        """Answer all that is asked now."""
        number, slot = ffi.new("uint32_t *"), 0
        while (
            slot := int(lib.seg_request_next(self._members.c, slot, number))
        ) >= 0 and not self._done.is_open:
            answer, error, text = self._resolved(slot)
            lib.seg_request_answer(self._members.c, slot, number[0], answer, error, text)
            slot += 1
        if time.monotonic() - self._looked > _LOOK_MS / 1000:
            self._looked = time.monotonic()
            self._tidy()

    def _resolved(self, slot: int) -> tuple[int, int, bytes]:
        try:
            self._resolve(self._members.shared.member(slot))
        except SegstoreError as error:
            return answer_of(error)
        except OSError as error:
            if not is_refusal(error):
                raise
            return answer_of(StorageError(error.errno, error.strerror, error.filename))
        except Exception as error:
            log.exception("%s: the host could not do what a member asks", self._context.root)
            return answer_of(error)
        return AGAIN, 0, b""

    def _resolve(self, asked: Any) -> None:
        partition = self._find(asked.log, asked.key)
        if asked.asks == lib.SEG_ASKS_SYNC:
            partition.flush()
            return
        header = ffi.new("seg_batch *")
        header.size, header.max_timestamp = asked.size, asked.timestamp
        header.base_offset, header.last_offset = 0, max(asked.offsets, 1) - 1
        word = asked.word if asked.asks == lib.SEG_ASKS_AWAY else 0
        partition.make_ready(header, max(asked.batches, 1), asked.generation, word)

    def _tidy(self) -> None:
        """Cut what dead members have left behind sealed ends [A5]."""
        sealed = ffi.new("seg_sealed *")
        for partition in self._opened():
            share = partition.tail.native.c.share
            if not share:
                continue
            while (number := lib.seg_share_sealed(share, 0, True, sealed)) >= 0:
                try:
                    cut_sealed(
                        self._context, partition.directory, sealed, partition.config.index_interval_bytes
                    )
                except OSError as error:
                    log.warning("%s: what a member has left could not be cut: %s", partition.directory, error)
                    break
                lib.seg_share_let_go(share, number)


def unknown(key: int) -> UnknownTopicOrPartitionError:
    """Return the error for a partition that is asked for, and was deleted."""
    return UnknownTopicOrPartitionError(f"no topic has the partition with key {key}: it was deleted")
