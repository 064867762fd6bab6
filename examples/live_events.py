"""Events as they come, for any number of browsers: one consumer follows the log, and hands them on.

    python live_events.py events-log 8000
    curl -N http://127.0.0.1:8000/events       # server-sent events; http://127.0.0.1:8000/ is a page of them
    curl -d 'a door opens' http://127.0.0.1:8000/events

The consumer is one thread for all subscribers, not one each. An event's id is its offset: a browser that
connects again says the last one that it has (`Last-Event-ID`), and goes on behind it.

A slow subscriber holds nobody up. When its queue of QUEUE events is full, the subscriber leaves the queue,
and reads on from the log until it has caught up: it misses nothing, and memory stays bounded. A subscriber
who takes nothing for PATIENCE seconds is disconnected; a browser then connects again by itself. Events that
retention has deleted meanwhile are skipped.

Ctrl-C and SIGTERM: subscribers are disconnected, and the store is closed. `kill -9`: each event that was
answered with 201 is in the log. For answers that outlive a power cut, give the topic `flush.messages=1`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from itertools import islice

import segstore

TOPIC = "events"
QUEUE, PIECE = 100, 500  # events that wait for a subscriber, and that are read from the log at once
PATIENCE, BEAT = 30.0, 15.0  # seconds: without a read of the client, and until a sign of life without events
MOST_BYTES = 1 << 20

PAGE = b"""<!doctype html><meta charset="utf-8"><title>events</title><ul id="all"></ul><script>
new EventSource("/events").onmessage = event => {
  const item = document.createElement("li")
  item.textContent = event.lastEventId + ": " + event.data
  document.getElementById("all").prepend(item)
}
</script>"""

Event = tuple[int, bytes]
"""An offset, and the value of the record there."""


class Fan:
    """Hands on the events of one partition. `next` is the offset behind the last one that came."""

    def __init__(self, log: segstore.PartitionLog) -> None:
        self.log, self.next = log, log.end_offset
        self._queues: set[asyncio.Queue[Event]] = set()

    async def run(self, store: segstore.Store) -> None:
        """Follow the log: this is the only consumer."""
        async with segstore.AsyncConsumer(store) as consumer:
            partition = segstore.TopicPartition(TOPIC, 0)
            consumer.assign([partition])
            consumer.seek(partition, self.next)
            async for record in consumer:
                self._hand_on((record.offset, record.value or b""))

    def _hand_on(self, event: Event) -> None:
        self.next = event[0] + 1
        for queue in list(self._queues):
            if queue.full():
                self._queues.discard(queue)  # its subscriber reads on from the log
            else:
                queue.put_nowait(event)

    async def events(self, start: int) -> AsyncIterator[Event | None]:
        """Yield the events from an offset on, for ever; None when there was none for BEAT seconds."""
        while True:
            while start < self.next:
                found, start = await asyncio.to_thread(self._read, start, self.next)
                for event in found:
                    yield event
            # Nothing is awaited since the look at `next`: the queue gets all events from `start` on.
            queue: asyncio.Queue[Event] = asyncio.Queue(QUEUE)
            self._queues.add(queue)
            try:
                while queue in self._queues or not queue.empty():
                    try:
                        event = await asyncio.wait_for(queue.get(), BEAT)
                    except asyncio.TimeoutError:
                        yield None
                    else:
                        start = event[0] + 1
                        yield event
            finally:
                self._queues.discard(queue)

    def _read(self, start: int, end: int) -> tuple[list[Event], int]:
        """Return up to PIECE events of the log, and the offset at which to go on."""
        records = islice(self.log.scan(max(start, self.log.start_offset), end), PIECE)
        found = [(record.offset, record.value or b"") for record in records]
        return found, found[-1][0] + 1 if len(found) == PIECE else end


class Service:
    """The HTTP side: GET / and /events, POST /events."""

    def __init__(self, fan: Fan, producer: segstore.AsyncProducer) -> None:
        self._fan, self._producer = fan, producer
        self._tasks: set[asyncio.Task[None]] = set()

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, in a task of its own."""
        task = asyncio.ensure_future(self._answer(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """Disconnect everybody."""
        while self._tasks:  # before Python 3.12 a `wait_for` that has its result ignores a cancellation
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=1)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gone = (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.TimeoutError)
        with contextlib.suppress(*gone), contextlib.closing(writer):
            head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)).decode("latin-1")
            request, *lines = head.rstrip().split("\r\n")
            method, path, *_ = [*request.split(" "), "", ""]
            fields = {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
            if (method, path) == ("GET", "/events"):
                await self._stream(writer, fields.get("last-event-id", ""))
            elif (method, path) == ("POST", "/events"):
                await self._post(reader, writer, fields.get("content-length", ""))
            elif (method, path) == ("GET", "/"):
                await send(writer, response("200 OK", "text/html; charset=utf-8", PAGE))
            else:
                await send(writer, response("404 Not Found", "text/plain", b"GET /, GET or POST /events\n"))

    async def _stream(self, writer: asyncio.StreamWriter, last: str) -> None:
        start = int(last) + 1 if last.isascii() and last.isdigit() else self._fan.next
        kind = "Content-Type: text/event-stream\r\nCache-Control: no-store"
        await send(writer, f"HTTP/1.1 200 OK\r\n{kind}\r\nConnection: close\r\n\r\n".encode())
        async with contextlib.aclosing(self._fan.events(min(start, self._fan.next))) as events:
            async for event in events:
                await send(writer, b": \n\n" if event is None else message(*event))

    async def _post(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, length: str) -> None:
        if not (length.isascii() and length.isdigit() and int(length) <= MOST_BYTES):
            await send(writer, response("413 Content Too Large", "text/plain", b"at most 1 MiB\n"))
            return
        body = await asyncio.wait_for(reader.readexactly(int(length)), PATIENCE)
        try:
            sent = await self._producer.send_and_wait(TOPIC, body)
        except segstore.SegstoreError as error:  # such as a full disk
            await send(writer, response("503 Service Unavailable", "text/plain", f"{error}\n".encode()))
        else:
            made = json.dumps({"offset": sent.offset}).encode()
            await send(writer, response("201 Created", "application/json", made))


async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send, and wait until the client has taken enough. Raises TimeoutError after PATIENCE seconds."""
    writer.write(data)
    try:
        await asyncio.wait_for(writer.drain(), PATIENCE)
    except asyncio.TimeoutError:
        writer.transport.abort()  # `close` would wait for the client to take the rest
        raise


def message(offset: int, value: bytes) -> bytes:
    """Return an event as a browser reads it: its data has no line breaks of its own."""
    lines = value.decode("utf-8", "replace").splitlines() or [""]
    return "".join([f"id: {offset}\n", *(f"data: {line}\n" for line in lines), "\n"]).encode()


def response(status: str, kind: str, body: bytes) -> bytes:
    """Return a whole answer."""
    fields = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close"
    return f"HTTP/1.1 {status}\r\n{fields}\r\n\r\n".encode() + body


async def serve(path: str, port: int) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    with segstore.open(path) as store:
        store.ensure_topic(TOPIC)
        fan = Fan(store.partition(TOPIC))
        async with segstore.AsyncProducer(store, linger_ms=2) as producer:
            service = Service(fan, producer)
            server = await asyncio.start_server(service.connected, "127.0.0.1", port)
            following = asyncio.ensure_future(fan.run(store))
            print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", flush=True)
            ended = asyncio.ensure_future(stop.wait())
            await asyncio.wait([following, ended], return_when=asyncio.FIRST_COMPLETED)
            server.close()
            for task in (following, ended):
                task.cancel()
            _, failed = (
                await service.end(),
                (await asyncio.gather(following, ended, return_exceptions=True))[0],
            )
            if isinstance(failed, Exception):  # the log can't be followed: say why, rather than serve nothing
                raise failed


def main() -> None:
    parser = argparse.ArgumentParser(usage="live_events.py [STORE [PORT]]")
    parser.add_argument("path", nargs="?", default="events-log")
    parser.add_argument("port", nargs="?", type=int, default=8000)
    asyncio.run(serve(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
