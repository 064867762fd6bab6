"""Makes a failing input smaller, as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable


def shrunk(data: bytes, fails: Callable[[bytes], bool], tries: int = 2000) -> bytes:
    """Without what it does not take, and with zeros in place of what does not matter."""
    left = tries
    size = max(len(data) // 2, 1)
    while size and left > 0:
        at = 0
        while at < len(data) and left > 0:
            left -= 1
            less = data[:at] + data[at + size :]
            if fails(less):
                data = less
            else:
                at += size
        size //= 2
    for at in range(len(data)):
        zeroed = data[:at] + b"\0" + data[at + 1 :]
        if zeroed != data and left > 0:
            left -= 1
            data = zeroed if fails(zeroed) else data
    return data
