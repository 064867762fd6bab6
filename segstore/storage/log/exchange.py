"""`NativeExchange` handles those requests of one connection that match a template. One call of C
(`_native/exchange.c`) receives a request, executes it, and sends the answer. The request is a Produce
request, whose batch C appends, or a Fetch request for a few batches of one segment.

On disk the log's files are written and read in the same form as by `append_as_leader` and `stretch`, which
handle the requests that C does not handle. Threads: an exchange belongs to one thread at a time.
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
    """Limits, in bytes, of a fetch that the C code answers itself. `most` is the size that the client asked
    for. Python answers instead of C if there are fewer than `least` bytes or more than `longest` bytes, or if
    `committed` is True and one of the batches is transactional.
    """

    most: int
    least: int
    longest: int
    committed: bool


class NativeExchange:
    """Keeps the templates and the memory that C's calls use; `c` is the struct that is passed to C.

    C compares requests with the template `asked`, and makes answers from the template `answer`, whose first
    hole (variable field) is the correlation id. C counts completely sent answers in `counts`, a `seg_counts
    *`. `begin` sets the memory, which is needed only during the next call.
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
        """Copy a template into the field `name` of the struct `c`, a `seg_message` (exchange.h)."""
        c, records = getattr(self.c, name), template.records or _NO_RECORDS
        front, end = held("uint8_t[]", template.front), held("uint8_t[]", records.end)
        self._owners += [front, end]
        c.front, c.front_len, c.end, c.end_len = front, len(template.front), end, len(records.end)
        c.compact, c.n_holes = records.is_compact, len(template.holes)
        for slot, hole in enumerate(template.holes):
            c.holes[slot] = hole.at, hole.width

    def begin(self, room: Any) -> None:
        """Set `room`, a `uint8_t[]`, as the memory for the next request and its answer."""
        self.c.room, self.c.room_len = room, len(room)

    @property
    def request(self) -> memoryview:
        """Return the received request, without its size field."""
        return memoryview(ffi.buffer(self.c.room, self.c.received)[SIZE:])

    @property
    def rest(self) -> bytearray:
        """Return the bytes of the answer that were not sent."""
        c = self.c
        return bytearray(ffi.buffer(c.room, c.received + c.answered)[c.received + c.sent :])

    def produce(self, partition: Partition, sock: int) -> bool | None:
        """Receive a request, append its batch and answer. Return True if C has answered, False if the caller
        must handle the request. Return None if C can't be used; nothing is received then. Raises
        StorageError; the batch is not in the log then.
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
