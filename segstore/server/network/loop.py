"""`Loop`: one thread that waits for sockets by level-triggered epoll, and makes queued and timed calls. A
turn is one iteration of the loop.

Threads: any thread may call `soon`, `end` and `age`. Every other method is called in the loop's thread, or
before it runs. No signal handler runs in the loop's thread. After a fork the child closes inherited
descriptors.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from segstore.idle_files import with_descriptors
from segstore.logger import Logger
from segstore.threads import LiveSet

from .timers import NEVER, LoopTimer, Timers
from .wakeup import Wakeup
from .watch import Watch
from .workers import Workers

log = Logger("segstore")

RDHUP = select.EPOLLRDHUP
COME = select.EPOLLIN
IN, OUT = COME | RDHUP, select.EPOLLOUT
GONE = select.EPOLLHUP | select.EPOLLERR
WORKERS, WAITERS = 2, 8


class Loop:
    """An event loop. `now` is the start time of the current turn, in monotonic seconds. Raises OSError if the
    process has no file descriptors left.
    """

    def __init__(self) -> None:
        self.now = time.monotonic()
        self._poll = with_descriptors(select.epoll)
        self._wakeup = Wakeup()
        self._sockets: dict[int, tuple[socket.socket, Callable[[int], object]]] = {}
        self._left: list[socket.socket] = []
        self._asked: deque[Callable[[], object]] = deque()
        self._timers = Timers()
        self._workers = Workers("worker", WORKERS, self.soon)
        self._waiters = Workers("waiter", WAITERS, self.soon)
        self._each_turn: list[Callable[[], object]] = []
        self._watches: list[Watch] = []
        self._over = self._is_asleep = False
        self._poll.register(self._wakeup.fd, select.EPOLLIN)
        _live.add(self)

    # --- calls ----------------------------------------------------------------------------

    def later(self, seconds: float, call: Callable[[], object]) -> LoopTimer:
        """Make a call after `seconds`. The docstrings of `NodeLoop` describe this method and the next four
        methods.
        """
        return self._timers.add(time.monotonic() + seconds, call)

    def soon(self, call: Callable[[], object]) -> None:
        self._asked.append(call)
        self._wakeup.wake()

    def work(self, run: Callable[[], Any], done: Callable[[Any], object], waits: bool = False) -> None:
        (self._waiters if waits else self._workers).do(run, done)

    def every_turn(self, call: Callable[[], object]) -> None:
        self._each_turn.append(call)

    def watch(self, wake: Callable[[], object], then: Callable[[], object]) -> Watch:
        watch = Watch(wake, then, self.soon)
        self._watches.append(watch)
        return watch

    @property
    def works(self) -> bool:
        """Whether there are calls of `work` whose `done` was not called yet."""
        return self._workers.under_way + self._waiters.under_way > 0

    @property
    def age(self) -> float:
        """Seconds since the current turn began, 0.0 while the loop sleeps; if the loop has stopped, seconds
        since its last turn began. Any thread may read this property.
        """
        return 0.0 if self._is_asleep else max(time.monotonic() - self.now, 0.0)

    # --- sockets --------------------------------------------------------------------------

    def add(self, sock: socket.socket, events: int, call: Callable[[int], object]) -> None:
        """Call `call(events that occurred)` whenever one of `events`, or GONE, occurs on the socket. The loop
        owns the socket from now on, and closes it. Raises OSError.
        """
        self._poll.register(sock, events)
        self._sockets[sock.fileno()] = sock, call

    def hand_over(self, sock: socket.socket, call: Callable[[int], object]) -> None:
        """Replace the function that `add` registered for the socket."""
        self._sockets[sock.fileno()] = sock, call

    def change(self, sock: socket.socket, events: int) -> None:
        """Replace the events of a socket that the loop waits for."""
        self._poll.modify(sock, events)

    def remove(self, sock: socket.socket) -> None:
        """Shut down the connection of a socket; close the socket at the end of the loop's current turn."""
        # If the socket were closed now, a new socket with the same number could get the old socket's events.
        with suppress(OSError):  # the peer has already closed the connection
            sock.shutdown(socket.SHUT_RDWR)
        self._poll.unregister(sock)
        del self._sockets[sock.fileno()]
        self._left.append(sock)

    # --- the thread -----------------------------------------------------------------------

    def run(self) -> None:
        """Run turns until `end` is called, then close all sockets. Later calls of `soon` have no effect."""
        # SIGPIPE is blocked, so that sendfile(2) to a closed connection returns an error, even if the
        # application has set a handler of this signal. A pending SIGPIPE is discarded when this thread ends.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])
        try:
            while not self._over:
                self._turn()
        finally:
            self._is_asleep = False
            self._close()

    def end(self) -> None:
        """Make `run` return at the end of the current iteration."""
        self._over = True
        self._wakeup.wake()

    def _turn(self) -> None:
        events = self._sleep()
        self.now = time.monotonic()
        # This is set after `now`, so that `age` never includes the time of a sleep.
        self._is_asleep = False
        for fd, happened in events:
            if (found := self._sockets.get(fd)) is not None:
                # This is the code of `_call`. It is repeated here to save a call for each request.
                try:
                    found[1](happened)
                except Exception:
                    log.exception(_FAILED)
            elif fd == self._wakeup.fd:
                self._wakeup.reset()
        if self._asked:
            # Calls that are queued from now on are made in the next turn.
            for _ in range(len(self._asked)):
                _call(self._asked.popleft())
        while self._timers.due <= self.now and (call := self._timers.take(self.now)) is not None:
            _call(call)
        for each in self._each_turn:
            _call(each)
        while self._left:
            self._left.pop().close()

    def _sleep(self) -> list[tuple[int, int]]:
        self._wakeup.asleep = True
        if self._asked or self._over:
            seconds = 0.0
        else:
            seconds = -1.0 if self._timers.due == NEVER else self._timers.pause(time.monotonic())
        self._is_asleep = True
        found = self._poll.poll(seconds)
        self._wakeup.asleep = False
        return found

    def _close(self) -> None:
        for sock, _ in [*self._sockets.values()]:
            self.remove(sock)
        while self._left:
            self._left.pop().close()
        for watch in self._watches:
            watch.end()
        self._workers.end()
        self._waiters.end()
        self._poll.close()
        self._wakeup.close()

    def discard(self) -> None:
        """Close a loop that was never run."""
        self._close()

    def forget(self) -> None:
        """Close the loop's descriptors in the child of a fork. In the parent the connections stay open."""
        self._over = True
        for sock in [*[sock for sock, _ in self._sockets.values()], *self._left]:
            sock.close()
        self._sockets.clear()
        self._left.clear()
        self._poll.close()
        self._wakeup.forget()


_FAILED = "a call in a server's loop has failed"


def _call(call: Callable[[], object]) -> None:
    """Make a call. Log an exception of the call, because it must not stop the loop."""
    try:
        call()
    except Exception:
        log.exception(_FAILED)


_live: LiveSet[Loop] = LiveSet()


def _forget_all() -> None:
    for loop in _live.all():
        loop.forget()


os.register_at_fork(after_in_child=_forget_all)
