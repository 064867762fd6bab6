"""Types of `transfer_call.c`."""

from typing import Any

class Sendable:
    handle: Any
    segment: Any
    first: int
    below: int
    spent: bool
    offered: bool
    def __init__(
        self, handle: Any, segment: Any, at: int, memory: Any, first: int, tail: Any, tail_at: int, /
    ) -> None: ...

def seg_transfer(
    views: Any, context: Any, sink: Any, offset: Any, max_bytes: Any, method: Any, /
) -> tuple[int, int] | list[Any] | None: ...
def bind(address: int, /) -> None: ...
