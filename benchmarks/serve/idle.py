"""Many connections at once, of a client that costs little. Threads: one."""

from __future__ import annotations

import selectors
import time
from contextlib import ExitStack

from wire_client import request

from .raw import BUFFER, Raw, raw

_GREETING = request("ApiVersions", 0, 1, "bench")


class Idle:
    """`count` connections, which the server has answered once, until the stack is closed."""

    def __init__(self, address: str, count: int, stack: ExitStack) -> None:
        self._selector = stack.enter_context(selectors.DefaultSelector())
        buffer = bytearray(BUFFER)
        self._all: list[Raw] = []
        self._waiting: set[Raw] = set()
        for _ in range(count):  # one after the other: a server's queue of new connections is short
            client = stack.enter_context(raw(address, buffer))
            client.exchange(_GREETING)
            self._all.append(client)
            self._selector.register(client.socket, selectors.EVENT_READ, client)

    def poll(self, data: bytes, seconds: float) -> int:
        """Have each connection send a request whenever it waits for no answer; return how many were
        answered within so many seconds.
        """
        end, answered = time.monotonic() + seconds, 0
        for client in self._all:
            if client not in self._waiting:
                client.socket.sendall(data)
                self._waiting.add(client)
        while (left := end - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                key.data.receive()
                key.data.socket.sendall(data)
                answered += 1
        return answered
