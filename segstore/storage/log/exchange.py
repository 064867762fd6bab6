"""`NativeExchange`: requests of one connection that are alike, each of which one call of C receives, does and
answers (`_native/exchange.c`): a produce by the native tail, a fetch of a few batches by one look at one
segment.

On disk are the log's files, written and read as by `append_as_leader` and `stretch`. Whatever is unusual is
left to these. Threads: an exchange belongs to one thread at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from segstore._native import ffi, held, lib
from segstore.storage.log.append import SLOW, undone

if TYPE_CHECKING:
    from segstore.storage.log.partition import Partition

_NOW: int = lib.SEG_NOW
_SIZE = 4  # bytes of a request's size
_NEW_HEADER = ffi.typeof("seg_batch *")


class Alike(NamedTuple):
    """What requests and answers have in common, as `seg_exchange` (exchange.h) describes its fields of these
    names.
    """

    asked: bytes
    answer: bytes
    told_at: int
    n_told: int
    compact: bool
    behind: bytes = b""
    offset_at: int = 0
    epoch_at: int = 0
    most: int = 0
    least: int = 0
    longest: int = 0
    committed: bool = False


class NativeExchange:
    """`c` is the struct for C. `counts`, a `seg_counts *`, gets what is answered in whole. `begin` comes
    before each call: its memory is the caller's, and not kept.
    """

    __slots__ = ("_header", "_owners", "c", "committed")

    def __init__(self, alike: Alike, counts: Any = None) -> None:
        self.c = c = ffi.new("seg_exchange *")
        self._header = ffi.new(_NEW_HEADER)
        self._owners = [held("uint8_t[]", each) for each in (alike.asked, alike.answer, alike.behind)]
        c.asked, c.answer, c.behind = self._owners
        c.asked_len, c.answer_len, c.behind_len = len(alike.asked), len(alike.answer), len(alike.behind)
        c.told_at, c.n_told = alike.told_at, alike.n_told
        c.offset_at, c.epoch_at = alike.offset_at, alike.epoch_at
        c.most, c.least, c.longest = alike.most, alike.least, alike.longest
        c.compact, c.committed = alike.compact, alike.committed
        self.committed = alike.committed
        if counts is not None:
            c.counts = counts
            self._owners.append(counts)

    def begin(self, room: Any) -> None:
        """Receive into `room`, a `uint8_t[]`."""
        self.c.room, self.c.room_len = room, len(room)

    @property
    def request(self) -> memoryview:
        """Return the request that was received, without its size."""
        return memoryview(ffi.buffer(self.c.room, self.c.received)[_SIZE:])

    @property
    def rest(self) -> bytearray:
        """Return what the socket has not taken of the answer."""
        c = self.c
        return bytearray(ffi.buffer(c.room, c.received + c.answered)[c.received + c.sent :])

    def produce(self, partition: Partition, sock: int) -> bool | None:
        """Receive a request, and append its batch; return whether it is answered. None, and nothing was
        received: another way has to be taken. Raises StorageError: the batch is not in the log.
        """
        tail, validator = partition.tail.native, partition.validator
        if tail.on_append or tail.flush_left or partition.acks is not None or not tail.c.open:
            return None
        if validator.codec and not validator.keeps_codec:
            return None
        now = _NOW if tail.clock is None else tail.clock()
        first: int = lib.seg_exchange_produce(sock, self.c, tail.c, validator.rules, now, self._header)
        if first < 0 and first != SLOW:
            undone(partition.tail, first, int(self.c.received))
        return first >= 0
