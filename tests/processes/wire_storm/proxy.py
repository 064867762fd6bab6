"""`Proxy`: a TCP proxy on loopback between clients and the server, whose connections can be made to fail.

What a connection has not delivered when it ends is dropped: a commit of offsets, or the end of a transaction,
that came after its own repetition would have an effect in Kafka too. Threads: the proxy has its own; any may
call its methods.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any, cast

_AT_ONCE = struct.pack("ii", 1, 0)


class _End(asyncio.Protocol):
    """One end of a connection: what comes goes to `other`. `is_answers`: this is the server's end."""

    def __init__(self, proxy: Proxy, is_answers: bool) -> None:
        self.proxy, self.is_answers = proxy, is_answers
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None
        self.held: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.proxy.ends.add(self)
        if not self.is_answers:
            self.proxy.reach_server(self)

    def data_received(self, data: bytes) -> None:
        proxy = self.proxy
        if self.is_answers and proxy.mutes:
            proxy.lost += 1
            return
        if proxy.torn and (self.is_answers or self.other is not None):
            proxy.torn -= 1
            self._pass(data[: len(data) // 2])
            self.end(hard=False)
        elif self.other is None or proxy.stalls:
            self.held.append(data)
        else:
            self._pass(data)

    def _pass(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def go_on(self) -> None:
        if self.other is None:  # what is held goes on when the server is reached
            return
        held, self.held = self.held, []
        for data in held:
            self._pass(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.proxy.ends.discard(self)
        self.held.clear()
        if self.other is not None and self.other.transport is not None:
            # What it was given is delivered, as the last answers before a server's graceful end.
            self.other.transport.close()

    def end(self, hard: bool) -> None:
        """Close both ends; `hard`: by a reset."""
        for each in (self, self.other):
            if each is not None and each.transport is not None:
                each.held.clear()
                if hard and not each.transport.is_closing():
                    sock = each.transport.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                    each.transport.abort()
                else:
                    each.transport.close()


class Proxy:
    """Clients connect to `port`, and the proxy to `target`. `lost` counts the pieces of answers that were
    lost. A context manager.
    """

    def __init__(self) -> None:
        self.target = 0
        self.ends: set[_End] = set()
        self.mutes = self.stalls = False
        self.torn = self.lost = 0
        self._connecting: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._server = self._run(
            self._loop.create_server(lambda: _End(self, is_answers=False), "127.0.0.1", 0)
        )
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self.cut(hard=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _call(self, call: Callable[[], None]) -> None:
        async def work() -> None:
            call()

        self._run(work())

    def reach_server(self, end: _End) -> None:
        task = self._loop.create_task(self._connect(end))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, end: _End) -> None:
        assert end.transport is not None
        try:
            _, other = await self._loop.create_connection(
                lambda: _End(self, is_answers=True), "127.0.0.1", self.target
            )
        except OSError:  # no server now
            end.transport.abort()
            return
        end.other, other.other = other, end
        if end.transport.is_closing():
            other.end(hard=True)
        elif not self.stalls:
            end.go_on()

    # --- faults ---------------------------------------------------------------------------

    def cut(self, hard: bool) -> None:
        """End all connections."""
        self._call(lambda: [end.end(hard) for end in [*self.ends]] and None)

    def tear(self, count: int) -> None:
        """Deliver the next pieces by half, and end their connections."""
        self._call(lambda: setattr(self, "torn", count))

    def stall(self) -> None:
        """Deliver nothing until `go_on`."""
        self._call(lambda: setattr(self, "stalls", True))

    def mute(self) -> None:
        """Lose all answers until `go_on`; requests are delivered."""
        self.lost = 0
        self._call(lambda: setattr(self, "mutes", True))

    def go_on(self) -> None:
        """Deliver what was held up, and all that comes. After `mute`, `cut` must have come."""

        def call() -> None:
            self.mutes = self.stalls = False
            for end in [*self.ends]:
                end.go_on()

        self._call(call)
