"""`NativeExchange`: for requests of one connection that match a template, one call of C receives the request,
handles it and answers it (`_native/exchange.c`). C appends a produce request's batch by the native tail; for
a fetch it copies a few batches from one segment.

On disk are the log's files. `append_as_leader` and `stretch` handle the requests that C does not. Threads: an
exchange belongs to one thread at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from segstore._native import ffi, held, lib
from segstore.protocol.template import SIZE, MessageTemplate, RecordsFrame
from segstore.storage.log.append import SLOW, undone

if TYPE_CHECKING:
    from segstore.storage.log.partition import Partition

_NOW: int = lib.SEG_NOW
_NEW_HEADER = ffi.typeof("seg_batch *")
_NOTHING, _NO_RECORDS = MessageTemplate(b"", []), RecordsFrame(False, b"")


class CopyLimits(NamedTuple):
    """Limits in bytes for the batches that C copies into an answer. C copies up to `most`, and does not
    answer if it finds fewer than `least` or more than `longest`. With `committed` C does not copy
    transactional batches.
    """

    most: int
    least: int
    longest: int
    committed: bool


class NativeExchange:
    """Receives requests that match the template `asked`, and answers them by the template `answer`, whose
    first hole is the correlation id. `c` is the struct for C. `counts`, a `seg_counts *`, counts the answers
    that were sent whole. Call `begin` before each request, and keep the memory that it gets alive.
    """

    __slots__ = ("_header", "_owners", "c", "committed")

    def __init__(
        self,
        asked: MessageTemplate | None,
        answer: MessageTemplate | None,
        limits: CopyLimits | None = None,
        counts: Any = None,
    ) -> None:
        self.c = c = ffi.new("seg_exchange *")
        self._header = ffi.new(_NEW_HEADER)
        self._owners: list[Any] = []
        for name, template in ("asked", asked or _NOTHING), ("answer", answer or _NOTHING):
            self._put(name, template)
        if limits is not None:
            c.most, c.least, c.longest, c.committed = limits
        self.committed = bool(c.committed)
        if counts is not None:
            c.counts = counts
            self._owners.append(counts)

    def _put(self, name: str, template: MessageTemplate) -> None:
        """Describe a template to C, as `seg_message` (exchange.h)."""
        c, records = getattr(self.c, name), template.records or _NO_RECORDS
        front, end = held("uint8_t[]", template.front), held("uint8_t[]", records.end)
        self._owners += [front, end]
        c.front, c.front_len, c.end, c.end_len = front, len(template.front), end, len(records.end)
        c.compact, c.n_holes = records.is_compact, len(template.holes)
        for slot, hole in enumerate(template.holes):
            c.holes[slot] = hole.at, hole.width

    def begin(self, room: Any) -> None:
        """Receive into `room`, a `uint8_t[]`."""
        self.c.room, self.c.room_len = room, len(room)

    @property
    def request(self) -> memoryview:
        """Return the request that was received, without its size."""
        return memoryview(ffi.buffer(self.c.room, self.c.received)[SIZE:])

    @property
    def rest(self) -> bytearray:
        """Return the bytes of the answer that the socket has not accepted yet."""
        c = self.c
        return bytearray(ffi.buffer(c.room, c.received + c.answered)[c.received + c.sent :])

    def produce(self, partition: Partition, sock: int) -> bool | None:
        """Receive a request, and append its batch. Return True if the request was answered, False if it was
        received but the caller must handle it, None if nothing was received. Raises StorageError; the batch
        is not in the log then.
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
