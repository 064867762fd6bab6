"""The host of a shared store: a thread that answers the requests of guests (V1 to V3 of docs/shared.md).

A request may be answered twice, even by two hosts one after the other. The second answer changes nothing.
Threads: the host's own thread, which takes the append token (the lock for appends) of one partition at a
time; and a thread for each request that waits for a disk or for the owner of a log's lock, so that other
requests need not wait.
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
"""Milliseconds between two searches for bytes that dead members wrote after a segment's end."""


class Host:
    """Answers the requests of a store's members. `find(slot, key)` returns the partition with this slot and
    slot key in `.segstore/ends`. `opened()` returns all open partitions.
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
        self._slow_requests: dict[int, tuple[int, Background]] = {}
        """For each member, by its slot: (number of the member's last request that was given to a thread, that
        thread).
        """
        self._looked = time.monotonic()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, seconds: float = 30.0) -> None:
        """Stop the host's threads. Each of them finishes the request that it is answering. The host's threads
        may call this method too.
        """
        self._done.open()
        lib.seg_shared_ring(ffi.addressof(self._members.shared.header, "bell"))
        self._thread.join(seconds)
        for _, thread in list(self._slow_requests.values()):
            thread.join(seconds)

    def _run(self) -> None:
        header = self._members.shared.header
        bell = ffi.addressof(header, "bell")
        while not self._done.is_open:
            seen = header.bell
            try:
                self.turn()
            except Exception:  # guests wait for this thread, so an error in one request must not end it
                log.exception("%s: what the members ask could not be answered", self._context.root)
            lib.seg_shared_wait(bell, seen, _LOOK_MS)

    def turn(self) -> None:
        """Answer all pending requests. Call `_cut_dead_members` once a second."""
        number, slot = ffi.new("uint32_t *"), 0
        while (
            slot := int(lib.seg_request_next(self._members.c, slot, number))
        ) >= 0 and not self._done.is_open:
            self._dispatch(slot, number[0])
            slot += 1
        if time.monotonic() - self._looked > _LOOK_MS / 1000:
            self._looked = time.monotonic()
            self._cut_dead_members()

    def _dispatch(self, slot: int, number: int) -> None:
        """Answer a request, in another thread if the answer may have to wait."""
        known, thread = self._slow_requests.get(slot, (-1, None))
        if thread is not None and known == number and thread.is_alive():
            return
        if not self._may_wait(self._members.shared.member(slot)):
            self._answer(slot, number)
            return
        thread = Background(partial(self._answer, slot, number), "segstore-host-apart")
        self._slow_requests[slot] = number, thread
        thread.start()

    def _may_wait(self, request: Any) -> bool:
        """Return whether the answer may wait for a disk, or for another process that holds a log's lock."""
        log = self._members.shared.log_if_there(request.log)
        held = log is not None and log.open and log.lock & 0xFFFFFFFF
        return bool(request.asks != lib.SEG_ASKS_READY or held)

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
        except Exception as error:  # the thread goes on, because all guests wait for it
            log.exception("%s: a guest's request could not be resolved", self._context.root)
            return answer_of(error)
        return AGAIN, 0, b""

    def _resolve(self, request: Any) -> None:
        partition = self._find(request.log, request.key)
        if request.asks == lib.SEG_ASKS_SYNC:
            partition.flush()
            return
        header = ffi.new("seg_batch *")
        header.size, header.max_timestamp = request.size, request.timestamp
        header.base_offset, header.last_offset = 0, max(request.offsets, 1) - 1
        word = request.word if request.asks == lib.SEG_ASKS_AWAY else 0
        partition.make_ready(header, max(request.batches, 1), request.generation, word)

    def _cut_dead_members(self) -> None:
        """Cut the sealed segments (segments that were closed to appends) of dead members at the ends that
        were recorded when they were sealed, because these members may have written bytes after them [A5].
        """
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
    """Return the error for a request about a deleted partition."""
    return UnknownTopicOrPartitionError(f"no topic has the partition with key {key}: it was deleted")
