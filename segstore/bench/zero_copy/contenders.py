"""What is measured against what: log.transfer by each method, the same methods bare, and Python's
os.sendfile.

On disk: reads only. Threads: one. All are made for one sink and one log; which bytes go is the number of
the transfer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from segstore.bench.zero_copy.cells import BARE, LOG, OS_SENDFILE, Contender, Plan
from segstore.bench.zero_copy.measure import Send
from segstore.bench.zero_copy.plan import Stretch
from segstore.files import Files, Handle
from segstore.storage.store.store import Store
from segstore.storage.transfer.methods import AUTO, SENDFILE
from segstore.storage.transfer.probing import transfer_methods
from segstore.storage.transfer.senders import SENDERS, Sender
from segstore.storage.transfer.sinks import NEEDS, look_at

Ready = Callable[[], AbstractContextManager[Send]]
"""Begins a run, whose transfers come in the log's order: what is kept between them ends with it."""


def unavailable() -> dict[str, str]:
    """Methods that this machine has not, with the reason."""
    return {method: why for method, why in transfer_methods().items() if why is not None}


def names(plan: Plan, sink: str, cache: str) -> Iterator[Contender]:
    """Who takes part where the sink is of this kind."""
    missing = unavailable()
    methods = [m for m in plan.methods if m not in missing and sink in NEEDS[m]]
    yield from (Contender(LOG, method) for method in methods)
    if cache == "warm":
        yield from (Contender(BARE, method) for method in methods if method != AUTO)
        if SENDFILE in methods:
            yield Contender(BARE, OS_SENDFILE)


class Contenders:
    """Makes them over an open store; `files` is what the store was opened with. Closed with `stack`."""

    def __init__(self, store: Store, files: Files, stack: ExitStack) -> None:
        self._store, self._files, self._stack = store, files, stack

    def ready(self, contenders: Iterable[Contender], sink: int, stretch: Stretch) -> dict[Contender, Ready]:
        """Those that send to the descriptor `sink`."""
        handle = self._stack.enter_context(self._files.open(stretch.path))
        return {one: self._made(one, sink, stretch, handle) for one in contenders}

    def _made(self, contender: Contender, sink: int, stretch: Stretch, handle: Handle) -> Ready:
        if contender.way == BARE and contender.method != OS_SENDFILE:
            return lambda: self._bare(sink, stretch.size, handle, contender.method)
        if contender.way == BARE:
            send = _by_os_sendfile(sink, stretch.size, handle)
        else:
            send = self._by_log(sink, stretch, contender.method)
        return lambda: nullcontext(send)

    def _by_log(self, sink: int, stretch: Stretch, method: str) -> Send:
        transfer = self._store.partition(stretch.topic, 0).transfer
        size, step = stretch.size, stretch.step
        return lambda i: transfer(sink, i * step, size, method)[0]

    @contextmanager
    def _bare(self, sink: int, size: int, handle: Handle, method: str) -> Iterator[Send]:
        sender = SENDERS[method](self._files, look_at(self._files, sink))
        try:
            yield lambda i: _send_all(sender, handle, i * size, size)
        finally:
            sender.close()


def _send_all(sender: Sender, handle: Handle, position: int, count: int) -> int:
    done = 0
    while done < count and (sent := sender.send(handle, position + done, count - done)):
        done += sent
    return done


def _by_os_sendfile(sink: int, size: int, handle: Handle) -> Send:
    fd, sendfile = handle.fd, os.sendfile

    def send(i: int) -> int:
        position, done = i * size, 0
        while done < size and (sent := sendfile(sink, fd, position + done, size - done)):
            done += sent
        return done

    return send
