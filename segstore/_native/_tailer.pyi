"""Types of `tailer.c`."""

from typing import Any

class EndsTailer:
    keys: Any
    kind: Any
    came: Any
    tailer: int
    def wait(self, nudges: int, seconds: float, /) -> int: ...

def records(
    kind: type[Any],
    topic: str,
    partition: int,
    epochs: int | list[int],
    types: int | list[int],
    offsets: bytes,
    timestamps: bytes,
    *slices_and_counts: bytes | int | list[int] | None,
) -> list[Any]: ...
def bind(address: int, /) -> None: ...
