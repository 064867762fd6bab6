"""`Proxy`: a TCP proxy on loopback between clients and a server, whose connections can be made to fail.

What a connection has not delivered when it ends is dropped: a commit of offsets, or the end of a transaction,
that came after its own repetition would have an effect in Kafka too. Threads: the proxy has its own; any may
call its methods.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, cast

_AT_ONCE = struct.pack("ii", 1, 0)
_TICK = 0.02
"""Seconds between two pieces of a slow connection."""


class _End(asyncio.Protocol):
    """One end of a connection: what comes goes to `other`. `is_answers`: this is the server's end. What is
    `held` was not delivered yet; while there is any, nothing more is read.
    """

    def __init__(self, proxy: Proxy, is_answers: bool) -> None:
        self.proxy, self.is_answers = proxy, is_answers
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None
        self.held: deque[bytes] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.proxy.ends.add(self)
        if self.is_answers:
            return
        if self.proxy.refuses:
            self.end(hard=True)
        else:
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
            return
        self.held.append(data)
        self.deliver()

    def deliver(self) -> None:
        """Deliver what is held, as far as it may go on now."""
        if self._timer is not None:
            return
        if self.other is None or self.is_answers in self.proxy.stalled:
            self._read(False)
            return
        while self.held and not self.proxy.rate:
            self._pass(self.held.popleft())
        if self.held:
            self._deliver_slowly()
        self._read(not self.held)

    def _deliver_slowly(self) -> None:
        most = max(1, int(self.proxy.rate * _TICK))
        data = self.held.popleft()
        if len(data) > most:
            self.held.appendleft(data[most:])
        self._pass(data[:most])
        self._timer = asyncio.get_running_loop().call_later(_TICK, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.deliver()

    def _read(self, on: bool) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading() if on else self.transport.pause_reading()

    def _pass(self, data: bytes) -> None:
        data, ends = self.proxy.counted(data)
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)
        if ends:
            self.end(hard=False)

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
    lost. A context manager, at whose end all connections are cut.
    """

    def __init__(self, target: int = 0) -> None:
        self.target = target
        self.ends: set[_End] = set()
        self.mutes = self.refuses = False
        self.stalled: frozenset[bool] = frozenset()
        """Which directions are held up: True is that of answers."""
        self.rate = 0.0
        self.torn = self.lost = 0
        self._left: int | None = None
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
        self._call(self._server.close)
        self._run(self._end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end_all(self) -> None:
        """End all connections, those that are being made too, and hear of each one's end."""
        for task in [*self._connecting]:
            task.cancel()
        while self.ends:
            for end in [*self.ends]:
                end.end(hard=True)
            await asyncio.sleep(0)

    @property
    def address(self) -> str:
        """Return HOST:PORT, to which clients connect."""
        return f"127.0.0.1:{self.port}"

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
        else:
            end.deliver()

    def counted(self, data: bytes) -> tuple[bytes, bool]:
        """Return what of these bytes may be delivered, and whether their connection ends then."""
        if self._left is None:
            return data, False
        data = data[: self._left]
        self._left -= len(data)
        if self._left:
            return data, False
        self._left = None
        return data, True

    # --- faults ---------------------------------------------------------------------------

    def cut(self, hard: bool) -> None:
        """End all connections; `hard`: by a reset."""
        self._call(lambda: [end.end(hard) for end in [*self.ends]] and None)

    def cut_after(self, count: int) -> None:
        """End the connection that delivers the last of the next `count` bytes, of both directions and all
        connections together; that is the last byte that it delivers.
        """
        assert count > 0
        self._call(lambda: setattr(self, "_left", count))

    def tear(self, count: int) -> None:
        """Deliver the next pieces by half, and end their connections."""
        self._call(lambda: setattr(self, "torn", count))

    def stall(self, requests: bool = True, answers: bool = True) -> None:
        """Deliver nothing of these directions until `go_on`; connections stay."""
        held = frozenset(way for way, on in ((False, requests), (True, answers)) if on)
        self._call(lambda: setattr(self, "stalled", held))

    def slow(self, bytes_per_second: float) -> None:
        """Deliver so much of each direction of each connection until `go_on`."""
        self._call(lambda: setattr(self, "rate", bytes_per_second))

    def mute(self) -> None:
        """Lose all answers until `go_on`; requests are delivered."""
        self.lost = 0
        self._call(lambda: setattr(self, "mutes", True))

    def refuse(self) -> None:
        """Reset each new connection at once until `go_on`."""
        self._call(lambda: setattr(self, "refuses", True))

    def go_on(self) -> None:
        """Deliver what was held up, and all that comes; nothing is torn any more. After `mute`, `cut` must
        have come.
        """

        def call() -> None:
            self.mutes, self.refuses, self.torn = False, False, 0
            self.stalled, self.rate = frozenset(), 0.0
            for end in [*self.ends]:
                end.deliver()

        self._call(call)
