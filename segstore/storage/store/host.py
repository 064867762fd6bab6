"""The host of a shared store: a thread that answers what guests ask (V1 to V3 of docs/shared.md).

A verdict that was resolved before is seen to be: it may be asked twice, also of two hosts. Threads: its own,
which takes the append token of one partition at a time; and one for each request that waits for a disk, or
for the owner of a log's lock, since other logs must not wait for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from segstore._native import ffi, lib
from segstore.errors import SegstoreError, StorageError, UnknownTopicOrPartitionError
from segstore.logger import Logger
from segstore.storage.context import StoreContext
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
        context: StoreContext,
        members: Members,
        find: Callable[[int, int], Partition],
        opened: Callable[[], Iterable[Partition]],
    ) -> None:
        self._context, self._members, self._find, self._opened = context, members, find, opened
        self._done = Latch()
        self._thread = Background(self._run, "segstore-host")
        self._apart: dict[int, tuple[int, Background]] = {}
        """By slot: the number of a request that another thread resolves, and that thread."""
        self._looked = time.monotonic()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, seconds: float = 30.0) -> None:
        """End the threads, behind the answers that they are about to give; each may call this itself."""
        self._done.open()
        lib.seg_shared_ring(ffi.addressof(self._members.shared.header, "bell"))
        self._thread.join(seconds)
        for _, thread in list(self._apart.values()):
            thread.join(seconds)

    def _run(self) -> None:
        header = self._members.shared.header
        bell = ffi.addressof(header, "bell")
        while not self._done.is_open:
            seen = header.bell
            try:
                self.turn()
            except Exception:  # guests wait for this thread: what one asks must not end it
                log.exception("%s: what the members ask could not be answered", self._context.root)
            lib.seg_shared_wait(bell, seen, _LOOK_MS)

    def turn(self) -> None:
        """Answer all that is asked now."""
        number, slot = ffi.new("uint32_t *"), 0
        while (
            slot := int(lib.seg_request_next(self._members.c, slot, number))
        ) >= 0 and not self._done.is_open:
            self._see_to(slot, number[0])
            slot += 1
        if time.monotonic() - self._looked > _LOOK_MS / 1000:
            self._looked = time.monotonic()
            self._tidy()

    def _see_to(self, slot: int, number: int) -> None:
        """Answer a request, or have another thread do that if it may take long."""
        known, thread = self._apart.get(slot, (-1, None))
        if thread is not None and known == number and thread.is_alive():
            return
        if not self._may_wait(self._members.shared.member(slot)):
            self._answer(slot, number)
            return
        thread = Background(partial(self._answer, slot, number), "segstore-host-apart")
        self._apart[slot] = number, thread
        thread.start()

    def _may_wait(self, asked: Any) -> bool:
        """Return whether a request waits for a disk, or for another process that keeps a log's lock."""
        log = self._members.shared.log_if_there(asked.log)
        held = log is not None and log.open and log.lock & 0xFFFFFFFF
        return bool(asked.asks != lib.SEG_ASKS_READY or held)

    def _answer(self, slot: int, number: int) -> None:
        answer, error, text = self._resolved(slot)
        lib.seg_request_answer(self._members.c, slot, number, answer, error, text)

    def _resolved(self, slot: int) -> tuple[int, int, bytes]:
        try:
            self._resolve(self._members.shared.member(slot))
        except SegstoreError as error:
            return answer_of(error)
        except OSError as error:
            return answer_of(StorageError(error.errno, error.strerror, error.filename))
        except Exception as error:  # the thread goes on: all guests wait for it
            log.exception("%s: a guest's request could not be resolved", self._context.root)
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
