"""Types of `producer.c`, `queue.c`, `future.c` and `post.c`."""

from collections import deque
from collections.abc import Callable
from typing import Any

class FutureRecordMetadata:
    _holder: Any
    _value: Any
    _key: bytes | None
    _time: int
    _at: int

class Memory:
    waiters: deque[Any]
    block_size: int
    _unpooled: int
    _free: int
    made: int
    reused: int

class Sleep:
    gate: Any
    asleep: bool
    def wake(self) -> None: ...

class Records:
    records: list[Any]
    batches: deque[Any]
    latch: Any
    callbacks: list[Any] | None
    lane: Lane | None
    left: int
    room: int
    block: int
    produced: int
    created: float
    cut_until: float
    rich: bool
    alone: bool
    held: bool
    def parts(self, whole: bool, /) -> list[tuple[Any, Any, bytes, bytes | None, int, float]]: ...
    def settle(self, made: Any, incomplete: Any, sealed: Any, /) -> bool: ...

class Written:
    lock: Any
    topic_partition: Any
    offset: int
    timestamp: int
    key_size: int
    value_size: int

class Lane:
    topic_partition: Any
    tail: Any
    partition: Any
    context: Any
    sequences: Any

class Post:
    lock: Any
    pool: Memory
    full: list[Any]
    open: dict[Any, None]
    refused: list[BaseException]
    gate: Sleep
    time: Any
    sealed: dict[Any, None]
    backing_off: dict[Any, None]
    reported: dict[Any, Any]
    throttle: Any
    noted: Any
    linger: float
    timeout: float
    most_noted: int
    def run(self) -> None: ...

class Sending:
    sticky: dict[str, Any]
    by_key: dict[str, dict[bytes, Any]]
    now: Callable[[], int] | None
    pool: Memory
    full: list[Any]
    open: dict[Any, None]
    refused: list[BaseException]
    gate: Sleep
    time: Any
    take: Callable[..., Any]
    take_next: Callable[..., Any]
    room: int
    at_once: bool
    def send(
        self, topic: Any, value: Any, key: Any, headers: Any, partition: Any, timestamp_ms: Any, /
    ) -> Any: ...

def bind(address: int, /) -> None: ...
