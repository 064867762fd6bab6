"""Types of `follower.c`; see there."""

from typing import Any

class Follower:
    keys: Any
    kind: Any
    came: Any
    follower: int
    def wait(self, nudges: int, seconds: float, /) -> int: ...

def bind(address: int, /) -> None: ...
